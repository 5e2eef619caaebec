#include "inference/engine/testing/fake_model.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <thread>

namespace tie::engine::testing {
namespace {

uint64_t mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

}  // namespace

struct FakeModel::Record {
  int32_t token;
  uint32_t position_plus_one;
};

FakeModel::FakeModel(FakeModelOptions options) : options_(options) {
  std::strcpy(config_.architecture, "fake");
  config_.n_layers = 1;
  config_.n_embd = config_.n_heads = config_.n_kv_heads = 1;
  config_.head_dim = 4;
  config_.n_vocab = options.n_vocab;
  config_.context_length = options.context;
}

FakeModel::Record* FakeModel::record(const bones::SequenceSpan& span, uint32_t position,
                                     const bones::KvPool& kv) const {
  uint32_t block = span.block_table[position / kv.layout.block_tokens];
  return reinterpret_cast<Record*>(kv.block(block) + (position % kv.layout.block_tokens) * sizeof(Record));
}

uint64_t FakeModel::hash_up_to(const bones::SequenceSpan& span, uint32_t position, const bones::KvPool& kv) {
  uint64_t hash = 0;
  uint32_t from = options_.remembers && position + 1 > options_.remembers ? position + 1 - options_.remembers : 0;
  for (uint32_t p = from; p <= position; ++p) {
    const Record* r = record(span, p, kv);
    if (r->position_plus_one != p + 1) complaints.push_back("the cache does not hold position " + std::to_string(p));
    hash = mix(hash ^ static_cast<uint32_t>(r->token));
  }
  return hash;
}

Result<bones::Logits> FakeModel::forward(const bones::Batch& batch, const bones::KvPool& kv) {
  ++passes;
  rows_computed += batch.tokens.size();
  most_logit_rows = std::max(most_logit_rows, batch.logit_rows.size());
  if (std::exchange(fail_next, false)) return fail(Code::kInternal, "asked to fail");
  logits_.assign(batch.logit_rows.size() * options_.n_vocab, 0.0f);
  std::vector<int> writers(kv.n_blocks, -1);
  size_t next_logit = 0;
  uint32_t next_row = 0;
  for (size_t i = 0; i < batch.sequences.size(); ++i) {
    const auto& span = batch.sequences[i];
    if (span.first_row != next_row) complaints.push_back("rows have a gap");
    next_row += span.n_rows;
    if (span.block_table.size() * kv.layout.block_tokens < span.first_position + span.n_rows)
      return fail(Code::kBadRequest, "block table too short");
    if (span.first_position + span.n_rows > options_.context) return fail(Code::kContextExceeded, "too long");
    for (uint32_t r = 0; r < span.n_rows; ++r) {
      uint32_t position = span.first_position + r, block = span.block_table[position / kv.layout.block_tokens];
      if (writers[block] != -1 && writers[block] != static_cast<int>(i))
        complaints.push_back("two sequences write one block");
      writers[block] = static_cast<int>(i);
      Record* mine = record(span, position, kv);
      if (mine->position_plus_one != 0 && mine->position_plus_one != position + 1)
        complaints.push_back("a block was not zeroed");
      *mine = {batch.tokens[span.first_row + r], position + 1};
      if (next_logit == batch.logit_rows.size() || batch.logit_rows[next_logit] != span.first_row + r) continue;
      uint64_t hash = hash_up_to(span, position, kv);
      float* out = &logits_[next_logit++ * options_.n_vocab];
      for (uint32_t v = 0; v < options_.n_vocab; ++v)
        out[v] = static_cast<float>(mix(hash ^ (uint64_t{v} << 32)) >> 44) * 0x1p-20f * 8.0f;
      for (uint32_t v = kFakeTokens; v < options_.n_vocab; ++v) out[v] = 100.0f;
    }
  }
  if (next_row != batch.tokens.size() || next_logit != batch.logit_rows.size())
    complaints.push_back("rows and logit rows do not fit");
  return bones::Logits{logits_.data(), options_.n_vocab, static_cast<uint32_t>(batch.logit_rows.size()),
                       options_.n_vocab, find_best(batch)};
}

bones::BestRows FakeModel::find_best(const bones::Batch& batch) {
  best_.assign(batch.best.size() * bones::kMostBest, {});
  best_counts_.assign(batch.best.size(), 0);
  bones::TopScratch scratch;
  for (size_t i = 0; i < batch.best.size(); ++i) {
    const bones::BestOf& want = batch.best[i];
    if (want.k == 0) continue;
    const std::span row(&logits_[i * options_.n_vocab], options_.n_vocab);
    if (want.mask) apply_mask(row, {want.mask, want.mask_words(options_.n_vocab)});
    const auto found = select_top(row.first(std::min(want.below, options_.n_vocab)), want.k, scratch);
    std::copy(found.begin(), found.end(), &best_[i * bones::kMostBest]);
    best_counts_[i] = static_cast<uint32_t>(found.size());
    std::fill(row.begin(), row.end(), std::numeric_limits<float>::quiet_NaN());
  }
  return {best_.data(), best_counts_.data()};
}

TokenTable fake_table() {
  TokenTable table;
  for (uint32_t i = 0; i < kFakeTokens; ++i) {
    char letter = static_cast<char>('a' + i % 26);
    table.add(i < 3 ? std::string() : std::string(1 + (i > 40) + (i > 55), letter));
  }
  (void)table.add_end_id(kFakeEnd);
  (void)table.add_end_id(kFakeOtherEnd);
  return table;
}

std::vector<int32_t> pattern(size_t n, int32_t salt) {
  std::vector<int32_t> out(n);
  for (size_t i = 0; i < n; ++i) out[i] = 3 + static_cast<int32_t>((i * 7 + static_cast<size_t>(salt) * 13) % 60);
  return out;
}

std::vector<int32_t> join(std::vector<int32_t> a, const std::vector<int32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

void CollectingSink::on_output(const Output& output) {
  Sample& s = samples.at(output.sample);
  if (ended) complaints.push_back("output after the end");
  if (s.finish != Finish::kNone) complaints.push_back("output of a finished sample");
  if (!output.prompt_logprobs.empty() && (output.sample != 0 || !s.tokens.empty()))
    complaints.push_back("scores of the prompt behind the answer's beginning");
  prompt_logprobs.insert(prompt_logprobs.end(), output.prompt_logprobs.begin(), output.prompt_logprobs.end());
  s.tokens.insert(s.tokens.end(), output.tokens.begin(), output.tokens.end());
  s.logprobs.insert(s.logprobs.end(), output.logprobs.begin(), output.logprobs.end());
  s.trim_bytes = output.stop_trim_bytes;
  s.finish = output.finish;
  ++s.outputs;
}

void CollectingSink::on_end(const Usage& told, const Error* why) {
  if (ended) complaints.push_back("ended twice");
  usage = told;
  if (why) error = *why;
  ended = true;
}

std::string CollectingSink::text(uint32_t sample, const TokenTable& table) const {
  std::string out;
  for (int32_t token : samples[sample].tokens) out += table.bytes(token);
  return out.substr(0, out.size() - samples[sample].trim_bytes);
}

bool run_to_end(EngineCore& core, uint32_t most_steps) {
  for (uint32_t i = 0; i < most_steps; ++i) {
    bool moved = core.transfer(3'000);  // a few of the tests' blocks at a time
    if (core.idle() && !moved) {
      core.settle();
      return true;
    }
    if (!core.step(i * 1000) && !moved)
      std::this_thread::sleep_for(std::chrono::microseconds(20));  // a grammar is being compiled
  }
  return false;
}

}  // namespace tie::engine::testing
