#include "inference/hosts/server/vocab_table.h"

namespace tie::runtime_host {

Result<engine::TokenTable> token_table(const text::Vocab& vocab) {
  engine::TokenTable table;
  for (uint32_t i = 0; i < vocab.size(); ++i) {
    auto id = static_cast<text::TokenId>(i);
    table.add(vocab.is_control(id) ? std::string_view() : as_text(vocab.token_bytes(id)));
  }
  for (uint32_t id : vocab.end_of_generation()) TIE_CHECK_OK(table.add_end_id(static_cast<int32_t>(id)));
  return table;
}

}  // namespace tie::runtime_host
