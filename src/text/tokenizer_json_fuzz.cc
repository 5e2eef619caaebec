// Any bytes as a tokenizer.json: an error, or an image that opens and tokenizes.
#include "text/model_assets.h"
#include "text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tie;
  using namespace tie::text;
  auto image = compile_vocab_image_from_json(as_text({data, size}));
  if (!image) return 0;
  auto vocab = Vocab::open(*image);
  if (!vocab) __builtin_trap();
  auto tokenizer = Tokenizer::create(*vocab);
  if (tokenizer) (void)tokenizer->tokenize("Hello  wörld <s> 12345\n\n\t it's \xff", {.parse_special = true});
  return 0;
}
