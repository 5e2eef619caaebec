// Vocabularies of the slice in the repository (tests/data/text): tokenizer.json against the ids of the usual library,
// GGUF against the same ids; the detokenizer; hostile images; time on long runs.
#include <gtest/gtest.h>
#include <time.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "text/detokenizer.h"
#include "text/model_assets.h"
#include "text/tokenizer.h"

namespace tie::text {
namespace {

namespace fs = std::filesystem;

fs::path slice() {
  return fs::path(TIE_SOURCE_DIR) / "tests" / "data" / "text" / "tokenizers";
}

std::string read_text(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream all;
  all << in.rdbuf();
  return all.str();
}

struct Loaded {
  Bytes image;
  std::unique_ptr<Vocab> vocab;
  std::unique_ptr<Tokenizer> tokenizer;
};

Loaded load(Result<Bytes> image) {
  Loaded out;
  EXPECT_TRUE(image) << (image ? "" : image.error().message);
  out.image = std::move(*image);
  out.vocab = std::make_unique<Vocab>(Vocab::open(out.image).value());
  out.tokenizer = std::make_unique<Tokenizer>(Tokenizer::create(*out.vocab).value());
  return out;
}
Loaded load_json(const std::string& name) {
  return load(compile_vocab_image_from_json(read_text(slice() / (name + ".json"))));
}
Loaded load_gguf() {
  auto assets = compile_model_assets(slice() / "byte_level.gguf");
  EXPECT_TRUE(assets) << (assets ? "" : assets.error().message);
  return load(std::move(assets->tokenizer_image));
}

// GGUF carries no strip attributes: texts that need them are left out there.
void check(const Loaded& loaded, const std::string& name, bool strips = true) {
  std::ifstream in(slice() / (name + ".expected.jsonl"));
  int n = 0;
  for (std::string line; std::getline(in, line); ++n) {
    const auto item = nlohmann::json::parse(line);
    if (!strips && item["text"].get<std::string>().find("<|end|>") != std::string::npos) continue;
    EXPECT_EQ(loaded.tokenizer->tokenize(item["text"].get<std::string>(), {.parse_special = true}).value(),
              item["ids"].get<std::vector<TokenId>>())
        << item["text"];
  }
  EXPECT_GT(n, 50);
}

TEST(TinyVocab, ByteLevelJsonGivesTheLibrarysIds) {
  check(load_json("byte_level"), "byte_level");
}
TEST(TinyVocab, ByteLevelGgufGivesTheSameIds) {
  check(load_gguf(), "byte_level", false);
}
TEST(TinyVocab, CharacterJsonGivesTheLibrarysIds) {
  check(load_json("characters"), "characters");
}
TEST(TinyVocab, UnigramJsonGivesTheLibrarysIds) {
  check(load_json("unigram"), "unigram");
}

TEST(TinyVocab, PlainTextNeverYieldsAControlToken) {
  for (const char* name : {"byte_level", "characters", "unigram"}) {
    const Loaded loaded = load_json(name);
    for (uint32_t id = 0; id < loaded.vocab->size(); ++id) {
      if (!loaded.vocab->is_control(static_cast<TokenId>(id))) continue;
      const std::string text(as_text(loaded.vocab->token_bytes(static_cast<TokenId>(id))));
      const auto ids = loaded.tokenizer->tokenize("x" + text + "y").value();
      for (TokenId got : ids)
        EXPECT_FALSE(loaded.vocab->is_control(got) && got != loaded.vocab->unk().value_or(-1)) << name << " " << text;
    }
  }
}

TEST(TinyVocab, StripsSpaceAroundTokensThatAskForIt) {
  const Loaded loaded = load_json("byte_level");
  const auto ids = [&](std::string_view text) {
    return loaded.tokenizer->tokenize(text, {.parse_special = true}).value();
  };
  EXPECT_EQ(ids("<|end|> \n a"), ids("<|end|>a"));
  EXPECT_EQ(ids("a \n <|user|>"), ids("a<|user|>"));
  EXPECT_NE(ids("<|im_end|> a"), ids("<|im_end|>a"));
}

// Every way to cut text into tokens must give back the same text, character by character.
TEST(Detokenizer, DeltasConcatenateAndNeverSplitACharacter) {
  for (const char* name : {"byte_level", "characters"}) {
    const Loaded loaded = load_json(name);
    const std::string text = "Grüße 👨‍👩‍👧‍👦 你好 𝕏 e\xCC\x81 \xF0\x9F\x98\x80!";
    const auto ids = loaded.tokenizer->tokenize(text).value();
    Detokenizer words(*loaded.vocab, {.at_start = true});
    std::string all;
    for (TokenId id : ids) {
      const std::string delta = words.push(id);
      EXPECT_EQ(delta.find("\xEF\xBF\xBD"), std::string::npos);
      all += delta;
    }
    all += words.finish();
    EXPECT_EQ(all, text) << name;
    EXPECT_EQ(detokenize(*loaded.vocab, ids), text) << name;
  }
}

TEST(Detokenizer, MarksAnUnfinishedCharacterOnlyAtTheEnd) {
  const Loaded loaded = load_json("byte_level");
  const auto ids = loaded.tokenizer->tokenize("\xF0\x9F\xA6\x84").value();  // one character, several tokens
  ASSERT_GT(ids.size(), 1u);
  Detokenizer words(*loaded.vocab);
  EXPECT_EQ(words.push(ids[0]), "");
  EXPECT_FALSE(words.pending().empty());
  EXPECT_EQ(words.finish(), "\xEF\xBF\xBD");
  EXPECT_EQ(words.finish(), "");
  // Bytes that can never become a character are marked at once, and what follows is kept.
  const auto bad = loaded.tokenizer->tokenize("\xFF").value();
  EXPECT_EQ(words.push(bad[0]), "\xEF\xBF\xBD");
  EXPECT_EQ(words.push(loaded.tokenizer->tokenize("a").value()[0]), "a");
  EXPECT_EQ(token_bytes_for_logprobs(*loaded.vocab, ids[0]).size(), loaded.vocab->token_bytes(ids[0]).size());
  EXPECT_EQ(words.push(999999), "");
  EXPECT_EQ(words.push(-1), "");
}

TEST(VocabImage, RefusesEveryTruncationAndSurvivesEveryFlippedByte) {
  const Loaded loaded = load_json("characters");
  for (size_t cut = 0; cut < loaded.image.size(); cut += 97)
    EXPECT_FALSE(Vocab::open(ByteView(loaded.image).first(cut)));
  Bytes image = loaded.image;
  size_t opened = 0;
  for (size_t at = 0; at < image.size(); at += at < sizeof(image::Header) ? 1 : 61) {
    image[at] ^= 0xff;
    if (auto vocab = Vocab::open(image)) {
      ++opened;
      EXPECT_FALSE(vocab->verify_digest()) << at;
      if (auto tokenizer = Tokenizer::create(*vocab))
        (void)tokenizer->tokenize("Hello, wörld 123 <s>", {.parse_special = true, .add_special = true});
    }
    image[at] ^= 0xff;
  }
  EXPECT_GT(opened, 100u);
  EXPECT_TRUE(Vocab::open(image)->verify_digest());
}

double thread_cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

TEST(Tokenizer, TakesTimeNearlyLinearInTheText) {
  for (const char* name : {"byte_level", "characters"}) {
    const Loaded loaded = load_json(name);
    for (const char* unit : {"a", " ", "\n", "7", "<", "é", "<|im_", "Aツ", " \n", "'s"}) {
      const auto time = [&](size_t n) {
        std::string text;
        while (text.size() < n) text += unit;
        // This thread's processor time, best of three: a busy machine is not a slow tokenizer.
        double best = 1e9;
        for (int i = 0; i < 3; ++i) {
          const double start = thread_cpu_seconds();
          EXPECT_TRUE(loaded.tokenizer->tokenize(text));
          best = std::min(best, thread_cpu_seconds() - start);
        }
        return best;
      };
      // 32 times the text: quadratic work would take about 1000 times as long. Caches and a busy machine cost a small
      // factor.
      const double small = time(10000) + 2e-4, large = time(320000);
      EXPECT_LT(large, small * 400) << name << " " << unit;
    }
  }
}

TEST(TokenizerJson, RefusesWhatItCannotDoByName) {
  const auto message = [](std::string_view json) {
    auto image = compile_vocab_image_from_json(json);
    return image ? std::string("accepted") : image.error().message;
  };
  EXPECT_NE(message(R"({"model":{"type":"WordPiece","vocab":{"a":0}}})").find("WordPiece"), std::string::npos);
  EXPECT_NE(message(R"({"normalizer":{"type":"Precompiled"},"model":{"type":"BPE","vocab":{"a":0},"merges":[]}})")
                .find("Precompiled"),
            std::string::npos);
  EXPECT_NE(
      message(R"({"pre_tokenizer":{"type":"BertPreTokenizer"},"model":{"type":"BPE","vocab":{"a":0},"merges":[]}})")
          .find("BertPreTokenizer"),
      std::string::npos);
  EXPECT_NE(message(R"({"model":{"type":"BPE","vocab":{"a":4000000000},"merges":[]}})"), "accepted");
  EXPECT_NE(message(R"({"model":{"type":"BPE","vocab":{"a":0},"merges":["a"]}})"), "accepted");
  EXPECT_NE(message(std::string(100000, '[')), "accepted");
  EXPECT_EQ(message(R"({"normalizer":null,"model":{"type":"BPE","vocab":{"a":0},"merges":[]}})"), "accepted");
}

}  // namespace
}  // namespace tie::text
