#include "keys/key_protectiond/key_store.h"

#include <gtest/gtest.h>

#include <set>

#include "crypto/decap_seal.h"
#include "crypto/hpke_receiver.h"
#include "keys/key_protectiond/limits.h"

namespace tie::kps {
namespace {

constexpr uint32_t kXWing = 0x647a;

class Store : public ::testing::Test {
 protected:
  Store() : binding_(std::move(*crypto::kem_generate(crypto::KemId::kXWing))) {}
  Clocks clocks() {
    return {[this] { return now_; }, [this] { return now_ + 1'000'000; }};
  }
  int64_t now_ = 5;
  crypto::KemKeyPair binding_;
};

TEST_F(Store, AnswersOnlySealedToTheBindingKeyAndBoundToTheRequest) {
  KeyStore store(clocks());
  for (uint32_t suite : {kXWing, 0x20u}) {
    auto key = store.generate(suite, binding_.public_key, 60'000);
    ASSERT_TRUE(key) << key.error().message;
    auto sent = crypto::kem_encapsulate(key->kem, key->public_key);
    auto sealed = store.decap_and_seal(key->uuid, sent->enc);
    ASSERT_TRUE(sealed);
    auto open = [&](const std::string& uuid, ByteView enc) {
      auto context = crypto::ReceiverContext::from_private_key(crypto::kDecapSealSuite, binding_.private_key.view(),
                                                               sealed->binding_enc, crypto::decap_seal_info());
      return context->open(crypto::decap_seal_aad(key->kem, uuid, enc), sealed->sealed);
    };
    auto shared = open(key->uuid, sent->enc);
    ASSERT_TRUE(shared);
    EXPECT_TRUE(equal_constant_time(shared->view(), sent->shared_secret.view()));
    EXPECT_FALSE(open("00000000-0000-4000-8000-000000000000", sent->enc)) << "another key's answer";
    EXPECT_FALSE(open(key->uuid, Bytes(sent->enc.size(), 1))) << "another request's answer";
  }
}

TEST_F(Store, ADestroyedOrExpiredKeyAnswersNothing) {
  KeyStore store(clocks());
  auto key = store.generate(kXWing, binding_.public_key, 60'000),
       other = store.generate(kXWing, binding_.public_key, 60'000);
  auto sent = crypto::kem_encapsulate(key->kem, key->public_key);
  EXPECT_TRUE(store.destroy(key->uuid));
  EXPECT_EQ(store.decap_and_seal(key->uuid, sent->enc).error().code, Code::kNotFound);
  EXPECT_EQ(store.destroy(key->uuid).error().code, Code::kNotFound);
  auto to_other = crypto::kem_encapsulate(other->kem, other->public_key);
  now_ += 60'000 + kExpiryGraceMs - 1;
  EXPECT_TRUE(store.decap_and_seal(other->uuid, to_other->enc)) << "inside the grace";
  now_ += 1;
  EXPECT_EQ(store.decap_and_seal(other->uuid, to_other->enc).error().code, Code::kNotFound);
  EXPECT_EQ(store.count(), 0u);
}

TEST_F(Store, StatesTheWallClockExpiry) {
  KeyStore store(clocks());
  EXPECT_EQ(store.generate(kXWing, binding_.public_key, 60'000)->expires_unix_ms, 1'060'005u);
}

TEST_F(Store, RefusesBadBindingKeysSuitesLifetimesAndEncapsulations) {
  KeyStore store(clocks());
  EXPECT_EQ(store.generate(kXWing, Bytes(1215, 1), 60'000).error().code, Code::kBadRequest);
  EXPECT_EQ(store.generate(kXWing, Bytes(1216, 0xff), 60'000).error().code, Code::kBadRequest);
  EXPECT_EQ(store.generate(0x10, binding_.public_key, 60'000).error().code, Code::kUnsupportedFeature);
  EXPECT_EQ(store.generate(kXWing, binding_.public_key, kMinLifetimeMs - 1).error().code, Code::kBadRequest);
  EXPECT_EQ(store.generate(kXWing, binding_.public_key, kMaxLifetimeMs + 1).error().code, Code::kBadRequest);
  auto key = store.generate(0x20, binding_.public_key, 60'000);
  EXPECT_EQ(store.decap_and_seal(key->uuid, Bytes(31, 1)).error().code, Code::kBadRequest);
  EXPECT_EQ(store.decap_and_seal(key->uuid, Bytes(32, 0)).error().code, Code::kBadRequest);
}

TEST_F(Store, HoldsNoMoreKeysThanItsLimitAndExpiredOnesMakeRoom) {
  KeyStore store(clocks(), 3);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(store.generate(kXWing, binding_.public_key, 60'000));
  EXPECT_EQ(store.generate(kXWing, binding_.public_key, 60'000).error().code, Code::kOverloaded);
  now_ += 60'000 + kExpiryGraceMs;
  EXPECT_TRUE(store.generate(kXWing, binding_.public_key, 60'000));
}

TEST_F(Store, EnumeratesEveryKeyOnceInPages) {
  KeyStore store(clocks());
  std::set<std::string> made, seen;
  for (int i = 0; i < 7; ++i) made.insert(store.generate(0x20, binding_.public_key, 60'000)->uuid);
  std::string token;
  int pages = 0;
  do {
    auto page = store.enumerate(3, token);
    ASSERT_TRUE(page);
    EXPECT_LE(page->keys.size(), 3u);
    for (const KeyFacts& key : page->keys) EXPECT_TRUE(seen.insert(key.uuid).second);
    token = page->next_page_token;
    ++pages;
  } while (!token.empty());
  EXPECT_EQ(seen, made);
  EXPECT_EQ(pages, 3);
  EXPECT_EQ(store.enumerate(101, "").error().code, Code::kBadRequest);
  EXPECT_EQ(store.enumerate(1, std::string(37, 'x')).error().code, Code::kBadRequest);
}

TEST_F(Store, EveryStartHasABootIdOfItsOwn) {
  EXPECT_NE(KeyStore(clocks()).boot_id(), KeyStore(clocks()).boot_id());
}

}  // namespace
}  // namespace tie::kps
