// One request's use of the encrypted KV cache: before the runtime is asked, what an earlier turn left is fetched,
// compared with the prompt token by token, opened into a buffer that the runtime takes over; after the answer is out,
// the new whole blocks are sealed and stored, and the manifest is replaced if nobody else did meanwhile. Nothing in
// here ever fails a request: whatever is missing, wrong, late or tampered with leads to less reuse or none, and to the
// same text. Threads: one. Every wait has a deadline. Secrets: turn keys and, for moments, plaintext KV in shared
// memory; both are wiped as soon as they have served. Source: spec, "Per-user KV cache".
#pragma once
#include <span>
#include <string>
#include <vector>

#include "cache/store/store_client.h"
#include "request/cloud_app/kv_link.h"

namespace tie::request::app {

struct TurnKeys {
  SecretBytes read;   // empty: nothing is looked for
  SecretBytes write;  // empty, and not `ephemeral`: nothing is kept
  // Tokens of a turn under `read` that ended a moment ago and may still be on its way into the store; 0: none.
  uint32_t awaited_tokens = 0;
  bool ephemeral = false;  // no key from the device: what is kept is sealed under a key of this request, and deleted
};

class ConversationCache {
 public:
  // `link` may be null. Both are this request's own.
  ConversationCache(std::unique_ptr<KvLink> link, os::Fd store, TurnKeys keys);
  ~ConversationCache();

  // What the runtime is to be told; empty handles: nothing.
  struct Handles {
    std::string kv_import, kv_export;
  };
  // `most_tokens`: prompt and answer together at most.
  Handles begin(std::span<const int32_t> prompt, uint64_t most_tokens);
  // The runtime has read the import, or will not.
  void imported() { import_buffer_.reset(); }
  bool wants_ephemeral_key() const { return keys_.ephemeral && export_buffer_ && keys_.write.empty(); }
  void set_ephemeral_key(SecretBytes key) { keys_.write = std::move(key); }

  // After the last event. `tokens`: prompt and answer, as far as known; `exported_tokens`: the runtime's word.
  void finish(std::span<const int32_t> tokens, uint32_t exported_tokens);

 private:
  struct Entry {
    crypto::Digest id;
    cache::SegmentReference segment;
  };
  Result<cache::Manifest> fetch_manifest(cache::EnsembleWarden& warden, Deadline deadline);
  Result<cache::Manifest> await_manifest(cache::EnsembleWarden& warden);
  Result<void> import(std::span<const int32_t> prompt, Handles& out);
  Result<std::vector<cache::FetchedEntry>> fetch_segments(cache::EnsembleWarden& warden, uint32_t blocks,
                                                          Deadline deadline);
  uint32_t open_segments(cache::EnsembleWarden& warden, std::span<const cache::FetchedEntry> entries, uint32_t blocks);
  Result<void> request_export(uint64_t most_tokens, Handles& out);
  uint32_t exported_blocks(size_t n_tokens, uint32_t exported_tokens) const;
  Result<void> store(std::span<const int32_t> tokens, uint32_t exported_tokens);
  bool awaited_after(const cache::Manifest& manifest, uint64_t n_tokens) const;
  void keep_common_segments(cache::EnsembleWarden& warden, std::span<const int32_t> tokens);
  void look_under_write_key();
  Result<void> store_segments(cache::EnsembleWarden& warden, uint32_t blocks);
  Result<void> replace_manifest(cache::EnsembleWarden& warden, std::span<const int32_t> tokens);
  Result<os::Fd> seal(cache::EnsembleWarden& warden, const cache::SegmentShape& shape, size_t size, uint32_t first,
                      cache::SegmentReference& out);
  void remove(std::span<const Entry> entries);

  std::unique_ptr<KvLink> link_;
  cache::StoreClient store_;
  TurnKeys keys_;
  bool same_key_ = false;  // what is kept goes on where the earlier turn ended
  KvFacts facts_;
  cache::Manifest manifest_;           // of the earlier turn; later the one that is replaced
  Bytes manifest_sha256_;              // of its ciphertext, as the store has it; empty: there is none
  std::vector<Entry> kept_, written_;  // segments of the new manifest: taken over, new
  uint32_t kept_blocks_ = 0;
  std::optional<cache::KvProducer> import_buffer_;
  std::optional<cache::KvConsumer> export_buffer_;
};

}  // namespace tie::request::app
