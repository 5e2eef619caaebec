// A hostile producer: any header, any states, any size. The consumer refuses it or gives bytes inside the mapping.
#include <cstring>
#include <vector>

#include "cache/kvxfer/kv_buffer.h"

namespace {
constexpr size_t kSmallest = 4096, kLargest = 1 << 18;
}

// Input: size of the memory in pages (1 byte), then what lies at its start.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tie;
  if (size < 1) return 0;
  size_t bytes = std::min(kSmallest * (1 + data[0] % 64), kLargest);
  auto memory = os::create_memfd("hostile", bytes);
  if (!memory) return 0;
  {
    auto mapping = os::Mapping::read_write(memory->get());
    if (!mapping) return 0;
    std::memcpy(mapping->writable().data(), data + 1, std::min(size - 1, bytes));
  }
  if (!os::add_seals(memory->get(), os::kSealSize)) return 0;
  auto consumer = cache::KvConsumer::attach(std::move(*memory));
  if (!consumer) return 0;
  const cache::KvDescription& d = consumer->description();
  tie_check(d.block_count * d.block_bytes <= bytes, "no block lies outside the memory");
  std::vector<std::byte> out(d.block_bytes);
  for (uint32_t block : {0u, d.block_count - 1, d.block_count, UINT32_MAX}) {
    (void)consumer->wait_block(block, Deadline::in_ms(0));
    if (consumer->read_block(block, out)) tie_check(block < d.block_count, "only a block of the buffer is read");
  }
  if (auto tokens = consumer->wait_finished(Deadline::in_ms(0)))
    tie_check(*tokens <= uint64_t{d.block_count} * d.block_tokens, "no more tokens than the blocks hold");
  return 0;
}
