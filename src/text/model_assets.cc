#include "text/model_assets.h"

#include "os/memfd.h"
#include "text/vocab_image.h"

namespace tie::text {

Result<ModelAssets> compile_model_assets(const std::string& gguf_path) {
  TIE_TRY(os::Mapping mapping, os::Mapping::file_read_only(gguf_path));
  const ByteView bytes(reinterpret_cast<const uint8_t*>(mapping.bytes().data()), mapping.size());
  TIE_TRY(const auto gguf, model_files::Gguf::parse(bytes, true));
  ModelAssets out;
  TIE_TRY(out.tokenizer_image, compile_vocab_image(gguf));
  TIE_TRY(const Vocab vocab, Vocab::open(out.tokenizer_image));
  out.vocab_size = vocab.size();
  out.bos = vocab.bos();
  out.eos = vocab.eos();
  out.chat_template = std::string(gguf.get_string("tokenizer.chat_template").value_or(""));
  out.architecture = std::string(gguf.get_string("general.architecture").value_or(""));
  out.name = std::string(gguf.get_string("general.name").value_or(""));
  out.context_length = gguf.get_u64(out.architecture + ".context_length").value_or(0);
  return out;
}

}  // namespace tie::text
