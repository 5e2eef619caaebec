// Moving KV blocks in and out of the engine: the seams that a host implements over kvxfer buffers, and the blocks that
// wait to be copied out. Used by the engine's thread only. Whole blocks only; a block is copied once in each direction.
// Owns: one reference of each block that waits, so that it cannot be used again before its copy is made. Secrets: keys
// and values of one user, for the process of that user's request. Source: spec, "Moving the KV cache between
// processes".
#pragma once
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "inference/engine/kv_pool.h"

namespace tie::engine {

// Blocks of an earlier turn, from the prompt's first token on. They belong to one request and are read once.
class KvImport {
 public:
  virtual ~KvImport() = default;
  virtual uint32_t block_count() const = 0;
  // One copy into `out`, one block of the KV layout. Never waits. Any error: nothing of the import is used.
  virtual Result<void> read(uint32_t index, std::span<std::byte> out) = 0;
};

// Where a finished request's blocks go.
class KvExport {
 public:
  virtual ~KvExport() = default;
  virtual uint32_t first_block() const = 0;  // of the sequence; earlier ones are not wanted
  virtual uint32_t max_blocks() const = 0;
  // One copy of the sequence's block first_block() + index. Never waits. An error ends the export.
  virtual Result<void> write(uint32_t index, std::span<const std::byte> block) = 0;
  // Exactly one of the two, last.
  virtual void finish(uint32_t blocks) = 0;
  virtual void abandon() = 0;
};

class KvExports {
 public:
  static constexpr int64_t kDeadlineMs = 5'000;  // from the request's end; then the blocks are given up uncopied

  explicit KvExports(KvBlockPool& pool) : pool_(pool) {}
  ~KvExports() { abandon_all(); }
  KvExports(const KvExports&) = delete;

  // Pins what is wanted of a sequence's whole blocks. Returns how many blocks will be copied; with none the export is
  // finished at once.
  uint32_t begin(std::shared_ptr<KvExport> target, std::span<const uint32_t> whole_blocks);
  // Copies until `left` bytes have been; takes them off it. True when there was anything to do.
  bool copy(size_t& left);
  void abandon_all();
  bool empty() const { return waiting_.empty(); }

 private:
  struct Waiting {
    std::shared_ptr<KvExport> target;
    std::vector<uint32_t> blocks;
    uint32_t next = 0;
    Deadline deadline;
  };
  void release(Waiting& one);

  KvBlockPool& pool_;
  std::deque<Waiting> waiting_;
};

}  // namespace tie::engine
