// What a runtime says to tie-model-owner about the prefix pool (proto/owner.proto). One connection, one thread; every
// call has a deadline. Errors: those of the owner, with its sentence; kIo / kDeadline when it does not answer.
#pragma once
#include <string>
#include <vector>

#include "base/clock.h"
#include "cache/prefix/prefix_trie.h"
#include "os/fd.h"

namespace tie::v1 {
class OwnerReply;
class OwnerRequest;
}  // namespace tie::v1

namespace tie::prefix {

class OwnerLink {
 public:
  static Result<OwnerLink> connect(const std::string& owner_socket, std::string model, uint32_t rank,
                                   Deadline deadline);

  // The registered prompts: the only source of tokens for a warm-up. Empty when there are none.
  Result<std::vector<PromptEntry>> prompts(Deadline deadline);
  // A writable pool of block_count blocks.
  Result<os::Fd> prepare(uint64_t block_bytes, uint32_t block_count, const crypto::Digest& layout_id,
                         Deadline deadline);
  Result<void> seal(const TrieMetadata& metadata, Deadline deadline);
  struct Attached {
    os::Fd fd;
    TrieMetadata metadata;
  };
  // kNotReady: not warm.
  Result<Attached> attach(Deadline deadline);
  Result<void> reset(Deadline deadline);

 private:
  OwnerLink() = default;
  Result<std::pair<v1::OwnerReply, std::vector<os::Fd>>> ask(const v1::OwnerRequest& request, Deadline deadline);
  os::Fd socket_;
  std::string model_;
  uint32_t rank_ = 0;
};

}  // namespace tie::prefix
