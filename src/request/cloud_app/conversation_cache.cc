#include "request/cloud_app/conversation_cache.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "os/log.h"
#include "request/cloud_app/limits.h"

namespace tie::request::app {
namespace {

using cache::EnsembleWarden;

ByteView as_u8(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()};
}
std::span<uint8_t> as_u8(std::span<std::byte> bytes) {
  return {reinterpret_cast<uint8_t*>(bytes.data()), bytes.size()};
}

uint32_t common_tokens(std::span<const int32_t> a, std::span<const int32_t> b) {
  auto end = std::mismatch(a.begin(), a.begin() + static_cast<ptrdiff_t>(std::min(a.size(), b.size())), b.begin());
  return static_cast<uint32_t>(end.first - a.begin());
}

void wipe(std::vector<int32_t>& tokens) {
  secure_zero(tokens.data(), tokens.size() * sizeof(int32_t));
}

}  // namespace

ConversationCache::ConversationCache(std::unique_ptr<KvLink> link, os::Fd store, TurnKeys keys)
    : link_(std::move(link)), store_(std::move(store)), keys_(std::move(keys)) {
  same_key_ = !keys_.read.empty() && std::ranges::equal(keys_.read.view(), keys_.write.view());
}

ConversationCache::~ConversationCache() {
  wipe(manifest_.tokens);
}

ConversationCache::Handles ConversationCache::begin(std::span<const int32_t> prompt, uint64_t most_tokens) {
  Handles out;
  bool keeps = keys_.ephemeral || !keys_.write.empty();
  if (!link_ || !store_.usable() || (keys_.read.empty() && !keeps)) return out;
  auto facts = link_->facts(Deadline::in_ms(kTransferSetupMs));
  if (!facts) return out;
  facts_ = *facts;
  if (!keys_.read.empty()) {
    auto done = import(prompt, out);
    if (!done && done.error().code != Code::kNotFound)
      TIE_LOG("tie-cloud-app", "cold evaluation: the cache failed with {}", done.error().code);
  }
  if (keeps) (void)request_export(most_tokens, out);
  return out;
}

Result<cache::Manifest> ConversationCache::fetch_manifest(EnsembleWarden& warden, Deadline deadline) {
  TIE_TRY(crypto::Digest id, warden.manifest_id());
  TIE_TRY(auto sealed, store_.get(id, deadline));
  crypto::Digest digest = crypto::sha256(sealed.bytes());
  manifest_sha256_.assign(digest.begin(), digest.end());
  return warden.open_manifest(sealed.bytes());
}

// The turn before this one may have ended a moment ago and still be sealing what it leaves: it is waited for, a
// millisecond for each token at most, which is what computing them anew takes at best. Its manifest may lack the token
// that was drawn last.
Result<cache::Manifest> ConversationCache::await_manifest(EnsembleWarden& warden) {
  Deadline limit = Deadline::in_ms(std::min<int64_t>(keys_.awaited_tokens, kCacheAwaitMs));
  uint64_t awaited = std::min(keys_.awaited_tokens, kMaxKeptTokens);
  for (;;) {
    auto found = fetch_manifest(warden, Deadline::in_ms(kCacheLookupMs));
    bool missing = found ? awaited_after(*found, awaited) : awaited > 0 && found.error().code == Code::kNotFound;
    if (!missing || limit.passed()) return found;
    if (found) wipe(found->tokens);
    std::this_thread::sleep_for(std::chrono::milliseconds(std::min(limit.remaining_ms(), kCacheAwaitPollMs)));
  }
}

Result<void> ConversationCache::import(std::span<const int32_t> prompt, Handles& out) {
  EnsembleWarden warden(facts_.identity);
  TIE_CHECK_OK(warden.set_key(keys_.read.clone()));
  TIE_TRY(manifest_, await_manifest(warden));
  Deadline deadline = Deadline::in_ms(kCacheLookupMs);
  // The prompt's last token is computed in any case: its logits are wanted.
  uint32_t common = std::min(common_tokens(manifest_.tokens, prompt), static_cast<uint32_t>(prompt.size()) - 1);
  uint32_t blocks = common / facts_.block_tokens;
  if (blocks == 0) return {};
  TIE_TRY(auto entries, fetch_segments(warden, blocks, deadline));
  if (entries.empty()) return fail(Code::kNotFound, "the first segment is gone");
  TIE_TRY(import_buffer_, cache::KvProducer::create(facts_.description(blocks)));
  uint32_t opened = open_segments(warden, entries, blocks);
  if (opened > 0) {
    import_buffer_->finish(opened * facts_.block_tokens);
    auto handle = link_->offer(*import_buffer_, Deadline::in_ms(kTransferSetupMs));
    if (handle) out.kv_import = std::move(*handle);
  }
  if (out.kv_import.empty()) import_buffer_.reset();
  return {};
}

