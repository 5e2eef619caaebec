// One model on rank processes against the same number of threads in one process: decode and prefill, interleaved runs,
// medians. Prints one JSON line for each figure.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>
#include <map>
#include <numeric>

#include "base/clock.h"
#include "inference/bones/communicator/testing/forked_ranks.h"

namespace {

using namespace tie;
using namespace tie::bones;

struct Options {
  std::string gguf, kernels;
  uint32_t ranks = 2, repeat = 5, decode_steps = 64, prefill = 512;
};

using Forward = std::function<Result<Logits>(const Batch&, const KvPool&)>;

struct Speed {
  double decode = 0, prefill = 0;  // tokens a second
};

Result<Speed> measure(const Options& o, const Forward& forward, const KvPool& kv) {
  std::vector<int32_t> tokens(o.prefill);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(100 + i % 1000);
  std::vector<uint32_t> table(kv.n_blocks);
  std::iota(table.begin(), table.end(), 0);
  auto step = [&](uint32_t first, uint32_t n) -> Result<void> {
    const SequenceSpan span{0, n, first, table};
    const uint32_t last = n - 1;
    TIE_TRY([[maybe_unused]] Logits logits, forward({std::span(tokens).first(n), {&span, 1}, {&last, 1}, {}}, kv));
    return {};
  };
  TIE_CHECK_OK(step(0, o.prefill));  // warm
  Speed out;
  const int64_t began = monotonic_us();
  TIE_CHECK_OK(step(0, o.prefill));
  const int64_t prefilled = monotonic_us();
  for (uint32_t i = 0; i < o.decode_steps; ++i) TIE_CHECK_OK(step(o.prefill + i, 1));
  const int64_t decoded = monotonic_us();
  out.prefill = o.prefill * 1e6 / static_cast<double>(prefilled - began);
  out.decode = o.decode_steps * 1e6 / static_cast<double>(decoded - prefilled);
  return out;
}

Result<Speed> threads_in_one_process(const Options& o, ByteView gguf) {
  TIE_TRY(const OwnedImage image, OwnedImage::from_gguf(gguf));
  ThreadPool pool({.n_threads = o.ranks});
  TIE_TRY(Model model,
          Model::attach(image.bytes(), {.pool = &pool, .kernels = o.kernels, .max_batch_rows = o.prefill}));
  TIE_TRY(const KvLayout layout, KvLayout::for_model(model.config()));
  const uint32_t blocks = layout.blocks_for(o.prefill + o.decode_steps);
  TIE_TRY(const os::Fd memory, os::create_memfd("bench-kv", blocks * layout.block_bytes()));
  TIE_TRY(os::Mapping kv, os::Mapping::read_write(memory.get()));
  return measure(o, [&](const Batch& batch, const KvPool& pool_of_kv) { return model.forward(batch, pool_of_kv); },
                 {kv.writable().data(), blocks, layout});
}

Result<Speed> ranks(const Options& o, ByteView gguf, RankPlace grid) {
  TIE_TRY(testing::ForkedRanks team, testing::ForkedRanks::start(gguf, {.grid = grid,
                                                                        .kernels = o.kernels,
                                                                        .max_batch_rows = o.prefill,
                                                                        .kv_tokens = o.prefill + o.decode_steps}));
  return measure(o, [&](const Batch& batch, const KvPool& kv) { return team.leader().forward(batch, kv); }, team.kv());
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

Result<void> run(const Options& o) {
  TIE_TRY(const os::Mapping file, os::Mapping::file_read_only(o.gguf));
  const ByteView gguf{reinterpret_cast<const uint8_t*>(file.bytes().data()), file.size()};
  std::map<std::string, std::pair<std::vector<double>, std::vector<double>>> found;
  for (uint32_t i = 0; i < o.repeat; ++i) {
    auto keep = [&](const char* name, Result<Speed> speed) -> Result<void> {
      if (!speed) return std::unexpected(std::move(speed.error()));
      found[name].first.push_back(speed->decode);
      found[name].second.push_back(speed->prefill);
      return {};
    };
    TIE_CHECK_OK(keep("threads", threads_in_one_process(o, gguf)));
    TIE_CHECK_OK(keep("tensor", ranks(o, gguf, {0, o.ranks, 0, 1})));
    TIE_CHECK_OK(keep("stages", ranks(o, gguf, {0, 1, 0, o.ranks})));
  }
  for (const auto& [name, speeds] : found)
    fmt::print("{{\"grid\": \"{}\", \"n\": {}, \"decode_tok_s\": {:.1f}, \"prefill_tok_s\": {:.1f}}}\n", name, o.ranks,
               median(speeds.first), median(speeds.second));
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app{"Ranks against threads."};
  app.add_option("--gguf", options.gguf)->required();
  app.add_option("--kernels", options.kernels);
  app.add_option("--ranks", options.ranks)->check(CLI::Range(2, 16));
  app.add_option("--repeat", options.repeat)->check(CLI::Range(1, 99));
  app.add_option("--decode-steps", options.decode_steps)->check(CLI::Range(1, 1024));
  app.add_option("--prefill", options.prefill)->check(CLI::Range(1, 2048));
  CLI11_PARSE(app, argc, argv);
  auto done = run(options);
  if (!done) std::fprintf(stderr, "ranks_bench: %s\n", done.error().message.c_str());
  return done ? 0 : 1;
}
