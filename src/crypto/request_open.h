// The node's half of request encryption, linked by cb_jobhelper only: resumes the HPKE context from a shared secret
// that workload_servicesd returned, opens the DEK and the chunks, seals the response. One object per request, one
// thread at a time. Untrusted input: every byte given to open(). Errors are uniform where a caller must not learn more:
// kCorrupt, one sentence. Format: docs/wire-format.md. Source: ARCHITECTURE.md, "Request encryption".
#pragma once
#include "crypto/chunk_keys.h"
#include "crypto/hpke_receiver.h"
#include "crypto/wire_labels.h"

namespace tie::crypto {

// Opens the chunks of a request in order. Chunks that came before the key are buffered by the caller (bounded), not
// here.
class ChunkOpener {
 public:
  static Result<ChunkOpener> create(ByteView dek, ByteView key_id, ByteView clear_parameters,
                                    size_t max_request_bytes = kMaxRequestBytes);
  // The chunk's plaintext, part of the stream of messages. Errors: kCorrupt (changed, dropped, repeated, reordered,
  // other parameters), kTooLarge (sealed bytes over the limit), kFailedPrecondition (after the final chunk or after an
  // error). After any error the object is spent.
  Result<Bytes> open(ByteView chunk, bool final);
  bool finished() const { return state_ == State::kFinished; }
  // Call when the stream ends: kCorrupt unless the final chunk was opened.
  Result<void> end_of_stream() const;

 private:
  enum class State { kOpen, kFinished, kBroken };
  ChunkOpener(AeadKey key, size_t limit) : key_(std::move(key)), bytes_left_(limit) {}
  Result<Bytes> open_checked(ByteView chunk, bool final);
  AeadKey key_;
  Bytes base_nonce_;
  uint64_t index_ = 0;
  size_t bytes_left_;
  State state_ = State::kOpen;
};

// Seals response events: each call is one event, one chunk. The padding to a bucket is the app's (base/byte_buckets.h).
class ResponseSealer {
 public:
  static Result<ResponseSealer> create(ByteView response_secret, ByteView enc);
  Result<Bytes> seal(ByteView event,
                     bool final);  // kFailedPrecondition after the final event; kTooLarge over kMaxChunkPlaintextBytes
  bool finished() const { return finished_; }
  const Bytes& salt() const { return salt_; }  // kResponseSaltBytes of this response's own, for the response header

 private:
  ResponseSealer(AeadKey key, Bytes base_nonce, Bytes salt)
      : key_(std::move(key)), base_nonce_(std::move(base_nonce)), salt_(std::move(salt)) {}
  AeadKey key_;
  Bytes base_nonce_, salt_;
  uint64_t index_ = 0;
  bool finished_ = false;
};

// Has libcrypto build its tables of algorithms, which takes a millisecond and a half in a fresh process: called while a
// helper waits, so that its request does not.
void prepare_opening();

// What the helper holds for its one request.
class OpenedRequest {
 public:
  // shared_secret: as returned by workload_servicesd for `enc`. kCorrupt when the sealed DEK does not open.
  static Result<OpenedRequest> open(const HpkeSuite& suite, ByteView key_id, ByteView enc, ByteView shared_secret,
                                    ByteView sealed_dek);
  Result<ChunkOpener> chunk_opener(ByteView clear_parameters, size_t max_request_bytes = kMaxRequestBytes) const;
  Result<ResponseSealer> response_sealer() const;
  // The answer to the app's DeriveKey(purpose): the DEK itself never leaves this process. purpose: 1 to
  // kMaxPurposeBytes bytes.
  Result<SecretBytes> derive_key(std::string_view purpose) const;

 private:
  OpenedRequest() = default;
  Bytes key_id_, enc_;
  SecretBytes dek_, response_secret_;
};

}  // namespace tie::crypto
