#include "client/cli/model_eval_commands.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cmath>
#include <memory>
#include <thread>

#include "inference/bones/single_sequence.h"
#include "model_files/gguf.h"
#include "os/memfd.h"
#include "text/detokenizer.h"
#include "text/model_assets.h"
#include "text/tokenizer.h"

namespace tie::cli {
namespace {

struct EvalOptions {
  std::string gguf, kernels, kv, prompt_ids, force_ids, text, prompt;
  uint32_t threads = std::max(1u, std::thread::hardware_concurrency()), top = 10, context = 512, max_tokens = 64,
           chunk = 512;
};

Result<std::vector<int32_t>> parse_ids(const std::string& list) {
  std::vector<int32_t> ids;
  for (size_t at = 0; at < list.size();) {
    size_t end = list.find_first_of(", ", at);
    if (end == std::string::npos) end = list.size();
    const std::string item = list.substr(at, end - at);
    at = end + 1;
    if (item.empty()) continue;
    char* rest = nullptr;
    const long value = std::strtol(item.c_str(), &rest, 10);
    if (*rest != 0 || value < 0 || value > INT32_MAX)
      return fail(Code::kBadRequest, "\"" + item + "\" is not a token id");
    ids.push_back(static_cast<int32_t>(value));
  }
  return ids;
}

ByteView view(const os::Mapping& file) {
  return {reinterpret_cast<const uint8_t*>(file.bytes().data()), file.size()};
}

Result<bones::SingleSequence> open_model(const os::Mapping& file, const EvalOptions& o, uint32_t logit_rows,
                                         uint32_t max_tokens) {
  bones::SingleSequenceOptions options;
  options.n_threads = o.threads;
  options.kernels = o.kernels;
  options.chunk_rows = o.chunk;
  options.logit_rows = logit_rows;
  options.max_tokens = max_tokens;
  options.kv_type.reset();
  if (!o.kv.empty()) {
    TIE_TRY(options.kv_type, bones::kv_type_named(o.kv));
  }
  return bones::SingleSequence::from_gguf(view(file), options);
}

void print_step(int32_t id, std::span<const float> logits, uint32_t top) {
  std::string best;
  for (const bones::TokenLogprob& t : bones::top_logprobs(logits, top))
    best += fmt::format("{}[{}, {:.5f}]", best.empty() ? "" : ", ", t.id, t.logprob);
  fmt::print("{{\"id\": {}, \"logprob\": {:.5f}, \"top\": [{}]}}\n", id, bones::logprob_of(logits, id), best);
}

// One JSON line for each forced id; without forced ids one line for the best continuation.
Result<void> eval(const EvalOptions& o) {
  TIE_TRY(const os::Mapping file, os::Mapping::file_read_only(o.gguf));
  TIE_TRY(const auto prompt, parse_ids(o.prompt_ids));
  TIE_TRY(const auto forced, parse_ids(o.force_ids));
  if (prompt.empty()) return fail(Code::kBadRequest, "--prompt-ids is empty");
  TIE_TRY(auto model, open_model(file, o, 1, static_cast<uint32_t>(prompt.size() + forced.size() + 1)));
  TIE_TRY(std::span<float> logits, model.append(prompt));
  if (forced.empty()) print_step(bones::top_logprobs(logits, 1)[0].id, logits, o.top);
  for (size_t i = 0; i < forced.size(); ++i) {
    if (static_cast<uint32_t>(forced[i]) >= logits.size())
      return fail(Code::kBadRequest, fmt::format("token id {} is outside the vocabulary", forced[i]));
    print_step(forced[i], logits, o.top);
    if (i + 1 == forced.size()) break;
    TIE_TRY(logits, model.append({&forced[i], 1}));
  }
  return {};
}

struct OpenText {
  Bytes image;
  std::unique_ptr<text::Vocab> vocab;
  std::unique_ptr<text::Tokenizer> tokenizer;
};

Result<OpenText> open_tokenizer(const os::Mapping& file) {
  OpenText out;
  TIE_TRY(const auto gguf, model_files::Gguf::parse(view(file)));
  TIE_TRY(out.image, text::compile_vocab_image(gguf));
  TIE_TRY(auto vocab, text::Vocab::open(out.image));
  out.vocab = std::make_unique<text::Vocab>(std::move(vocab));
  TIE_TRY(auto tokenizer, text::Tokenizer::create(*out.vocab));
  out.tokenizer = std::make_unique<text::Tokenizer>(std::move(tokenizer));
  return out;
}

Result<void> perplexity(const EvalOptions& o) {
  const PerplexityOptions options{o.gguf, o.text, o.kernels, o.kv, o.threads, o.context};
  auto progress = [](size_t chunk, double value) {
    fmt::print("{{\"chunk\": {}, \"perplexity\": {:.4f}}}\n", chunk, value);
    std::fflush(stdout);
  };
  TIE_TRY(const Perplexity result, measure_perplexity(options, progress));
  fmt::print("{{\"perplexity\": {:.4f}, \"tokens\": {}, \"context\": {}, \"kernels\": \"{}\"}}\n", result.value,
             result.tokens, o.context, result.kernels);
  return {};
}

// Plain greedy continuation of a text.
Result<void> generate(const EvalOptions& o) {
  TIE_TRY(const os::Mapping file, os::Mapping::file_read_only(o.gguf));
  TIE_TRY(const OpenText text, open_tokenizer(file));
  TIE_TRY(const std::vector<int32_t> ids,
          text.tokenizer->tokenize(o.prompt, {.parse_special = true, .add_special = true}));
  if (ids.empty()) return fail(Code::kBadRequest, "the prompt is empty");
  TIE_TRY(auto model, open_model(file, o, 1, static_cast<uint32_t>(ids.size() + o.max_tokens + 1)));
  TIE_TRY(std::span<float> logits, model.append(ids));
  text::Detokenizer words(*text.vocab);
  const auto start = std::chrono::steady_clock::now();
  uint32_t n = 0;
  for (; n < o.max_tokens; ++n) {
    const int32_t id = bones::top_logprobs(logits.first(text.vocab->size()), 1)[0].id;
    if (text.vocab->is_end_of_generation(id)) break;
    fmt::print("{}", words.push(id));
    std::fflush(stdout);
    TIE_TRY(logits, model.append({&id, 1}));
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  fmt::print("{}\n", words.finish());
  fmt::print(stderr, "{} tokens, {:.1f} tokens/s, kernels {}\n", n, n / seconds, model.kernels());
  return {};
}

void add_common(CLI::App& command, EvalOptions& o) {
  command.add_option("--gguf", o.gguf, "model file")->required();
  command.add_option("--kernels", o.kernels, "kernel set: reference, avx2, avx512 (default: the best of this CPU)");
  command.add_option("--kv", o.kv, "KV cache: f16, bf16 or q8 (default: as a node runs the model)");
  command.add_option("--threads", o.threads, "compute threads")->check(CLI::Range(1, 256));
  command.add_option("--chunk", o.chunk, "rows of one forward pass")->check(CLI::Range(1, 8192));
}

void on_run(CLI::App& command, std::shared_ptr<EvalOptions> o, Result<void> (*action)(const EvalOptions&)) {
  command.callback([o, action] {
    if (auto done = action(*o); !done) {
      fmt::print(stderr, "{}\n", done.error().message);
      throw CLI::RuntimeError(1);
    }
  });
}

// Adds up what the chunks' second halves cost.
struct Score {
  std::span<int32_t> chunk;
  double negative_log = 0;
  uint64_t count = 0;
  double value() const { return std::exp(negative_log / static_cast<double>(count)); }
};

void score_token(void* context, uint32_t index, std::span<float> logits) {
  auto& score = *static_cast<Score*>(context);
  if (index + 1 >= score.chunk.size()) return;
  score.negative_log -= bones::logprob_of(logits, score.chunk[index + 1]);
  ++score.count;
}

}  // namespace

Result<Perplexity> measure_perplexity(const PerplexityOptions& options,
                                      const std::function<void(size_t, double)>& progress) {
  EvalOptions o;
  o.threads = options.threads, o.kernels = options.kernels, o.kv = options.kv,
  o.chunk = std::min(options.context, 512u);
  TIE_TRY(const os::Mapping file, os::Mapping::file_read_only(options.gguf));
  TIE_TRY(const os::Mapping words, os::Mapping::file_read_only(options.text));
  TIE_TRY(const OpenText text, open_tokenizer(file));
  TIE_TRY(std::vector<int32_t> ids,
          text.tokenizer->tokenize(as_text(view(words)), {.parse_special = false, .add_special = true}));
  if (options.context < 4 || ids.size() < options.context)
    return fail(Code::kBadRequest,
                fmt::format("the text has {} tokens, fewer than one context of {}", ids.size(), options.context));
  TIE_TRY(auto model, open_model(file, o, 64, options.context));
  Score score;
  for (size_t chunk = 0; chunk < ids.size() / options.context; ++chunk) {
    score.chunk = std::span(ids).subspan(chunk * options.context, options.context);
    if (text.vocab->add_bos() && text.vocab->bos()) score.chunk[0] = *text.vocab->bos();
    model.restart();
    TIE_CHECK_OK(model.append_each(score.chunk, options.context / 2, score_token, &score));
    if (progress) progress(chunk + 1, score.value());
  }
  return Perplexity{score.value(), score.count, std::string(model.kernels())};
}

void add_eval_commands(CLI::App& app) {
  auto o = std::make_shared<EvalOptions>();
  CLI::App* eval_command =
      app.add_subcommand("eval", "log-probabilities and best candidates along given token ids, as JSON lines");
  add_common(*eval_command, *o);
  eval_command->add_option("--prompt-ids", o->prompt_ids, "token ids of the prompt, comma separated")->required();
  eval_command->add_option("--force-ids", o->force_ids, "token ids that follow; each is scored, then fed");
  eval_command->add_option("--top", o->top, "candidates to print")->check(CLI::Range(0, 1000));
  on_run(*eval_command, o, eval);

  o = std::make_shared<EvalOptions>();
  CLI::App* perplexity_command =
      app.add_subcommand("perplexity", "perplexity of a text (second half of each chunk), as JSON lines");
  add_common(*perplexity_command, *o);
  perplexity_command->add_option("--text", o->text, "text file")->required();
  perplexity_command->add_option("--context", o->context, "tokens of a chunk")->check(CLI::Range(4, 1 << 20));
  on_run(*perplexity_command, o, perplexity);

  o = std::make_shared<EvalOptions>();
  CLI::App* generate_command = app.add_subcommand("generate", "greedy continuation of a text, without a node");
  add_common(*generate_command, *o);
  generate_command->add_option("--prompt", o->prompt, "text to continue; control tokens are recognised")->required();
  generate_command->add_option("--max-tokens", o->max_tokens, "tokens to generate")->check(CLI::Range(1, 1 << 20));
  on_run(*generate_command, o, generate);
}

}  // namespace tie::cli