// In order, as far as they are there. A manifest whose segments do not lie end to end ends where they stop doing so.
Result<std::vector<cache::FetchedEntry>> ConversationCache::fetch_segments(EnsembleWarden& warden, uint32_t blocks,
                                                                           Deadline deadline) {
  std::vector<cache::FetchedEntry> out;
  uint32_t at = 0;
  for (const auto& segment : manifest_.segments) {
    if (at >= blocks || segment.first_token != at * facts_.block_tokens) break;
    TIE_TRY(crypto::Digest id, warden.segment_id(segment));
    auto entry = store_.get(id, deadline);
    if (!entry && entry.error().code != Code::kNotFound) return std::unexpected(std::move(entry.error()));
    if (!entry) break;
    out.push_back(std::move(*entry));
    at += segment.block_count;
  }
  return out;
}

// Returns how many blocks of the import buffer are filled. A segment that does not open ends it there: what was opened
// before is whole and belongs to the manifest.
uint32_t ConversationCache::open_segments(EnsembleWarden& warden, std::span<const cache::FetchedEntry> entries,
                                          uint32_t blocks) {
  SecretBytes beyond;  // a segment's end that this prompt does not share
  uint32_t at = 0;
  for (size_t i = 0; i < entries.size() && at < blocks; ++i) {
    const cache::SegmentReference& segment = manifest_.segments[i];
    cache::SegmentShape shape{segment.first_token, segment.block_count, facts_.block_tokens, facts_.block_bytes};
    std::vector<std::span<uint8_t>> places(std::min(segment.block_count, blocks - at));
    for (uint32_t b = 0; b < places.size(); ++b) {
      auto place = import_buffer_->begin_block(at + b);
      if (!place) return at;
      places[b] = as_u8(*place);
    }
    if (places.size() < segment.block_count && beyond.empty()) beyond = SecretBytes(facts_.block_bytes);
    auto place = [&](uint32_t b) { return b < places.size() ? places[b] : beyond.span(); };
    if (auto opened = warden.open_segment(segment, shape, entries[i].bytes(), place); !opened) {
      TIE_LOG("tie-cloud-app", "a segment of the cache does not open: {}", opened.error().code);
      return at;
    }
    for (uint32_t b = 0; b < places.size(); ++b)
      if (!import_buffer_->commit_block(at + b)) return at;
    bool whole = places.size() == segment.block_count;
    auto id = warden.segment_id(segment);
    at += static_cast<uint32_t>(places.size());
    if (!whole || !same_key_ || !id) continue;
    kept_.push_back({*id, segment});
    kept_blocks_ = at;
  }
  return at;
}

Result<void> ConversationCache::request_export(uint64_t most_tokens, Handles& out) {
  uint64_t most = std::min<uint64_t>(most_tokens, kMaxKeptTokens);
  uint32_t first = kept_blocks_ * facts_.block_tokens;
  if (most < first + facts_.block_tokens) return {};
  uint64_t blocks = (most - first) / facts_.block_tokens;
  if (keys_.ephemeral) blocks = std::min(blocks, kMaxEphemeralBlocks);
  if (blocks == 0) return {};
  TIE_TRY(auto granted, link_->request_export(first, static_cast<uint32_t>(blocks) * facts_.block_tokens,
                                              Deadline::in_ms(kTransferSetupMs)));
  out.kv_export = std::move(granted.handle);
  export_buffer_ = std::move(granted.buffer);
  return {};
}

void ConversationCache::finish(std::span<const int32_t> tokens, uint32_t exported_tokens) {
  import_buffer_.reset();
  if (!keys_.write.empty() && facts_.block_tokens > 0)
    if (auto stored = store(tokens, exported_tokens); !stored)
      TIE_LOG("tie-cloud-app", "this turn is not kept, or not all of it: {}", stored.error().code);
  export_buffer_.reset();
  if (link_) link_->close();
  keys_.read.wipe();
  keys_.write.wipe();
}

uint32_t ConversationCache::exported_blocks(size_t n_tokens, uint32_t exported_tokens) const {
  uint32_t first = kept_blocks_ * facts_.block_tokens;
  if (!export_buffer_ || n_tokens < first) return 0;
  auto known = static_cast<uint32_t>(n_tokens) - first;
  return std::min({exported_tokens, known, export_buffer_->description().block_count * facts_.block_tokens}) /
         facts_.block_tokens;
}

// The manifest names all of the turn's tokens even when their segments are missing, because the runtime gave none or
// the store took none: that tells the next turn that nothing more will come.
Result<void> ConversationCache::store(std::span<const int32_t> tokens, uint32_t exported_tokens) {
  tokens = tokens.first(std::min<size_t>(tokens.size(), kMaxKeptTokens));
  uint32_t blocks = exported_blocks(tokens.size(), exported_tokens);
  if (blocks == 0 && keys_.ephemeral) return {};
  if (!same_key_) look_under_write_key();
  if (blocks == 0 && !awaited_after(manifest_, tokens.size())) return {};
  EnsembleWarden warden(facts_.identity);
  TIE_CHECK_OK(warden.set_key(keys_.write.clone()));
  auto stored = store_segments(warden, blocks);
  if (!store_.usable()) return stored;
  if (kept_.empty() && written_.empty()) keep_common_segments(warden, tokens);
  auto replaced = replace_manifest(warden, tokens);
  if (!replaced && store_.usable()) remove(written_);
  return stored ? std::move(replaced) : std::move(stored);
}

