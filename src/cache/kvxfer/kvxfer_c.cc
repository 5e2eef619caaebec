#include "cache/kvxfer/kvxfer_c.h"

#include <cstring>
#include <exception>
#include <string>

#include "cache/kvxfer/kv_buffer.h"

struct tie_kv_producer {
  tie::cache::KvProducer producer;
};
struct tie_kv_consumer {
  tie::cache::KvConsumer consumer;
};

namespace {

using namespace tie;

thread_local std::string last_error;

int failed(const Error& error) {
  last_error = error.message;
  return static_cast<int>(error.code);
}

// Runs `call` with every pointer checked and every exception of the standard library kept on this side.
template <typename Call>
int guarded(std::initializer_list<const void*> pointers, Call&& call) {
  for (const void* pointer : pointers)
    if (pointer == nullptr) return failed({Code::kBadRequest, "a null pointer was passed to kvxfer"});
  try {
    Result<void> done = call();
    return done ? 0 : failed(done.error());
  } catch (const std::exception&) {
    return failed({Code::kInternal, "out of memory in kvxfer"});
  }
}

static_assert(sizeof(tie_kv_description) == sizeof(cache::KvDescription) &&
              offsetof(tie_kv_description, block_bytes) == offsetof(cache::KvDescription, block_bytes));

}  // namespace

extern "C" {

const char* tie_kv_last_error(void) {
  return last_error.c_str();
}

int tie_kv_producer_create(const tie_kv_description* description, tie_kv_producer** out) {
  return guarded({description, out}, [&]() -> Result<void> {
    cache::KvDescription wanted;
    std::memcpy(static_cast<void*>(&wanted), description, sizeof wanted);
    TIE_TRY(cache::KvProducer made, cache::KvProducer::create(wanted));
    *out = new tie_kv_producer{std::move(made)};
    return {};
  });
}

int tie_kv_producer_fd(const tie_kv_producer* producer, int* out) {
  return guarded({producer, out}, [&]() -> Result<void> {
    *out = producer->producer.fd();
    return {};
  });
}

int tie_kv_producer_begin(tie_kv_producer* producer, uint32_t block, void** place) {
  return guarded({producer, place}, [&]() -> Result<void> {
    TIE_TRY(std::span<std::byte> bytes, producer->producer.begin_block(block));
    *place = bytes.data();
    return {};
  });
}

int tie_kv_producer_commit(tie_kv_producer* producer, uint32_t block) {
  return guarded({producer}, [&] { return producer->producer.commit_block(block); });
}

int tie_kv_producer_finish(tie_kv_producer* producer, uint32_t token_count) {
  return guarded({producer}, [&]() -> Result<void> {
    producer->producer.finish(token_count);
    return {};
  });
}

int tie_kv_producer_abort(tie_kv_producer* producer) {
  return guarded({producer}, [&]() -> Result<void> {
    producer->producer.abort();
    return {};
  });
}

void tie_kv_producer_destroy(tie_kv_producer* producer) {
  delete producer;
}

int tie_kv_consumer_attach(int fd, tie_kv_consumer** out) {
  os::Fd taken(fd);
  return guarded({out}, [&]() -> Result<void> {
    TIE_TRY(cache::KvConsumer made, cache::KvConsumer::attach(std::move(taken)));
    *out = new tie_kv_consumer{std::move(made)};
    return {};
  });
}

int tie_kv_consumer_description(const tie_kv_consumer* consumer, tie_kv_description* out) {
  return guarded({consumer, out}, [&]() -> Result<void> {
    std::memcpy(out, &consumer->consumer.description(), sizeof *out);
    return {};
  });
}

int tie_kv_consumer_wait_block(tie_kv_consumer* consumer, uint32_t block, int64_t timeout_ms, int peer) {
  return guarded({consumer}, [&] { return consumer->consumer.wait_block(block, Deadline::in_ms(timeout_ms), peer); });
}

int tie_kv_consumer_wait_finished(tie_kv_consumer* consumer, int64_t timeout_ms, int peer, uint32_t* token_count) {
  return guarded({consumer, token_count}, [&]() -> Result<void> {
    TIE_TRY(*token_count, consumer->consumer.wait_finished(Deadline::in_ms(timeout_ms), peer));
    return {};
  });
}

int tie_kv_consumer_block(const tie_kv_consumer* consumer, uint32_t block, const void** bytes) {
  return guarded({consumer, bytes}, [&]() -> Result<void> {
    TIE_TRY(std::span<const std::byte> view, consumer->consumer.committed_block(block));
    *bytes = view.data();
    return {};
  });
}

void tie_kv_consumer_destroy(tie_kv_consumer* consumer) {
  delete consumer;
}

}  // extern "C"
