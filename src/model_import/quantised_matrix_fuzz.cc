// Any safetensors file, read as one quantised matrix by any method, is understood or refused; of what is understood
// every row can be read, as floats and as blocks.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "model_files/gguf_header.h"
#include "model_import/quantised_matrix.h"

using namespace tie;

// Bytes: method, zeros less one, n - 1, k / 8 - 1, block rows, block inputs; then the file.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr size_t kHead = 6;
  if (size < kHead) return 0;
  const auto file = model_files::Safetensors::parse({data + kHead, size - kHead});
  if (!file) return 0;
  model_import::QuantScheme scheme;
  scheme.method = static_cast<model_import::QuantScheme::Method>(data[0] % 5);
  scheme.zeros_less_one = data[1] & 1;
  if (data[4] != 0 && data[5] != 0) scheme.block_rows = data[4], scheme.block_inputs = data[5];
  const uint64_t n = data[2] + 1u, k = 8 * (data[3] + 1u);
  std::set<std::string> used;
  const auto find = [&](const std::string& name) { return file->find(name); };
  const auto matrix = model_import::QuantisedMatrix::find(find, scheme, "", n, k, used);
  if (!matrix || !*matrix) return 0;
  std::vector<float> row(k);
  for (uint64_t i = 0; i < n; ++i) {
    (*matrix)->read_row(i, row);
    Bytes blocks;
    const auto type = (*matrix)->block_type();
    if (!type) continue;
    const auto appended = (*matrix)->append_blocks(i, *type, blocks);
    if (appended && blocks.size() != model_files::gguf_tensor_bytes(*type, {k})) __builtin_trap();
  }
  return 0;
}
