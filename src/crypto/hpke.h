// HPKE base mode with KDF HKDF-SHA256: the key schedule, the sender and what both sides share. The receiver is in
// hpke_receiver.h, in another library, so that a program without it cannot open anything. A context belongs to one
// thread; its keys die with it. Limits: 2^32 messages a context. Source: RFC 9180 sections 5.1.1 and 5.2 to 5.3.
#pragma once
#include "crypto/aead.h"
#include "crypto/kem.h"

namespace tie::crypto {

constexpr uint16_t kKdfHkdfSha256 = 0x0001;

struct HpkeSuite {
  KemId kem = KemId::kXWing;
  AeadId aead = AeadId::kAes256Gcm;
  bool operator==(const HpkeSuite&) const = default;
};
constexpr HpkeSuite kSuiteXWing{KemId::kXWing, AeadId::kAes256Gcm};
constexpr HpkeSuite kSuiteX25519{KemId::kX25519HkdfSha256, AeadId::kAes256Gcm};

// "HPKE" || kem || kdf || aead, as the RFC's suite_id.
Bytes hpke_suite_id(const HpkeSuite& suite);

// What the key schedule of a shared secret yields.
struct HpkeSchedule {
  SecretBytes key, base_nonce, exporter_secret;
};
Result<HpkeSchedule> hpke_key_schedule(const HpkeSuite& suite, ByteView shared_secret, ByteView info);
// Export(exporter_context, length) of RFC 9180 section 5.3. kOutOfRange above kHkdfMaxBytes.
Result<SecretBytes> hpke_export(const HpkeSuite& suite, ByteView exporter_secret, ByteView exporter_context,
                                size_t length);
// base_nonce XOR the big-endian sequence number.
Bytes hpke_nonce(ByteView base_nonce, uint64_t sequence);

class SenderContext {
 public:
  // Seals the next message; the sequence number rises by one.
  Result<Bytes> seal(ByteView aad, ByteView plaintext);
  Result<SecretBytes> export_secret(ByteView exporter_context, size_t length) const;
  const Bytes& enc() const { return enc_; }

 private:
  friend Result<SenderContext> setup_sender(const HpkeSuite&, ByteView, ByteView);
  friend Result<SenderContext> setup_sender_from(const HpkeSuite&, Encapsulation, ByteView);
  SenderContext(HpkeSuite suite, Bytes enc, HpkeSchedule schedule, AeadKey key)
      : suite_(suite), enc_(std::move(enc)), schedule_(std::move(schedule)), key_(std::move(key)) {}
  HpkeSuite suite_;
  Bytes enc_;
  HpkeSchedule schedule_;
  AeadKey key_;
  uint64_t sequence_ = 0;
};

Result<SenderContext> setup_sender(const HpkeSuite& suite, ByteView public_key, ByteView info);
// Over an encapsulation made by the caller (test vectors).
Result<SenderContext> setup_sender_from(const HpkeSuite& suite, Encapsulation encapsulation, ByteView info);

}  // namespace tie::crypto
