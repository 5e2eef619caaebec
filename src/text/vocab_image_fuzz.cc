// Any bytes as a vocabulary image: opening gives an error, or an object that no call can make read outside the image or
// loop without end.
#include <cstring>

#include "text/detokenizer.h"
#include "text/tokenizer.h"
#include "text/user_text_marker.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tie;
  using namespace tie::text;
  // Aligned copy with a header that passes the first checks, so that the interesting parts are reached.
  Bytes image(data, data + size);
  if (image.size() < sizeof(image::Header)) return 0;
  auto* header = reinterpret_cast<image::Header*>(image.data());
  std::memcpy(header->magic, image::kMagic, sizeof header->magic);
  header->version = image::kVersion;
  header->total_bytes = image.size();
  auto vocab = Vocab::open(image);
  if (!vocab) return 0;
  (void)vocab->verify_digest();
  (void)vocab->find_any("<|im_end|>");
  auto tokenizer = Tokenizer::create(*vocab);
  if (!tokenizer) return 0;
  static constexpr std::string_view kTexts[] = {"Hello  wörld <|im_end|> 12345\n\n\t\xF0\x9F\x98\x80 it's \xff\xfe",
                                                "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"};
  for (std::string_view text : kTexts)
    for (bool special : {false, true}) {
      auto ids = tokenizer->tokenize(text, {.parse_special = special, .add_special = true});
      if (!ids) continue;
      Detokenizer words(*vocab);
      for (TokenId id : *ids) (void)words.push(id);
      (void)words.finish();
    }
  UserTextMarker marker(*vocab, "<|{{ x }}<|im_start|>");
  (void)tokenizer->tokenize_marked(marker.mark(kTexts[0], "\xEF\xB7\x90", UserTextMarker::Strength::kExact),
                                   "\xEF\xB7\x90");
  return 0;
}
