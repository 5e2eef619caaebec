// GPUs that are not there, behind device nodes: where /dev/nvidiactl is a unix socket, whoever listens on it and on
// /dev/nvidiaN beside it plays the kernel's part (tests/e2e/emulated_gpus.py). It makes each GPU's memory, lends it to
// who sees that GPU's node, keeps the record, and frees what a process leaves behind, as a real driver does. So the
// emulated driver works inside the sandboxes of a whole node, whose processes share no folder and no environment.
// Threads: any; one lock. Only for tests.
#pragma once
#include <cstddef>
#include <cstdint>

namespace tie::bones::cuda {

// One message on a node's socket, and its answer, with which a descriptor comes for "alloc" and "attach".
struct FakeNodeRequest {
  char what[16];  // alloc, free, attach, detach, device, pin, copy: the words of the record; the last three are told
                  // only
  uint64_t bytes, memory;
};
struct FakeNodeAnswer {
  uint64_t refused, memory;  // memory: its number, as an IPC handle names it
};

class FakeNodes {
 public:
  // Null where there are no such nodes.
  static FakeNodes* here();
  int count() const { return count_; }
  // The N of /dev/nvidiaN of the GPU that this process counts as `ordinal`.
  int number(int ordinal) const { return numbers_[ordinal]; }
  // The memory's descriptor; -1: refused. alloc sets `memory`.
  int alloc(int ordinal, size_t bytes, uint64_t& memory);
  int attach(int ordinal, size_t bytes, uint64_t memory);
  // free and detach: answered when done. Others: told.
  void tell(int ordinal, const char* what, size_t bytes, uint64_t memory = 0);

 private:
  static constexpr int kMost = 16;
  FakeNodes();
  int exchange(int ordinal, const char* what, size_t bytes, uint64_t& memory, bool answered);

  int count_ = 0, numbers_[kMost] = {}, sockets_[kMost] = {};
};

}  // namespace tie::bones::cuda
