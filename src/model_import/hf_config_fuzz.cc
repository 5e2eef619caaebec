// Any config.json is understood or refused; what is understood can be written as metadata.
#include <cstddef>
#include <cstdint>

#include "model_files/json_document.h"
#include "model_import/hf_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const tie::ByteView bytes(data, size);
  const auto document = tie::model_files::parse_json_object(tie::as_text(bytes), "config.json", {1 << 16, 16});
  if (!document) return 0;
  const auto config = tie::model_import::read_config(*document, 16);
  if (!config) return 0;
  tie::model_files::GgufHeader header;
  tie::model_import::write_metadata(*config, "fuzz", header);
  return header.bytes().empty() ? 1 : 0;
}
