// An app that says anything on kvxfer.sock and offers any memory as a buffer: the service must answer or hang up, and
// what it accepts must be readable to its last block.
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "inference/hosts/server/kvxfer_service.h"
#include "kvxfer.pb.h"
#include "os/framed_message.h"

using namespace tie;

namespace {

cache::KvDescription own() {
  cache::KvDescription d{.block_count = 8, .block_tokens = 16, .block_bytes = 64};
  d.model_id.fill(1);
  d.release_id.fill(2);
  d.layout_id.fill(3);
  return d;
}

// The fuzzer's bytes over a well-formed buffer, so that it need not guess the magic.
os::Fd buffer_of(const uint8_t* data, size_t size) {
  auto d = own();
  d.block_count = 2;
  auto producer = cache::KvProducer::create(d);
  std::vector<std::byte> block(d.block_bytes);
  for (uint32_t i = 0; i < 2; ++i) (void)producer->write_block(i, block);
  producer->finish(32);
  auto fd = producer->fd();
  for (size_t i = 0; i + 2 < size; i += 3) {
    size_t at = (data[i] | (data[i + 1] & 0x1f) << 8);
    (void)!::pwrite(fd, data + i + 2, 1, static_cast<off_t>(at));
  }
  auto copy = os::Fd(::dup(fd));
  return copy;  // the payload is zeroed with the producer; header and states are what is tried here
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static std::string path = "/tmp/kvxfer-fuzz-" + std::to_string(::getpid());
  static auto service = *runtime_host::KvxferService::start(*os::listen_unix(path), own());
  if (size < 1) return 0;
  auto app = os::connect_unix(path, Deadline::in_ms(1000));
  if (!app) std::abort();
  std::string handle(16, 'h');
  if (data[0] % 2 == 0) {
    (void)os::send_frame(app->get(), {data + 1, size - 1}, {}, Deadline::in_ms(100));
  } else {
    v1::KvxferRequest request;
    request.mutable_offer_import()->set_handle(handle);
    os::Fd memory = buffer_of(data + 1, size - 1);
    int fd = memory.get();
    (void)os::send_message(app->get(), request, Deadline::in_ms(100), std::span<const int>(&fd, 1));
  }
  (void)os::receive_message<v1::KvxferReply>(app->get(), 4096, Deadline::in_ms(500), 1);
  auto taken = service->take_import(handle);
  std::vector<std::byte> out(own().block_bytes);
  for (uint32_t i = 0; taken && i < taken->block_count(); ++i)
    if (!taken->read(i, out)) std::abort();
  return 0;
}
