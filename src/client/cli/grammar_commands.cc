#include "client/cli/grammar_commands.h"

#include <edge_grammar.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <iostream>
#include <memory>
#include <vector>

#include "os/memfd.h"
#include "request/cloud_app/constraints/constraints.h"
#include "text/model_assets.h"
#include "text/tokenizer.h"

namespace tie::cli {
namespace {

constexpr size_t kMaxSchemaFileBytes = 1 << 20;
constexpr size_t kMaxInstanceBytes = 16 << 20;

struct GrammarOptions {
  std::string schema, gguf;
};

using Clock = std::chrono::steady_clock;
double us_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

struct FreeVocabulary {
  void operator()(edge_grammar_vocabulary* v) const { edge_grammar_vocabulary_free(v); }
};
struct FreeGrammar {
  void operator()(edge_grammar* g) const { edge_grammar_free(g); }
};
using VocabularyPtr = std::unique_ptr<edge_grammar_vocabulary, FreeVocabulary>;
using GrammarPtr = std::unique_ptr<edge_grammar, FreeGrammar>;

Result<VocabularyPtr> prepare(const text::Vocab& vocab) {
  std::string bytes;
  std::vector<uint32_t> offsets{0};
  std::vector<uint8_t> control;
  for (uint32_t i = 0; i < vocab.size(); ++i) {
    auto id = static_cast<text::TokenId>(i);
    bytes.append(as_text(vocab.token_bytes(id)));
    offsets.push_back(static_cast<uint32_t>(bytes.size()));
    control.push_back(vocab.is_control(id) || vocab.is_end_of_generation(id) ? 1 : 0);
  }
  auto ends = vocab.end_of_generation();
  edge_grammar_vocabulary* out = nullptr;
  edge_grammar_error error{};
  int code = edge_grammar_vocabulary_new(reinterpret_cast<const uint8_t*>(bytes.data()), offsets.data(), control.data(),
                                         control.size(), ends.data(), ends.size(), &out, &error);
  if (code != EDGE_GRAMMAR_OK) return fail(Code::kBadRequest, error.text);
  return VocabularyPtr(out);
}

// One text's way through the masks.
class Check {
 public:
  Check(const edge_grammar* grammar, uint32_t n_tokens, std::vector<double>& mask_us)
      : grammar_(grammar), mask_((n_tokens + 31) / 32), mask_us_(mask_us) {}

  Result<bool> accepts(const std::vector<text::TokenId>& ids) {
    edge_grammar* copy = nullptr;
    if (edge_grammar_fork(grammar_, &copy) != EDGE_GRAMMAR_OK)
      return fail(Code::kInternal, "the grammar cannot be copied");
    GrammarPtr walk(copy);
    edge_grammar_error error{};
    for (text::TokenId id : ids) {
      uint8_t complete = 0;
      auto start = Clock::now();
      int code = edge_grammar_fill_mask(copy, mask_.data(), mask_.size(), &complete, &error);
      mask_us_.push_back(us_since(start));
      if (code != EDGE_GRAMMAR_OK) return fail(Code::kTooLarge, error.text);
      auto token = static_cast<uint32_t>(id);
      if (complete || !(mask_[token / 32] >> (token % 32) & 1)) return false;
      if (edge_grammar_accept(copy, token, &error) != EDGE_GRAMMAR_OK) return fail(Code::kInternal, error.text);
    }
    return edge_grammar_may_end(copy) != 0;
  }

 private:
  const edge_grammar* grammar_;
  std::vector<uint32_t> mask_;
  std::vector<double>& mask_us_;
};

double at_share(std::vector<double>& sorted, double share) {
  return sorted.empty() ? 0 : sorted[static_cast<size_t>(share * static_cast<double>(sorted.size() - 1))];
}

void print_summary(double compile_us, std::vector<double>& mask_us, size_t accepted, size_t rejected) {
  std::sort(mask_us.begin(), mask_us.end());
  fmt::print(
      "compiled in {:.1f} ms; {} accepted, {} rejected; {} masks, p50 {:.0f} us, p99 {:.0f} us, most {:.0f} us\n",
      compile_us / 1000, accepted, rejected, mask_us.size(), at_share(mask_us, 0.5), at_share(mask_us, 0.99),
      at_share(mask_us, 1));
}

Result<void> check_instances(const edge_grammar* grammar, const text::Vocab& vocab, double compile_us) {
  TIE_TRY(auto tokenizer, text::Tokenizer::create(vocab));
  std::vector<double> mask_us;
  Check check(grammar, vocab.size(), mask_us);
  size_t line_number = 0, accepted = 0, rejected = 0;
  for (std::string line; std::getline(std::cin, line);) {
    ++line_number;
    if (line.size() > kMaxInstanceBytes) return fail(Code::kTooLarge, fmt::format("line {} is too long", line_number));
    TIE_TRY(const auto ids, tokenizer.tokenize(line, {.parse_special = false, .add_special = false}));
    auto start = Clock::now();
    auto taken = check.accepts(ids);
    double us = us_since(start);
    if (!taken) {
      fmt::print("{}\trefused\t{:.0f} us\t{} tokens\t{}\n", line_number, us, ids.size(), taken.error().message);
      continue;
    }
    ++(*taken ? accepted : rejected);
    fmt::print("{}\t{}\t{:.0f} us\t{} tokens\n", line_number, *taken ? "accept" : "reject", us, ids.size());
  }
  print_summary(compile_us, mask_us, accepted, rejected);
  return {};
}

Result<void> check(const GrammarOptions& o) {
  TIE_TRY(const Bytes schema, os::read_file(o.schema, kMaxSchemaFileBytes));
  auto lowered = request::app::schema_grammar(as_text(schema), "schema");
  if (!lowered) {
    fmt::print("refused\t{}\n", lowered.error().message);
    return {};
  }
  TIE_TRY(text::ModelAssets assets, text::compile_model_assets(o.gguf));
  TIE_TRY(auto vocab, text::Vocab::open(assets.tokenizer_image));
  TIE_TRY(VocabularyPtr vocabulary, prepare(vocab));
  edge_grammar* compiled = nullptr;
  edge_grammar_error error{};
  auto start = Clock::now();
  int code = edge_grammar_compile(vocabulary.get(), reinterpret_cast<const uint8_t*>(lowered->data()), lowered->size(),
                                  &compiled, &error);
  double compile_us = us_since(start);
  if (code != EDGE_GRAMMAR_OK) {
    fmt::print("refused\t{}\n", error.text);
    return {};
  }
  GrammarPtr grammar(compiled);
  return check_instances(compiled, vocab, compile_us);
}

}  // namespace

void add_grammar_commands(CLI::App& app) {
  auto o = std::make_shared<GrammarOptions>();
  CLI::App* grammar = app.add_subcommand("grammar", "constraints of answers, tried without a node");
  grammar->require_subcommand(1);
  CLI::App* command = grammar->add_subcommand("check",
                                              "accept or reject for each JSON value (one a line on standard input), or "
                                              "refused for a schema that cannot be enforced");
  command->add_option("--schema", o->schema, "JSON schema file")->required();
  command->add_option("--gguf", o->gguf, "GGUF file whose vocabulary is used (its metadata is enough)")->required();
  command->callback([o] {
    if (auto done = check(*o); !done) {
      fmt::print(stderr, "tie: {}\n", done.error().message);
      throw CLI::RuntimeError(1);
    }
  });
}

}  // namespace tie::cli
