// The client's half of request encryption: draws the DEK, seals it to the node's KEM key, seals the request's byte
// stream in chunks, opens the response. One object per request and direction, one thread at a time; never reused, never
// for a second request. Secrets die with the objects. Format: docs/wire-format.md. Source: ARCHITECTURE.md, "Request
// encryption"; RFC 9180; RFC 9458's chunked form.
#pragma once
#include "crypto/chunk_keys.h"
#include "crypto/request_key.h"
#include "crypto/wire_labels.h"

namespace tie::crypto {

// Cuts are the caller's: each call seals one chunk of the stream of length-prefixed messages, at most
// kMaxChunkPlaintextBytes.
class ChunkSealer {
 public:
  // clear_parameters: the exact bytes that travel in clear beside the chunks and are bound into their key.
  static Result<ChunkSealer> create(ByteView dek, ByteView key_id, ByteView clear_parameters);
  // The chunk as it travels. After a final one: kFailedPrecondition.
  Result<Bytes> seal(ByteView plaintext, bool final);

 private:
  ChunkSealer(AeadKey key, Bytes base_nonce) : key_(std::move(key)), base_nonce_(std::move(base_nonce)) {}
  AeadKey key_;
  Bytes base_nonce_;
  uint64_t index_ = 0;
  bool finished_ = false;
};

// Opens the events of the response in order. One event = one chunk. Made when the response header, which carries the
// salt, has come.
class ResponseOpener {
 public:
  // kCorrupt for a chunk that was changed, dropped, repeated or reordered; kFailedPrecondition after the final one or
  // after an error.
  Result<Bytes> open(ByteView chunk, bool final);
  bool finished() const { return finished_; }
  // Call when the stream ends: kCorrupt, with a sentence for the user, unless the authenticated final event was opened.
  Result<void> end_of_stream() const;

 private:
  friend class SealedRequest;
  ResponseOpener(AeadKey key, Bytes base_nonce) : key_(std::move(key)), base_nonce_(std::move(base_nonce)) {}
  Result<Bytes> open_checked(ByteView chunk, bool final);
  AeadKey key_;
  Bytes base_nonce_;
  uint64_t index_ = 0;
  bool finished_ = false, broken_ = false;
};

// Everything a client keeps for one attempt at a request. A retry makes a new one (fresh DEK).
class SealedRequest {
 public:
  static Result<SealedRequest> create(const RequestKey& to);
  const Bytes& enc() const { return enc_; }                // encapsulated key, travels in clear
  const Bytes& sealed_dek() const { return sealed_dek_; }  // kSealedDekBytes
  ByteView dek() const { return dek_.view(); }             // for `tie node prove-stateless`, which looks for it
  Result<ChunkSealer> chunk_sealer(ByteView clear_parameters) const;
  // salt: kResponseSaltBytes, from the response header. kBadRequest for another length.
  Result<ResponseOpener> response_opener(ByteView salt) const;

 private:
  SealedRequest() = default;
  Bytes key_id_, enc_, sealed_dek_;
  SecretBytes dek_, response_secret_;
};

}  // namespace tie::crypto
