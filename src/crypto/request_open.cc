#include "crypto/request_open.h"

#include "base/random.h"
#include "crypto/hkdf.h"

namespace tie::crypto {
namespace {
constexpr const char* kDoesNotOpen = "the request does not open";
}

void prepare_opening() {
  const SecretBytes zeros(32);
  const Bytes nonce(kAeadNonceBytes);
  auto key = AeadKey::create(AeadId::kAes256Gcm, zeros.view());
  if (key) (void)key->seal(nonce, {}, zeros.view());
  (void)hkdf({}, zeros.view(), {}, zeros.size());
}

Result<ChunkOpener> ChunkOpener::create(ByteView dek, ByteView key_id, ByteView clear_parameters,
                                        size_t max_request_bytes) {
  TIE_TRY(const SecretBytes key, chunk_key(dek, AeadId::kAes256Gcm, key_id, clear_parameters));
  TIE_TRY(AeadKey aead, AeadKey::create(AeadId::kAes256Gcm, key.view()));
  return ChunkOpener(std::move(aead), max_request_bytes);
}

Result<Bytes> ChunkOpener::open(ByteView chunk, bool final) {
  if (state_ != State::kOpen) return fail(Code::kFailedPrecondition, "a chunk came after the request's end");
  auto plaintext = open_checked(chunk, final);
  if (!plaintext) {
    state_ = State::kBroken;
  } else if (final) {
    state_ = State::kFinished;
  }
  return plaintext;
}

Result<Bytes> ChunkOpener::open_checked(ByteView chunk, bool final) {
  const size_t header_bytes = index_ == 0 ? kChunkHeaderBytes : 0;
  if (chunk.size() > bytes_left_ || chunk.size() > header_bytes + kMaxChunkPlaintextBytes + kChunkTagBytes ||
      index_ >= kMaxChunks)
    return fail(Code::kTooLarge, "the request is larger than the node accepts");
  if (chunk.size() < header_bytes + kChunkTagBytes) return fail(Code::kCorrupt, kDoesNotOpen);
  const ByteView header = chunk.first(header_bytes);
  if (index_ == 0) {
    if (header[0] != 0 || header[1] != static_cast<uint8_t>(AeadId::kAes256Gcm))
      return fail(Code::kCorrupt, kDoesNotOpen);
    base_nonce_.assign(header.begin() + 2, header.end());
  }
  auto plaintext = key_.open(hpke_nonce(base_nonce_, index_), chunk_aad(kChunkAadLabel, index_, final, header),
                             chunk.subspan(header_bytes));
  if (!plaintext) return fail(Code::kCorrupt, kDoesNotOpen);
  bytes_left_ -= chunk.size();
  ++index_;
  return plaintext;
}

Result<void> ChunkOpener::end_of_stream() const {
  if (state_ != State::kFinished) return fail(Code::kCorrupt, "the request ended before its final chunk");
  return {};
}

Result<ResponseSealer> ResponseSealer::create(ByteView response_secret, ByteView enc) {
  Bytes salt(kResponseSaltBytes);
  random_bytes(salt);
  TIE_TRY(ResponseKeys keys, response_keys(response_secret, enc, salt));
  return ResponseSealer(std::move(keys.key), std::move(keys.base_nonce), std::move(salt));
}

Result<Bytes> ResponseSealer::seal(ByteView event, bool final) {
  if (finished_) return fail(Code::kFailedPrecondition, "the response's final event is already sealed");
  if (event.size() > kMaxChunkPlaintextBytes) return fail(Code::kTooLarge, "a response event holds at most 1 MiB");
  TIE_TRY(Bytes out, key_.seal(hpke_nonce(base_nonce_, index_), chunk_aad(kResponseAadLabel, index_, final), event));
  ++index_;
  finished_ = final;
  return out;
}

Result<OpenedRequest> OpenedRequest::open(const HpkeSuite& suite, ByteView key_id, ByteView enc, ByteView shared_secret,
                                          ByteView sealed_dek) {
  if (key_id.size() != kKeyIdBytes || sealed_dek.size() != kSealedDekBytes) return fail(Code::kCorrupt, kDoesNotOpen);
  TIE_TRY(ReceiverContext context,
          ReceiverContext::from_shared_secret(suite, shared_secret, request_info(suite, key_id)));
  auto dek = context.open(as_bytes(kRequestDekLabel), sealed_dek);
  if (!dek) return fail(Code::kCorrupt, kDoesNotOpen);
  OpenedRequest out;
  out.key_id_.assign(key_id.begin(), key_id.end());
  out.enc_.assign(enc.begin(), enc.end());
  out.dek_ = std::move(*dek);
  TIE_TRY(out.response_secret_, context.export_secret(as_bytes(kResponseExportLabel), 32));
  return out;
}

Result<ChunkOpener> OpenedRequest::chunk_opener(ByteView clear_parameters, size_t max_request_bytes) const {
  return ChunkOpener::create(dek_.view(), key_id_, clear_parameters, max_request_bytes);
}

Result<ResponseSealer> OpenedRequest::response_sealer() const {
  return ResponseSealer::create(response_secret_.view(), enc_);
}

Result<SecretBytes> OpenedRequest::derive_key(std::string_view purpose) const {
  if (purpose.empty() || purpose.size() > kMaxPurposeBytes)
    return fail(Code::kBadRequest, "a purpose has 1 to 64 bytes");
  return hkdf({}, dek_.view(), {as_bytes(kDeriveKeyLabel), as_bytes(purpose)}, 32);
}

}  // namespace tie::crypto
