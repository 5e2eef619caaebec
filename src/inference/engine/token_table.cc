#include "inference/engine/token_table.h"

#include <algorithm>

namespace tie::engine {

Result<void> TokenTable::add_end_id(int32_t id) {
  if (!contains(id)) return fail(Code::kBadRequest, "an end-of-generation token id is outside the vocabulary");
  auto at = std::lower_bound(end_ids_.begin(), end_ids_.end(), id);
  if (at == end_ids_.end() || *at != id) end_ids_.insert(at, id);
  return {};
}

bool TokenTable::is_end(int32_t id) const {
  return std::binary_search(end_ids_.begin(), end_ids_.end(), id);
}

}  // namespace tie::engine
