// key_protectiond's gRPC face: proto/kps.proto over a KeyStore. Threads: gRPC's, any number. Holds nothing but its
// references.
#pragma once
#include <grpcpp/grpcpp.h>

#include "keys/attestation/evidence.h"
#include "keys/key_protectiond/key_store.h"
#include "kps.grpc.pb.h"

namespace tie::kps {

class KpsService final : public v1::KeyProtection::Service {
 public:
  KpsService(KeyStore& store, const attestation::EvidenceSigner& signer) : store_(store), signer_(signer) {}
  grpc::Status GenerateKEMKeypair(grpc::ServerContext*, const v1::GenerateKEMKeypairRequest*, v1::KEMKey*) override;
  grpc::Status DecapAndSeal(grpc::ServerContext*, const v1::DecapAndSealRequest*, v1::DecapAndSealReply*) override;
  grpc::Status EnumerateKEMKeys(grpc::ServerContext*, const v1::EnumerateKEMKeysRequest*,
                                v1::EnumerateKEMKeysReply*) override;
  grpc::Status GetKEMKey(grpc::ServerContext*, const v1::GetKEMKeyRequest*, v1::KEMKey*) override;
  grpc::Status DestroyKEMKey(grpc::ServerContext*, const v1::DestroyKEMKeyRequest*, v1::DestroyKEMKeyReply*) override;
  grpc::Status Heartbeat(grpc::ServerContext*, const v1::HeartbeatRequest*, v1::HeartbeatReply*) override;

 private:
  Result<void> add_evidence(const KeyFacts& facts, const std::string& challenge, v1::KEMKey& out) const;
  KeyStore& store_;
  const attestation::EvidenceSigner& signer_;
};

}  // namespace tie::kps
