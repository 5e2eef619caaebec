#include "model_files/safetensors.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

namespace tie::model_files {
namespace {

namespace fs = std::filesystem;

fs::path suite() {
  const char* shared = std::getenv("TIE_SHARED_DATA");
  return (shared ? fs::path(shared) : fs::path(TIE_SOURCE_DIR) / ".." / "shared" / "data") / "model_files" /
         "safetensors_cases";
}

Bytes read_all(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return Bytes(std::istreambuf_iterator<char>(in), {});
}

Bytes file_of(const std::string& header, size_t data_bytes) {
  Bytes out(8 + header.size() + data_bytes);
  const uint64_t length = header.size();
  std::memcpy(out.data(), &length, 8);
  std::memcpy(out.data() + 8, header.data(), header.size());
  for (size_t i = 0; i < data_bytes; ++i) out[8 + header.size() + i] = static_cast<uint8_t>(i);
  return out;
}

// Files that the format allows and this reader refuses on purpose.
const std::set<std::string> kStricter = {"made_5000_dims.safetensors", "made_duplicate_tensor_key.safetensors",
                                         "made_tensor_name_1MB.safetensors"};

TEST(Safetensors, AgreesWithThePublicSuite) {
  if (!fs::exists(suite() / "manifest.json")) GTEST_SKIP() << "public suite is absent: " << suite();
  int accepted = 0, refused = 0;
  for (const auto& one : nlohmann::json::parse(std::ifstream(suite() / "manifest.json"))) {
    const std::string name = one["file"];
    const Bytes bytes = read_all(suite() / name);
    const auto file = Safetensors::parse(bytes);
    const bool expected = one["reference"]["accepted"].get<bool>() && !kStricter.contains(name);
    EXPECT_EQ(file.has_value(), expected) << name << ": " << (file ? "accepted" : file.error().message);
    file ? ++accepted : ++refused;
    if (!file) {
      EXPECT_FALSE(file.error().message.empty());
      continue;
    }
    const auto& tensors = one["reference"]["tensors"];
    EXPECT_EQ(file->tensors().size(), tensors.is_array() ? tensors.size() : tensors.get<size_t>()) << name;
  }
  std::printf("safetensors suite: %d accepted, %d refused (%zu of them legal)\n", accepted, refused, kStricter.size());
}

TEST(Safetensors, GivesEachTensorItsOwnBytes) {
  const Bytes bytes =
      file_of(R"({"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[2,3],"data_offsets":[8,20]},)"
              R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
              20);
  const auto file = Safetensors::parse(bytes);
  ASSERT_TRUE(file) << file.error().message;
  ASSERT_EQ(file->tensors().size(), 2u);
  EXPECT_EQ(file->tensors()[0].name, "a");
  EXPECT_EQ(file->metadata().at("format"), "pt");
  const SafetensorsTensor* b = file->find("b");
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(b->type, SafetensorsType::kBF16);
  EXPECT_EQ(b->shape, (std::vector<uint64_t>{2, 3}));
  EXPECT_EQ(b->data.size(), 12u);
  EXPECT_EQ(b->data[0], 8);
  EXPECT_EQ(file->find("c"), nullptr);
}

TEST(Safetensors, NamesTheReasonOfARefusal) {
  const auto refusal = [](const std::string& header, size_t data_bytes) {
    const Bytes bytes = file_of(header, data_bytes);
    const auto file = Safetensors::parse(bytes);
    return file ? std::string("accepted") : file.error().message;
  };
  const std::string a = R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  EXPECT_EQ(refusal("{" + a + "}", 8), "accepted");
  EXPECT_NE(refusal("{" + a + "," + a + "}", 8).find("twice"), std::string::npos);
  EXPECT_NE(refusal("{" + a + "}", 9).find("belong to no tensor"), std::string::npos);
  EXPECT_NE(refusal("{" + a + "}", 7).find("ends after the file"), std::string::npos);
  EXPECT_NE(refusal(R"({"a":{"shape":[2],"data_offsets":[0,8]}})", 8).find("no dtype"), std::string::npos);
  EXPECT_NE(refusal(R"({"a":{"dtype":"F32","data_offsets":[0,8]}})", 8).find("no shape"), std::string::npos);
  EXPECT_NE(refusal(R"({"a":{"dtype":"F32","shape":[2]}})", 8).find("data_offsets"), std::string::npos);
  EXPECT_NE(refusal(R"({"a":{"dtype":"F4","shape":[2],"data_offsets":[0,1]}})", 1).find("unknown dtype"),
            std::string::npos);
  EXPECT_NE(refusal("{" + a + R"(,"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})", 12).find("does not start"),
            std::string::npos);
  EXPECT_NE(
      refusal(R"({"a":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0).find("overflows"),
      std::string::npos);
  EXPECT_NE(refusal(R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,8]}})", 8).find("dimension"),
            std::string::npos);
}

}  // namespace
}  // namespace tie::model_files
