#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "os/memfd.h"
#include "text/detokenizer.h"
#include "text/model_assets.h"

namespace tie::text {
namespace {

namespace fs = std::filesystem;

fs::path shared_data() {
  const char* shared = std::getenv("TIE_SHARED_DATA");
  return shared ? fs::path(shared) : fs::path(TIE_SOURCE_DIR) / ".." / "shared" / "data";
}

std::string read_text(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream all;
  all << in.rdbuf();
  return all.str();
}

// An image, the vocabulary over it and its tokenizer.
struct Loaded {
  Bytes image;
  std::unique_ptr<Vocab> vocab;
  std::unique_ptr<Tokenizer> tokenizer;
};

Result<Loaded> load_gguf(const fs::path& path) {
  TIE_TRY(auto mapping, os::Mapping::file_read_only(path.string()));
  const ByteView bytes(reinterpret_cast<const uint8_t*>(mapping.bytes().data()), mapping.size());
  TIE_TRY(auto gguf, model_files::Gguf::parse(bytes, true));
  Loaded out;
  TIE_TRY(out.image, compile_vocab_image(gguf));
  TIE_TRY(auto vocab, Vocab::open(out.image));
  out.vocab = std::make_unique<Vocab>(std::move(vocab));
  TIE_TRY(auto tokenizer, Tokenizer::create(*out.vocab));
  out.tokenizer = std::make_unique<Tokenizer>(std::move(tokenizer));
  return out;
}

std::vector<fs::path> vocabularies() {
  std::vector<fs::path> out;
  const fs::path folder = shared_data() / "tokenizers";
  if (!fs::exists(folder)) return out;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().extension() == ".gguf") out.push_back(entry.path());
  std::sort(out.begin(), out.end());
  return out;
}

std::vector<std::string> split_text(const std::string& text, const std::string& separator) {
  std::vector<std::string> out;
  size_t at = 0;
  for (size_t found; (found = text.find(separator, at)) != std::string::npos; at = found + separator.size())
    out.push_back(text.substr(at, found - at));
  out.push_back(text.substr(at));
  return out;
}

std::string joined(const std::vector<TokenId>& ids) {
  std::string out;
  for (TokenId id : ids) out += (out.empty() ? "" : " ") + std::to_string(id);
  return out;
}

std::string short_name(const fs::path& path) {
  return path.stem().string().substr(std::string("ggml-vocab-").size());
}

TEST(Tokenizer, GivesTheIdsOfEveryVocabularyTestFile) {
  if (vocabularies().empty()) GTEST_SKIP() << "public suite is absent: " << shared_data() / "tokenizers";
  for (const auto& path : vocabularies()) {
    const auto loaded = load_gguf(path);
    ASSERT_TRUE(loaded) << path << ": " << loaded.error().message;
    const auto texts = split_text(read_text(path.string() + ".inp"), "\n__ggml_vocab_test__\n");
    const auto expected = split_text(read_text(path.string() + ".out"), "\n");
    for (size_t i = 0; i < texts.size(); ++i) {
      std::string line = expected.at(i);
      line.erase(0, line.find_first_not_of(' ') == std::string::npos ? line.size() : line.find_first_not_of(' '));
      EXPECT_EQ(joined(loaded->tokenizer->tokenize(texts[i]).value()), line)
          << short_name(path) << " text " << i << ": " << texts[i];
    }
  }
}

TEST(Tokenizer, GivesTheIdsOfTheExtraTexts) {
  if (vocabularies().empty()) GTEST_SKIP() << "public suite is absent: " << shared_data() / "tokenizers";
  std::map<int, std::string> texts;
  std::ifstream in(shared_data() / "tokenizers" / "extra_texts.jsonl");
  for (std::string line; std::getline(in, line);) {
    const auto item = nlohmann::json::parse(line);
    texts[item["id"]] = item["text"];
  }
  for (const auto& path : vocabularies()) {
    const auto loaded = load_gguf(path);
    ASSERT_TRUE(loaded) << loaded.error().message;
    const Tokenizer& t = *loaded->tokenizer;
    std::ifstream expected(shared_data() / "tokenizers" / "extra_expected" / (short_name(path) + ".jsonl"));
    int shown = 0;
    for (std::string line; std::getline(expected, line) && shown < 10;) {
      const auto item = nlohmann::json::parse(line);
      const std::string& text = texts.at(item["id"]);
      const auto check = [&](const char* kind, const std::vector<TokenId>& wanted, const std::vector<TokenId>& got) {
        if (wanted == got) return;
        ++shown;
        ADD_FAILURE() << short_name(path) << " " << kind << " of text " << item["id"] << " " << text.substr(0, 200)
                      << "\nwanted " << joined(wanted).substr(0, 300) << "\ngot    " << joined(got).substr(0, 300);
      };
      const std::vector<TokenId> plain = item["plain"];
      check("plain", plain, t.tokenize(text).value());
      check("with_bos_eos", item.contains("with_bos_eos") ? item["with_bos_eos"].get<std::vector<TokenId>>() : plain,
            t.tokenize(text, {.add_special = true}).value());
      check("parse_special", item.contains("parse_special") ? item["parse_special"].get<std::vector<TokenId>>() : plain,
            t.tokenize(text, {.parse_special = true}).value());
      if (item.value("roundtrip", false)) {
        EXPECT_EQ(detokenize(*loaded->vocab, plain), text) << short_name(path);
      }
    }
  }
}

}  // namespace
}  // namespace tie::text