// Would a turn that expects `n_tokens` wait for more than this manifest has?
bool ConversationCache::awaited_after(const cache::Manifest& manifest, uint64_t n_tokens) const {
  return manifest.tokens.size() + 2 * uint64_t{facts_.block_tokens} <= n_tokens;
}

// What the earlier turn left for these tokens, where this one could not read it and has nothing in its place.
void ConversationCache::keep_common_segments(EnsembleWarden& warden, std::span<const int32_t> tokens) {
  uint32_t blocks = common_tokens(manifest_.tokens, tokens) / facts_.block_tokens;
  uint64_t at = 0;
  for (const auto& segment : manifest_.segments) {
    auto id = warden.segment_id(segment);
    if (!id || segment.first_token != at * facts_.block_tokens || at + segment.block_count > blocks) return;
    kept_.push_back({*id, segment});
    at += segment.block_count;
  }
}

// A request that is asked again, or a branch that comes back, finds its own earlier state and replaces it.
void ConversationCache::look_under_write_key() {
  wipe(manifest_.tokens);
  manifest_ = {};
  manifest_sha256_.clear();
  EnsembleWarden warden(facts_.identity);
  if (keys_.ephemeral || !warden.set_key(keys_.write.clone())) return;
  if (auto found = fetch_manifest(warden, Deadline::in_ms(kCacheWriteMs))) manifest_ = std::move(*found);
}

Result<void> ConversationCache::store_segments(EnsembleWarden& warden, uint32_t blocks) {
  auto most = static_cast<uint32_t>(std::max<uint64_t>(1, kMaxSegmentBytes / facts_.block_bytes));
  for (uint32_t at = 0; at < blocks;) {
    cache::SegmentShape shape{(kept_blocks_ + at) * facts_.block_tokens, std::min(most, blocks - at),
                              facts_.block_tokens, facts_.block_bytes};
    TIE_TRY(size_t size, EnsembleWarden::sealed_segment_bytes(shape));
    Entry entry;
    TIE_TRY(os::Fd sealed, seal(warden, shape, size, at, entry.segment));
    TIE_TRY(entry.id, warden.segment_id(entry.segment));
    TIE_CHECK_OK(
        store_.put(entry.id, sealed, size, keys_.ephemeral ? kEphemeralTtlMs : 0, Deadline::in_ms(kCacheWriteMs)));
    written_.push_back(entry);
    at += shape.block_count;
  }
  return {};
}

// From the runtime's buffer into memory of our own: each plaintext byte is read once.
Result<os::Fd> ConversationCache::seal(EnsembleWarden& warden, const cache::SegmentShape& shape, size_t size,
                                       uint32_t first, cache::SegmentReference& out) {
  Deadline deadline = Deadline::in_ms(kExportWaitMs);
  for (uint32_t i = 0; i < shape.block_count; ++i)
    TIE_CHECK_OK(export_buffer_->wait_block(first + i, deadline, link_->fd()));
  TIE_TRY(os::Fd memory, os::create_memfd("segment", size));
  {
    TIE_TRY(os::Mapping place, os::Mapping::read_write(memory.get()));
    place.allocate_pages();
    auto block = [&](uint32_t i) {
      auto bytes = export_buffer_->committed_block(first + i);
      return bytes ? as_u8(*bytes) : ByteView();
    };
    TIE_TRY(out, warden.seal_segment(shape, block, as_u8(place.writable())));
  }
  TIE_CHECK_OK(os::add_seals(memory.get(), os::kSealAll));
  return memory;
}

Result<void> ConversationCache::replace_manifest(EnsembleWarden& warden, std::span<const int32_t> tokens) {
  cache::Manifest next;
  next.tokens.assign(tokens.begin(), tokens.end());
  for (const Entry& entry : kept_) next.segments.push_back(entry.segment);
  for (const Entry& entry : written_) next.segments.push_back(entry.segment);
  auto sealed = warden.seal_manifest(next);
  wipe(next.tokens);
  if (!sealed) return std::unexpected(std::move(sealed.error()));
  TIE_TRY(crypto::Digest id, warden.manifest_id());
  Deadline deadline = Deadline::in_ms(kCacheWriteMs);
  TIE_CHECK_OK(store_.swap(id, manifest_sha256_, *sealed, keys_.ephemeral ? kEphemeralTtlMs : 0, deadline));
  if (keys_.ephemeral) {
    (void)store_.remove(id, deadline);
    remove(written_);
    return {};
  }
  // What the replaced manifest named and this one no longer does.
  std::vector<Entry> dropped;
  for (size_t i = kept_.size(); i < manifest_.segments.size(); ++i)
    if (auto segment_id = warden.segment_id(manifest_.segments[i]))
      dropped.push_back({*segment_id, manifest_.segments[i]});
  remove(dropped);
  return {};
}

void ConversationCache::remove(std::span<const Entry> entries) {
  Deadline deadline = Deadline::in_ms(kCacheWriteMs);
  for (const Entry& entry : entries) (void)store_.remove(entry.id, deadline);
}

}  // namespace tie::request::app
