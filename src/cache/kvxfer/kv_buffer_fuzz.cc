// A hostile producer: any header, any states, any size. The consumer refuses it or gives bytes inside the mapping. The
// first byte of the input chooses: an even one is the memory's size in pages and the rest lies at its start; an odd one
// begins with a good buffer of three blocks and overwrites words of it, each given as 2 bytes of place and 4 of value.
#include <cstring>
#include <optional>
#include <vector>

#include "cache/kvxfer/kv_buffer.h"

namespace {

using namespace tie;

constexpr size_t kPage = 4096;

std::optional<os::Fd> rubbish(const uint8_t* data, size_t size) {
  auto memory = os::create_memfd("hostile", kPage * (1 + data[0] % 64));
  if (!memory) return std::nullopt;
  auto mapping = os::Mapping::read_write(memory->get());
  if (!mapping) return std::nullopt;
  std::memcpy(mapping->writable().data(), data + 1, std::min(size - 1, mapping->size()));
  if (!os::add_seals(memory->get(), os::kSealSize)) return std::nullopt;
  return std::move(*memory);
}

std::optional<os::Fd> changed(cache::KvProducer& producer, const uint8_t* data, size_t size) {
  os::Fd memory(producer.fd());
  auto copy = memory.duplicate();
  memory.release();
  auto mapping = os::Mapping::read_write(producer.fd());
  if (!copy || !mapping) return std::nullopt;
  for (size_t at = 1; at + 6 <= size; at += 6) {
    size_t place = (data[at] << 8 | data[at + 1]) % (2 * kPage - 4);
    std::memcpy(mapping->writable().data() + place, data + at + 2, 4);
  }
  return std::move(*copy);
}

void consume(os::Fd memory) {
  size_t bytes = *os::file_size(memory.get());
  auto consumer = cache::KvConsumer::attach(std::move(memory));
  if (!consumer) return;
  const cache::KvDescription& d = consumer->description();
  tie_check(d.block_count * d.block_bytes <= bytes, "no block lies outside the memory");
  std::vector<std::byte> out(d.block_bytes);
  for (uint32_t block : {0u, d.block_count - 1, d.block_count, UINT32_MAX}) {
    (void)consumer->wait_block(block, Deadline::in_ms(0));
    if (consumer->read_block(block, out)) tie_check(block < d.block_count, "only a block of the buffer is read");
  }
  if (auto tokens = consumer->wait_finished(Deadline::in_ms(0)))
    tie_check(*tokens <= uint64_t{d.block_count} * d.block_tokens, "no more tokens than the blocks hold");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1) return 0;
  if (data[0] % 2 == 0) {
    if (auto memory = rubbish(data, size)) consume(std::move(*memory));
    return 0;
  }
  auto producer = cache::KvProducer::create({.block_count = 3, .block_tokens = 16, .block_bytes = 512});
  if (!producer) return 0;
  (void)producer->write_block(1, std::vector<std::byte>(512));
  producer->finish(16);
  if (auto memory = changed(*producer, data, size)) consume(std::move(*memory));
  return 0;
}
