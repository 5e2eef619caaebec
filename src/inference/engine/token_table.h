// What the engine must know of a vocabulary: how many ids the tokenizer has, the bytes each stands for, and which ids
// end a generation. Built once by the host from the vocabulary image; read by every thread afterwards. Control tokens
// have no bytes: they never are text. Ids at or above size() (padding of the embedding matrix) are never sampled and
// never accepted in a prompt.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace tie::engine {

class TokenTable {
 public:
  TokenTable() { offsets_.push_back(0); }

  // Ids are given in order, 0 first.
  void add(std::string_view bytes) {
    bytes_.append(bytes);
    offsets_.push_back(static_cast<uint32_t>(bytes_.size()));
  }
  // kBadRequest for an id outside the table.
  Result<void> add_end_id(int32_t id);

  uint32_t size() const { return static_cast<uint32_t>(offsets_.size() - 1); }
  bool contains(int32_t id) const { return id >= 0 && static_cast<uint32_t>(id) < size(); }
  std::string_view bytes(int32_t id) const {  // id must be in the table
    auto i = static_cast<size_t>(id);
    return {bytes_.data() + offsets_[i], offsets_[i + 1] - offsets_[i]};
  }
  bool is_end(int32_t id) const;
  std::span<const int32_t> end_ids() const { return end_ids_; }  // ascending

 private:
  std::string bytes_;
  std::vector<uint32_t> offsets_;
  std::vector<int32_t> end_ids_;
};

}  // namespace tie::engine
