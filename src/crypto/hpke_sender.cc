#include "crypto/hpke.h"

namespace tie::crypto {

constexpr uint64_t kMaxSequence = uint64_t{1} << 32;

Result<SenderContext> setup_sender(const HpkeSuite& suite, ByteView public_key, ByteView info) {
  TIE_TRY(Encapsulation encapsulation, kem_encapsulate(suite.kem, public_key));
  return setup_sender_from(suite, std::move(encapsulation), info);
}

Result<SenderContext> setup_sender_from(const HpkeSuite& suite, Encapsulation encapsulation, ByteView info) {
  TIE_TRY(HpkeSchedule schedule, hpke_key_schedule(suite, encapsulation.shared_secret.view(), info));
  TIE_TRY(AeadKey key, AeadKey::create(suite.aead, schedule.key.view()));
  return SenderContext(suite, std::move(encapsulation.enc), std::move(schedule), std::move(key));
}

Result<Bytes> SenderContext::seal(ByteView aad, ByteView plaintext) {
  if (sequence_ >= kMaxSequence) return fail(Code::kOutOfRange, "this HPKE context has sealed its last message");
  return key_.seal(hpke_nonce(schedule_.base_nonce.view(), sequence_++), aad, plaintext);
}

Result<SecretBytes> SenderContext::export_secret(ByteView exporter_context, size_t length) const {
  return hpke_export(suite_, schedule_.exporter_secret.view(), exporter_context, length);
}

}  // namespace tie::crypto
