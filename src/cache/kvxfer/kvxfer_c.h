// The C face of kv_buffer.h, for hosts that are not C++ (the Triton host's Python, kvxfer.py). Same rules, same limits,
// same threads: one producer, one consumer. Every call returns 0 or a code of the product's error table
// (docs/errors.md, numbers of proto/common.proto); tie_kv_last_error() then gives the sentence, per thread, until the
// next failing call. Null pointers are TIE_KV_BAD_REQUEST, never a crash. Objects are destroyed by their _destroy; a
// destroyed producer zeroes its payload and tells the consumer.
#ifndef TIE_CACHE_KVXFER_C_H
#define TIE_CACHE_KVXFER_C_H
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tie_kv_producer tie_kv_producer;
typedef struct tie_kv_consumer tie_kv_consumer;

typedef struct tie_kv_description {
  uint8_t model_id[32];
  uint8_t release_id[32];
  uint8_t layout_id[32];
  uint32_t block_count;
  uint32_t block_tokens;
  uint64_t block_bytes;
} tie_kv_description;

const char* tie_kv_last_error(void);

int tie_kv_producer_create(const tie_kv_description* description, tie_kv_producer** out);
int tie_kv_producer_fd(const tie_kv_producer* producer, int* out); /* the producer's own: duplicate it by sending it */
int tie_kv_producer_begin(tie_kv_producer* producer, uint32_t block, void** place); /* block_bytes long */
int tie_kv_producer_commit(tie_kv_producer* producer, uint32_t block);
int tie_kv_producer_finish(tie_kv_producer* producer, uint32_t token_count);
int tie_kv_producer_abort(tie_kv_producer* producer);
void tie_kv_producer_destroy(tie_kv_producer* producer);

int tie_kv_consumer_attach(int fd, tie_kv_consumer** out); /* takes fd, also when it fails */
int tie_kv_consumer_description(const tie_kv_consumer* consumer, tie_kv_description* out);
/* peer: a descriptor that hangs up when the producer dies; -1 for none. */
int tie_kv_consumer_wait_block(tie_kv_consumer* consumer, uint32_t block, int64_t timeout_ms, int peer);
int tie_kv_consumer_wait_finished(tie_kv_consumer* consumer, int64_t timeout_ms, int peer, uint32_t* token_count);
/* A committed block's shared bytes, block_bytes long, read-only: read each byte once. */
int tie_kv_consumer_block(const tie_kv_consumer* consumer, uint32_t block, const void** bytes);
void tie_kv_consumer_destroy(tie_kv_consumer* consumer);

#ifdef __cplusplus
}
#endif
#endif
