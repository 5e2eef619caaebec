// Packs a GGUF file, or a tiny random model, into the weights image and the vocabulary image that afm-runtime takes by
// --weights and --tokenizer.
#include <CLI/CLI.hpp>
#include <cstdio>

#include "inference/bones/testing/tiny_model.h"
#include "inference/bones/weights_image.h"
#include "os/fd.h"
#include "os/memfd.h"
#include "text/model_assets.h"

namespace {

using namespace tie;

Result<void> pack(ByteView gguf, const std::string& weights, const std::string& tokenizer) {
  TIE_TRY(auto image, bones::OwnedImage::from_gguf(gguf));
  TIE_CHECK_OK(
      os::write_file_atomic(weights, {reinterpret_cast<const uint8_t*>(image.bytes().data()), image.bytes().size()}));
  TIE_TRY(auto file, model_files::Gguf::parse(gguf));
  TIE_TRY(Bytes vocab, text::compile_vocab_image(file));
  return os::write_file_atomic(tokenizer, vocab);
}

struct Tiny {
  uint32_t context = 512;
  uint64_t seed = 1;
  bool floats = false;
  std::string keep;  // where to write the model file itself, too
};

Result<void> run(const std::string& gguf, const std::string& weights, const std::string& tokenizer, const Tiny& tiny) {
  if (gguf == "tiny") {
    bones::testing::TinyModelOptions options;
    options.context_length = tiny.context;
    options.seed = tiny.seed;
    if (tiny.floats) options.weights = options.embedding = model_files::TensorType::kF32;
    const Bytes file = bones::testing::tiny_model(options);
    if (!tiny.keep.empty()) TIE_CHECK_OK(os::write_file_atomic(tiny.keep, file));
    return pack(file, weights, tokenizer);
  }
  TIE_TRY(auto file, os::Mapping::file_read_only(gguf));
  return pack({reinterpret_cast<const uint8_t*>(file.bytes().data()), file.size()}, weights, tokenizer);
}

}  // namespace

int main(int argc, char** argv) {
  std::string gguf, weights, tokenizer;
  Tiny tiny;
  CLI::App app;
  app.add_option("gguf", gguf, "a GGUF file, or the word tiny")->required();
  app.add_option("weights", weights)->required();
  app.add_option("tokenizer", tokenizer)->required();
  app.add_option("--context", tiny.context, "of the tiny model");
  app.add_option("--seed", tiny.seed, "of the tiny model");
  app.add_flag("--floats", tiny.floats, "the tiny model's weights are F32");
  app.add_option("--gguf", tiny.keep, "write the tiny model's file here, too");
  CLI11_PARSE(app, argc, argv);
  auto done = run(gguf, weights, tokenizer, tiny);
  if (!done) std::fprintf(stderr, "%s\n", done.error().message.c_str());
  return done ? 0 : 1;
}
