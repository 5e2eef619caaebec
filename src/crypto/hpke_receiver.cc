#include "crypto/hpke_receiver.h"

namespace tie::crypto {

Result<ReceiverContext> ReceiverContext::from_shared_secret(const HpkeSuite& suite, ByteView shared_secret,
                                                            ByteView info) {
  TIE_TRY(HpkeSchedule schedule, hpke_key_schedule(suite, shared_secret, info));
  TIE_TRY(AeadKey key, AeadKey::create(suite.aead, schedule.key.view()));
  return ReceiverContext(suite, std::move(schedule), std::move(key));
}

Result<SecretBytes> ReceiverContext::open_at(uint64_t sequence, ByteView aad, ByteView sealed) {
  if (sealed.size() < kAeadTagBytes) return fail(Code::kCorrupt, "sealed bytes do not open");
  SecretBytes out(sealed.size() - kAeadTagBytes);
  TIE_CHECK_OK(key_.open_into(hpke_nonce(schedule_.base_nonce.view(), sequence), aad, sealed, out.span()));
  return out;
}

Result<SecretBytes> ReceiverContext::open(ByteView aad, ByteView sealed) {
  TIE_TRY(SecretBytes out, open_at(sequence_, aad, sealed));
  ++sequence_;
  return out;
}

Result<SecretBytes> ReceiverContext::export_secret(ByteView exporter_context, size_t length) const {
  return hpke_export(suite_, schedule_.exporter_secret.view(), exporter_context, length);
}

}  // namespace tie::crypto
