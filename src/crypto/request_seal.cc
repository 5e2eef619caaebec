#include "crypto/request_seal.h"

#include "base/random.h"

namespace tie::crypto {

Result<ChunkSealer> ChunkSealer::create(ByteView dek, ByteView key_id, ByteView clear_parameters) {
  TIE_TRY(const SecretBytes key, chunk_key(dek, AeadId::kAes256Gcm, key_id, clear_parameters));
  TIE_TRY(AeadKey aead, AeadKey::create(AeadId::kAes256Gcm, key.view()));
  Bytes base_nonce(kAeadNonceBytes);
  random_bytes(base_nonce);
  return ChunkSealer(std::move(aead), std::move(base_nonce));
}

Result<Bytes> ChunkSealer::seal(ByteView plaintext, bool final) {
  if (finished_) return fail(Code::kFailedPrecondition, "the request's final chunk is already sealed");
  if (plaintext.size() > kMaxChunkPlaintextBytes) return fail(Code::kTooLarge, "a chunk holds at most 1 MiB");
  if (index_ >= kMaxChunks) return fail(Code::kTooLarge, "a request has too many chunks");
  Bytes out;
  if (index_ == 0) {
    out = {0, static_cast<uint8_t>(AeadId::kAes256Gcm)};
    append(out, base_nonce_);
  }
  const size_t header = out.size();
  const Bytes aad = chunk_aad(kChunkAadLabel, index_, final, out);
  out.resize(header + plaintext.size() + kAeadTagBytes);
  TIE_CHECK_OK(key_.seal_into(hpke_nonce(base_nonce_, index_), aad, plaintext, std::span(out).subspan(header)));
  ++index_;
  finished_ = final;
  return out;
}

Result<Bytes> ResponseOpener::open(ByteView chunk, bool final) {
  if (finished_ || broken_) return fail(Code::kFailedPrecondition, "the response has already ended");
  auto plaintext = open_checked(chunk, final);
  if (!plaintext) broken_ = true;
  return plaintext;
}

Result<Bytes> ResponseOpener::open_checked(ByteView chunk, bool final) {
  if (chunk.size() > kMaxChunkPlaintextBytes + kChunkTagBytes)
    return fail(Code::kTooLarge, "a response event is larger than 1 MiB");
  TIE_TRY(Bytes plaintext,
          key_.open(hpke_nonce(base_nonce_, index_), chunk_aad(kResponseAadLabel, index_, final), chunk));
  ++index_;
  finished_ = final;
  return plaintext;
}

Result<void> ResponseOpener::end_of_stream() const {
  if (!finished_) return fail(Code::kCorrupt, "the answer was cut off before its authenticated end");
  return {};
}

Result<SealedRequest> SealedRequest::create(const RequestKey& to) {
  if (to.key_id.size() != kKeyIdBytes) return fail(Code::kBadRequest, "a key id has 32 bytes");
  TIE_TRY(SenderContext context, setup_sender(to.suite, to.public_key, request_info(to.suite, to.key_id)));
  SealedRequest out;
  out.key_id_ = to.key_id;
  out.enc_ = context.enc();
  out.dek_ = random_secret(kDekBytes);
  TIE_TRY(out.sealed_dek_, context.seal(as_bytes(kRequestDekLabel), out.dek_.view()));
  TIE_TRY(out.response_secret_, context.export_secret(as_bytes(kResponseExportLabel), 32));
  return out;
}

Result<ChunkSealer> SealedRequest::chunk_sealer(ByteView clear_parameters) const {
  return ChunkSealer::create(dek_.view(), key_id_, clear_parameters);
}

Result<ResponseOpener> SealedRequest::response_opener(ByteView salt) const {
  TIE_TRY(ResponseKeys keys, response_keys(response_secret_.view(), enc_, salt));
  return ResponseOpener(std::move(keys.key), std::move(keys.base_nonce));
}

}  // namespace tie::crypto
