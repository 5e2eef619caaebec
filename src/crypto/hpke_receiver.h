// The receiving side of HPKE base mode. The node never decapsulates where it opens: the shared secret comes from
// workload_servicesd, and the key schedule is resumed from it here. A context belongs to one thread. Source: RFC 9180
// section 5.
#pragma once
#include "crypto/hpke.h"

namespace tie::crypto {

class ReceiverContext {
 public:
  static Result<ReceiverContext> from_shared_secret(const HpkeSuite& suite, ByteView shared_secret, ByteView info);
  // With the private key at hand (tests).
  static Result<ReceiverContext> from_private_key(const HpkeSuite& suite, ByteView private_key, ByteView enc,
                                                  ByteView info);

  // Opens the next message in order. kCorrupt when it does not open; the sequence number then stays.
  Result<SecretBytes> open(ByteView aad, ByteView sealed);
  // Opens the message of a given sequence number; the context's own stays.
  Result<SecretBytes> open_at(uint64_t sequence, ByteView aad, ByteView sealed);
  Result<SecretBytes> export_secret(ByteView exporter_context, size_t length) const;

 private:
  ReceiverContext(HpkeSuite suite, HpkeSchedule schedule, AeadKey key)
      : suite_(suite), schedule_(std::move(schedule)), key_(std::move(key)) {}
  HpkeSuite suite_;
  HpkeSchedule schedule_;
  AeadKey key_;
  uint64_t sequence_ = 0;
};

}  // namespace tie::crypto
