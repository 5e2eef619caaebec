#include "keys/key_protectiond/key_store.h"

#include "base/clock.h"
#include "base/random.h"
#include "crypto/decap_seal.h"
#include "keys/key_protectiond/limits.h"

namespace tie::kps {
namespace {

// Version 4, as RFC 9562 lays it out.
std::string random_uuid() {
  Bytes raw(16);
  random_bytes(raw);
  raw[6] = static_cast<uint8_t>((raw[6] & 0x0f) | 0x40);
  raw[8] = static_cast<uint8_t>((raw[8] & 0x3f) | 0x80);
  std::string hex = to_hex(raw);
  for (size_t at : {20, 16, 12, 8}) hex.insert(at, 1, '-');
  return hex;
}

std::unexpected<Error> no_such_key() {
  return fail(Code::kNotFound, "no such request key");
}

}  // namespace

Clocks Clocks::real() {
  return {[] { return tie::monotonic_ms(); }, [] { return tie::wall_clock_ms(); }};
}

KeyStore::KeyStore(Clocks clocks, size_t max_keys)
    : clocks_(std::move(clocks)), max_keys_(max_keys != 0 ? max_keys : kMaxKeys), boot_id_(random_hex(16)) {}

Result<KeyFacts> KeyStore::generate(uint32_t suite, ByteView binding_public_key, uint64_t lifetime_ms) {
  TIE_TRY(const crypto::KemId kem, crypto::kem_id_from(suite));
  if (lifetime_ms < kMinLifetimeMs || lifetime_ms > kMaxLifetimeMs)
    return fail(Code::kBadRequest, "a request key lives from 1 s to 7 days");
  // Tried once, so that a key whose answers nobody could open is never made.
  auto usable = crypto::kem_encapsulate(crypto::kDecapSealSuite.kem, binding_public_key);
  if (!usable) return fail(Code::kBadRequest, "the binding key is not an X-Wing public key");
  TIE_TRY(crypto::KemKeyPair pair, crypto::kem_generate(kem));
  auto key = std::make_shared<Key>();
  key->facts = {random_uuid(), kem, std::move(pair.public_key),
                Bytes(binding_public_key.begin(), binding_public_key.end()),
                static_cast<uint64_t>(clocks_.wall_ms()) + lifetime_ms};
  TIE_TRY(const size_t expanded_bytes, crypto::kem_expanded_bytes(kem));
  key->expanded = SecretBytes(expanded_bytes);
  TIE_CHECK_OK(crypto::kem_expand(kem, pair.private_key.view(), key->expanded.span()));
  key->dies_at_ms = clocks_.monotonic_ms() + static_cast<int64_t>(lifetime_ms + kExpiryGraceMs);
  std::lock_guard lock(mutex_);
  reap_locked();
  if (keys_.size() >= max_keys_) return fail(Code::kOverloaded, "key_protectiond holds as many keys as it may");
  keys_[key->facts.uuid] = key;
  return key->facts;
}

Result<SealedSecret> KeyStore::decap_and_seal(const std::string& uuid, ByteView enc) {
  TIE_TRY(const auto key, find(uuid));
  TIE_TRY(const SecretBytes shared, crypto::kem_decapsulate_expanded(key->facts.kem, key->expanded.view(), enc));
  TIE_TRY(crypto::SenderContext context,
          crypto::setup_sender(crypto::kDecapSealSuite, key->facts.binding_public_key, crypto::decap_seal_info()));
  SealedSecret out;
  TIE_TRY(out.sealed, context.seal(crypto::decap_seal_aad(key->facts.kem, uuid, enc), shared.view()));
  out.binding_enc = context.enc();
  return out;
}

Result<KeyFacts> KeyStore::get(const std::string& uuid) {
  TIE_TRY(const auto key, find(uuid));
  return key->facts;
}

Result<void> KeyStore::destroy(const std::string& uuid) {
  std::lock_guard lock(mutex_);
  if (keys_.erase(uuid) == 0) return no_such_key();
  return {};
}

Result<KeyStore::Page> KeyStore::enumerate(size_t page_size, const std::string& page_token) {
  if (page_size > kMaxPageSize) return fail(Code::kBadRequest, "a page holds at most 100 keys");
  if (page_token.size() > kMaxUuidBytes) return fail(Code::kBadRequest, "not a page token of this service");
  if (page_size == 0) page_size = kMaxPageSize;
  std::lock_guard lock(mutex_);
  reap_locked();
  Page page;
  auto at = page_token.empty() ? keys_.begin() : keys_.upper_bound(page_token);
  for (; at != keys_.end() && page.keys.size() < page_size; ++at) page.keys.push_back(at->second->facts);
  if (at != keys_.end()) page.next_page_token = page.keys.back().uuid;
  return page;
}

void KeyStore::reap() {
  std::lock_guard lock(mutex_);
  reap_locked();
}

size_t KeyStore::count() {
  std::lock_guard lock(mutex_);
  return keys_.size();
}

Result<std::shared_ptr<const KeyStore::Key>> KeyStore::find(const std::string& uuid) {
  std::lock_guard lock(mutex_);
  auto at = keys_.find(uuid);
  if (at == keys_.end()) return no_such_key();
  if (clocks_.monotonic_ms() >= at->second->dies_at_ms) {
    keys_.erase(at);
    return no_such_key();
  }
  return at->second;
}

void KeyStore::reap_locked() {
  const int64_t now = clocks_.monotonic_ms();
  std::erase_if(keys_, [now](const auto& entry) { return now >= entry.second->dies_at_ms; });
}

}  // namespace tie::kps
