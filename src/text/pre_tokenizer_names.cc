// What the names in a GGUF's `tokenizer.ggml.pre` mean. Source: the names that llama.cpp's converter writes.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <initializer_list>

#include "text/split_rules.h"
#include "text/vocab_source.h"

namespace tie::text {
namespace {

struct Entry {
  std::initializer_list<std::string_view> names;
  std::initializer_list<SplitKind> steps;
  uint32_t flags = 0;
};

const Entry kEntries[] = {
    {{"default"}, {kDefaultPunctuation, kGpt2, kDigitRun, kAsciiDigits3}},
    {{"llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano"},
     {kLlama3},
     image::kIgnoreMerges | image::kAddBos},
    {{"dbrx", "smaug-bpe", "glm4", "chatglm-bpe"}, {kLlama3}},
    {{"qwen2", "deepseek-r1-qwen", "stablelm2", "hunyuan", "megrez", "kormo", "solar-open", "grok-2", "f2llmv2"},
     {kQwen2}},
    {{"qwen35"}, {kQwen35}},
    {{"bailingmoe", "bailingmoe2", "llada-moe"}, {kBailing}},
    {{"seed-coder"}, {kSeedCoder}},
    {{"gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"}, {kO200kGguf}},
    {{"tekken"}, {kTekkenGguf}, image::kIgnoreMerges | image::kAddBos},
    {{"kimi-k2"}, {kKimi}},
    {{"deepseek-llm"}, {kNewlineChar, kSpaceCased, kSpaceAsciiPunctuation, kTrailingSpace, kCjkDeepseek, kDigitRun}},
    {{"deepseek-coder"}, {kNewlineChar, kSpaceLetters, kSpacePunctuation, kCjkDeepseek, kDigit}},
    {{"deepseek-v3", "hunyuan-dense", "joyai-llm"}, {kDigits3, kCjkKana, kDeepseek3}},
    {{"afmoe"}, {kDigitsFromRight3, kCjkAsian, kDeepseek3}},
    {{"falcon"}, {kFalconPunctuation, kGpt2, kAsciiDigits3}},
    {{"starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b"}, {kDigit, kGpt2}},
    {{"gpt-2",           "gpt2",     "phi-2",   "mpt",        "olmo",       "jais",       "trillion",
      "granite-docling", "jina-es",  "jina-de", "jina-v1-en", "jina-v2-es", "jina-v2-de", "jina-v2-code",
      "roberta-bpe",     "gigachat", "exaone4", "a.x-4.0",    "mellum",     "modern-bert"},
     {kGpt2}},
    {{"bloom", "poro-chat", "gpt3-finnish"}, {kBloom}},
    {{"viking"}, {kBloom, kDigit}},
};

}  // namespace

Result<void> apply_pre_tokenizer_name(std::string_view name, VocabSource& source) {
  for (const Entry& entry : kEntries) {
    if (std::find(entry.names.begin(), entry.names.end(), name) == entry.names.end()) continue;
    for (SplitKind kind : entry.steps) source.steps.push_back({kind});
    source.flags |= entry.flags;
    return {};
  }
  return fail(Code::kUnsupportedFeature, fmt::format("the pre-tokenizer \"{}\" of this vocabulary is not known", name));
}

}  // namespace tie::text
