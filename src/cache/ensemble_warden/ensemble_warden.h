// EnsembleWarden: seals a conversation's KV blocks under the turn key that the user's device holds, and opens them
// again. The only code that turns cached state into ciphertext; embedded by tie-cloud-app alone. State: empty -> keyed
// -> spent. A key is given once; any failure spends the object and wipes the key; a spent object does nothing more.
// Nonces: every segment and manifest has its own random 32-byte salt and its own AES-256-GCM key derived from turn key
// and salt, so no (key, nonce) pair is ever used twice. One thread. Formats byte by byte: docs/kv-cache-format.md.
// Source: spec, "Per-user KV cache".
#pragma once
#include <functional>
#include <vector>

#include "base/secret_bytes.h"
#include "crypto/sha256.h"

namespace tie::cache {

constexpr size_t kTurnKeyBytes = 32;
constexpr size_t kSaltBytes = 32;
constexpr uint32_t kMaxSegments = 4096;
constexpr uint32_t kMaxCachedTokens = 1u << 20;
constexpr uint32_t kMaxBlocksPerSegment = 1u << 16;
constexpr uint64_t kMaxBlockBytes = 64ull << 20;

// What the cached state belongs to; bound into every seal, so that another model, release or layout cannot open it.
struct CacheIdentity {
  crypto::Digest model_id{};
  crypto::Digest release_id{};
  crypto::Digest layout_id{};
};

// Whole blocks of consecutive tokens, written once and never changed.
struct SegmentShape {
  uint32_t first_token = 0;  // a multiple of block_tokens
  uint32_t block_count = 0;
  uint32_t block_tokens = 0;
  uint64_t block_bytes = 0;  // plaintext bytes of one block
};

// How a manifest names a segment. `salt` gives its key and its store id; `digest` is the SHA-256 of the sealed
// segment's header and tags: the tags authenticate every block, and hashing them alone costs nothing beside the cipher.
struct SegmentReference {
  std::array<uint8_t, kSaltBytes> salt{};
  uint32_t first_token = 0;
  uint32_t block_count = 0;
  crypto::Digest digest{};
};

struct Manifest {
  std::vector<int32_t> tokens;             // the cached sequence
  std::vector<SegmentReference> segments;  // consecutive from token 0; may end before the tokens do
};

class EnsembleWarden {
 public:
  explicit EnsembleWarden(const CacheIdentity& identity) : identity_(identity) {}

  // kFailedPrecondition unless empty; kBadRequest unless 32 bytes long.
  Result<void> set_key(SecretBytes turn_key);

  // Where the conversation's manifest lies in the store.
  Result<crypto::Digest> manifest_id();
  // Where a segment lies in the store.
  Result<crypto::Digest> segment_id(const SegmentReference& segment);

  // Bytes of a sealed segment of this shape; kOutOfRange beyond the limits above.
  static Result<size_t> sealed_segment_bytes(const SegmentShape& shape);
  // The digest that a manifest names; `sealed` is sealed_segment_bytes(shape) long.
  static crypto::Digest segment_digest(const SegmentShape& shape, ByteView sealed);
  // Seals all blocks into `out`, which is exactly sealed_segment_bytes long. `block(i)` gives block i's plaintext,
  // block_bytes long; it is asked once for each i in order.
  Result<SegmentReference> seal_segment(const SegmentShape& shape, const std::function<ByteView(uint32_t)>& block,
                                        std::span<uint8_t> out);
  // Checks digest and shape, then opens block by block into `place(i)`, block_bytes long each. On any failure
  // (kCorrupt) the object is spent and every place already written is zeroed.
  Result<void> open_segment(const SegmentReference& segment, const SegmentShape& shape, ByteView sealed,
                            const std::function<std::span<uint8_t>(uint32_t)>& place);

  Result<Bytes> seal_manifest(const Manifest& manifest);
  Result<Manifest> open_manifest(ByteView sealed);

  bool spent() const { return state_ == State::kSpent; }

 private:
  enum class State { kEmpty, kKeyed, kSpent };
  Result<void> require_key() const;
  Result<SecretBytes> derive(std::string_view purpose, ByteView salt, size_t length = 32) const;
  template <typename T>
  Result<T> spend(Result<T> failure);

  CacheIdentity identity_;
  State state_ = State::kEmpty;
  SecretBytes turn_key_;
};

}  // namespace tie::cache
