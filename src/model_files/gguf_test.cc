#include "model_files/gguf.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

namespace tie::model_files {
namespace {

namespace fs = std::filesystem;

fs::path suite() {
  const char* shared = std::getenv("TIE_SHARED_DATA");
  return (shared ? fs::path(shared) : fs::path(TIE_SOURCE_DIR) / ".." / "shared" / "data") / "model_files";
}

// gzread passes plain files through unchanged.
Bytes read_maybe_gzip(const fs::path& path) {
  Bytes out;
  gzFile file = gzopen(path.c_str(), "rb");
  uint8_t buffer[65536];
  int n = 0;
  while (file && (n = gzread(file, buffer, sizeof buffer)) > 0) out.insert(out.end(), buffer, buffer + n);
  if (file) gzclose(file);
  return out;
}

void check_manifest(const fs::path& manifest, const fs::path& folder) {
  if (!fs::exists(manifest)) GTEST_SKIP() << "public suite is absent: " << manifest;
  const auto cases = nlohmann::json::parse(std::ifstream(manifest));
  for (const auto& one : cases) {
    const std::string name = one["file"];
    const Bytes bytes = read_maybe_gzip(folder / name);
    const bool needs_data = name.starts_with("DATA_");
    const auto file = Gguf::parse(bytes, !needs_data);
    EXPECT_EQ(file.has_value(), one["loads"].get<bool>()) << name << ": " << (file ? "accepted" : file.error().message);
    if (!file) {
      EXPECT_FALSE(file.error().message.empty());
    }
    if (file && one.contains("n_kv")) {
      EXPECT_EQ(file->metadata().size(), one["n_kv"].get<size_t>()) << name;
    }
    if (file && one.contains("n_tensors")) {
      EXPECT_EQ(file->tensors().size(), one["n_tensors"].get<size_t>()) << name;
    }
  }
}

TEST(Gguf, AgreesWithTheHandcraftedSuite) {
  check_manifest(suite() / "gguf_handcrafted" / "manifest.json", suite() / "gguf_handcrafted");
}
TEST(Gguf, AgreesWithTheFuzzCorpus) {
  check_manifest(suite() / "gguf_fuzz_corpus_manifest.json", suite() / "gguf_fuzz_corpus");
}
TEST(Gguf, AgreesWithTheTinyFiles) {
  check_manifest(suite() / "gguf_tiny_manifest.json", suite() / "gguf_tiny");
}

TEST(Gguf, GivesEachTensorItsOwnBytes) {
  const fs::path path = suite() / "gguf_handcrafted" / "DATA_SUCCESS.gguf.gz";
  if (!fs::exists(path)) GTEST_SKIP() << "public suite is absent: " << path;
  const Bytes bytes = read_maybe_gzip(path);
  const auto file = Gguf::parse(bytes);
  ASSERT_TRUE(file) << file.error().message;
  ASSERT_FALSE(file->tensors().empty());
  for (const GgufTensor& tensor : file->tensors()) {
    const ByteView data = file->tensor_data(tensor);
    ASSERT_EQ(data.size(), tensor.bytes);
    for (size_t j = 0; j < data.size(); ++j)
      ASSERT_EQ(data[j], uint8_t((j + tensor.offset) % 256)) << tensor.name << " byte " << j;
    EXPECT_EQ(file->find_tensor(tensor.name), &tensor);
  }
}

// A file built here, so that a clone without the suites still tests the reader.
class Writer {
 public:
  Writer(uint64_t tensors, uint64_t entries) {
    text("GGUF");
    number<uint32_t>(3);
    number(tensors);
    number(entries);
  }
  template <typename T>
  void number(T value) {
    const auto* p = reinterpret_cast<const uint8_t*>(&value);
    bytes.insert(bytes.end(), p, p + sizeof value);
  }
  void text(std::string_view raw) { append(bytes, raw); }
  void string(std::string_view raw) {
    number<uint64_t>(raw.size());
    text(raw);
  }
  void tensor(std::string_view name, std::vector<uint64_t> dims, uint32_t type, uint64_t offset) {
    string(name);
    number<uint32_t>(dims.size());
    for (uint64_t dim : dims) number(dim);
    number(type);
    number(offset);
  }
  void align() { bytes.resize((bytes.size() + 31) / 32 * 32); }
  Bytes bytes;
};

TEST(Gguf, ReadsScalarsStringsAndArrays) {
  Writer w(0, 4);
  w.string("a"), w.number<uint32_t>(4), w.number<uint32_t>(7);
  w.string("b"), w.number<uint32_t>(8), w.string("text");
  w.string("c"), w.number<uint32_t>(9), w.number<uint32_t>(8), w.number<uint64_t>(2), w.string("x"), w.string("");
  w.string("d"), w.number<uint32_t>(9), w.number<uint32_t>(5), w.number<uint64_t>(2), w.number<int32_t>(-1),
      w.number<int32_t>(5);
  const auto file = Gguf::parse(w.bytes);
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_EQ(file->get_u64("a").value(), 7u);
  EXPECT_EQ(file->get_f64("a").value(), 7.0);
  EXPECT_EQ(file->get_string("b").value(), "text");
  EXPECT_EQ(file->get_array("c").value().strings().value(), (std::vector<std::string_view>{"x", ""}));
  EXPECT_EQ(file->get_array("d").value().integers().value(), (std::vector<int64_t>{-1, 5}));
  EXPECT_EQ(file->get_u64("b").error().code, Code::kBadRequest);
  EXPECT_EQ(file->get_u64("z").error().code, Code::kNotFound);
  EXPECT_EQ(file->get_array("c").value().integers().error().code, Code::kBadRequest);
}

TEST(Gguf, RefusesEveryTruncation) {
  Writer w(1, 1);
  w.string("k"), w.number<uint32_t>(9), w.number<uint32_t>(8), w.number<uint64_t>(1), w.string("abc");
  w.tensor("t", {32, 2}, 8, 0);
  w.align();
  w.bytes.resize(w.bytes.size() + 68);
  ASSERT_TRUE(Gguf::parse(w.bytes));
  for (size_t cut = 0; cut < w.bytes.size(); ++cut) EXPECT_FALSE(Gguf::parse(ByteView(w.bytes).first(cut))) << cut;
}

TEST(Gguf, RefusesOverlapsWrapsAndUnknownTypes) {
  const auto parse_one = [](std::vector<uint64_t> dims, uint32_t type, uint64_t offset) {
    Writer w(1, 0);
    w.tensor("t", std::move(dims), type, offset);
    w.align();
    return Gguf::parse(w.bytes, true).has_value();
  };
  EXPECT_TRUE(parse_one({32, 4}, 8, 0));
  EXPECT_FALSE(parse_one({32, 4}, 8, 32));
  EXPECT_FALSE(parse_one({33, 4}, 8, 0));
  EXPECT_FALSE(parse_one({32, 4}, 4, 0));
  EXPECT_FALSE(parse_one({uint64_t{1} << 32, uint64_t{1} << 32}, 0, 0));
  EXPECT_FALSE(parse_one({uint64_t{1} << 62}, 0, 0));
}

}  // namespace
}  // namespace tie::model_files
