// The sealed request and response, both halves against each other, and every way to tamper with the stream.
#include "crypto/request_seal.h"

#include <gtest/gtest.h>

#include "base/random.h"
#include "crypto/message_splitter.h"
#include "crypto/request_open.h"

namespace tie::crypto {
namespace {

const Bytes kParameters = to_bytes("clear parameters");

class SealedStream : public ::testing::TestWithParam<KemId> {
 protected:
  void SetUp() override {
    suite_ = {GetParam(), AeadId::kAes256Gcm};
    auto pair = kem_generate(suite_.kem);
    ASSERT_TRUE(pair);
    pair_ = std::move(*pair);
    auto sent = SealedRequest::create({suite_, key_id_, pair_.public_key});
    ASSERT_TRUE(sent);
    sent_.emplace(std::move(*sent));
  }
  SecretBytes shared() { return std::move(*kem_decapsulate(suite_.kem, pair_.private_key.view(), sent_->enc())); }
  Result<OpenedRequest> node_opens() {
    return OpenedRequest::open(suite_, key_id_, sent_->enc(), shared().view(), sent_->sealed_dek());
  }
  std::vector<Bytes> three_chunks() {
    auto sealer = sent_->chunk_sealer(kParameters);
    std::vector<Bytes> out;
    out.push_back(*sealer->seal(as_bytes("one"), false));
    out.push_back(*sealer->seal(as_bytes(""), false));
    out.push_back(*sealer->seal(as_bytes("three"), true));
    return out;
  }
  ChunkOpener opener(ByteView parameters = kParameters) { return std::move(*node_opens()->chunk_opener(parameters)); }

  HpkeSuite suite_;
  Bytes key_id_ = Bytes(32, 7);
  KemKeyPair pair_;
  std::optional<SealedRequest> sent_;
};

TEST_P(SealedStream, ArrivesWhole) {
  auto chunks = three_chunks();
  auto open = opener();
  EXPECT_FALSE(open.end_of_stream());
  EXPECT_EQ(to_string(*open.open(chunks[0], false)), "one");
  EXPECT_EQ(to_string(*open.open(chunks[1], false)), "");
  EXPECT_FALSE(open.end_of_stream()) << "the final chunk is missing";
  EXPECT_EQ(to_string(*open.open(chunks[2], true)), "three");
  EXPECT_TRUE(open.finished());
  EXPECT_TRUE(open.end_of_stream());
  EXPECT_EQ(open.open(chunks[2], true).error().code, Code::kFailedPrecondition) << "nothing follows the final chunk";
}

TEST_P(SealedStream, RefusesDroppedRepeatedReorderedAndReflaggedChunks) {
  auto chunks = three_chunks();
  {
    auto open = opener();
    EXPECT_TRUE(open.open(chunks[0], false));
    EXPECT_EQ(open.open(chunks[2], true).error().code, Code::kCorrupt) << "one was dropped";
    EXPECT_EQ(open.open(chunks[1], false).error().code, Code::kFailedPrecondition)
        << "an opener that failed stays failed";
  }
  {
    auto open = opener();
    EXPECT_TRUE(open.open(chunks[0], false));
    EXPECT_FALSE(open.open(chunks[0], false)) << "repeated";
  }
  EXPECT_FALSE(opener().open(chunks[1], false)) << "the first is missing";
  EXPECT_FALSE(opener().open(chunks[0], true)) << "a final flag was added";
  {
    auto open = opener();
    EXPECT_TRUE(open.open(chunks[0], false));
    EXPECT_TRUE(open.open(chunks[1], false));
    EXPECT_FALSE(open.open(chunks[2], false)) << "the final flag was taken away";
  }
}

TEST_P(SealedStream, RefusesEveryChangedByteOfTheFirstChunk) {
  auto chunks = three_chunks();
  for (size_t at = 0; at < chunks[0].size(); ++at) {
    Bytes changed = chunks[0];
    changed[at] ^= 0x10;
    EXPECT_FALSE(opener().open(changed, false)) << "byte " << at;
  }
  for (size_t length = 0; length < chunks[0].size(); ++length)
    EXPECT_FALSE(opener().open(ByteView(chunks[0]).first(length), false)) << "cut to " << length;
}

TEST_P(SealedStream, BindsTheClearParametersAndTheKeyId) {
  auto chunks = three_chunks();
  EXPECT_FALSE(opener(to_bytes("clear parameterz")).open(chunks[0], false));
  Bytes other_id = key_id_;
  other_id[31] ^= 1;
  EXPECT_EQ(OpenedRequest::open(suite_, other_id, sent_->enc(), shared().view(), sent_->sealed_dek()).error().code,
            Code::kCorrupt);
}

TEST_P(SealedStream, RefusesAChangedSealedKey) {
  Bytes changed = sent_->sealed_dek();
  changed[0] ^= 1;
  EXPECT_FALSE(OpenedRequest::open(suite_, key_id_, sent_->enc(), shared().view(), changed));
  EXPECT_FALSE(OpenedRequest::open(suite_, key_id_, sent_->enc(), Bytes(32, 1), sent_->sealed_dek()));
  EXPECT_FALSE(OpenedRequest::open(suite_, key_id_, sent_->enc(), shared().view(), Bytes(47, 1)));
}

TEST_P(SealedStream, RefusesMoreThanTheRequestLimit) {
  auto sealer = sent_->chunk_sealer(kParameters);
  Bytes first = *sealer->seal(Bytes(100, 'x'), false), second = *sealer->seal(Bytes(100, 'x'), true);
  auto exact = std::move(*node_opens()->chunk_opener(kParameters, first.size() + second.size()));
  EXPECT_TRUE(exact.open(first, false));
  EXPECT_TRUE(exact.open(second, true));
  auto one_less = std::move(*node_opens()->chunk_opener(kParameters, first.size() + second.size() - 1));
  EXPECT_TRUE(one_less.open(first, false));
  EXPECT_EQ(one_less.open(second, true).error().code, Code::kTooLarge);
  EXPECT_EQ(sent_->chunk_sealer(kParameters)->seal(Bytes(kMaxChunkPlaintextBytes + 1), true).error().code,
            Code::kTooLarge);
  EXPECT_TRUE(opener().open(*sent_->chunk_sealer(kParameters)->seal(Bytes(kMaxChunkPlaintextBytes), true), true));
}

TEST_P(SealedStream, TheResponseComesBackAndItsEndIsAuthenticated) {
  auto node = node_opens();
  auto seal = node->response_sealer();
  ASSERT_TRUE(seal);
  Bytes first = *seal->seal(as_bytes("hello"), false), last = *seal->seal(as_bytes("OK"), true);
  EXPECT_EQ(seal->seal(as_bytes("more"), false).error().code, Code::kFailedPrecondition);
  auto open = std::move(*sent_->response_opener(seal->salt()));
  EXPECT_EQ(to_string(*open.open(first, false)), "hello");
  EXPECT_EQ(open.end_of_stream().error().code, Code::kCorrupt) << "cut, never complete";
  EXPECT_EQ(to_string(*open.open(last, true)), "OK");
  EXPECT_TRUE(open.end_of_stream());
}

TEST_P(SealedStream, TheResponseRefusesTampering) {
  auto node = node_opens();
  auto seal = node->response_sealer();
  Bytes first = *seal->seal(as_bytes("hello"), false), last = *seal->seal(as_bytes("OK"), true);
  const auto client = [&] { return std::move(*sent_->response_opener(seal->salt())); };
  EXPECT_FALSE(client().open(first, true)) << "an early end was forged";
  EXPECT_FALSE(client().open(last, true)) << "an event was dropped";
  {
    auto open = client();
    Bytes changed = first;
    changed.back() ^= 1;
    EXPECT_FALSE(open.open(changed, false));
    EXPECT_FALSE(open.open(first, false)) << "an opener that failed stays failed";
  }
  Bytes salt = seal->salt();
  salt[0] ^= 1;
  EXPECT_FALSE(sent_->response_opener(salt)->open(first, false));
  EXPECT_FALSE(sent_->response_opener(Bytes(31, 1)));
  auto again = node->response_sealer();
  EXPECT_NE(again->salt(), seal->salt());
  EXPECT_NE(*again->seal(as_bytes("hello"), false), first) << "each response has keys of its own";
}

TEST_P(SealedStream, ARequestChunkIsNoResponseEvent) {
  auto chunks = three_chunks();
  auto seal = node_opens()->response_sealer();
  EXPECT_FALSE(sent_->response_opener(seal->salt())->open(chunks[0], false));
}

TEST_P(SealedStream, DerivedKeysDependOnPurposeAndRequest) {
  auto node = node_opens();
  auto a = node->derive_key("kv-cache"), b = node->derive_key("kv-cache"), c = node->derive_key("other");
  ASSERT_TRUE(a && b && c);
  EXPECT_TRUE(equal_constant_time(a->view(), b->view()));
  EXPECT_FALSE(equal_constant_time(a->view(), c->view()));
  EXPECT_FALSE(node->derive_key(""));
  EXPECT_FALSE(node->derive_key(std::string(65, 'x')));
}

TEST_P(SealedStream, TwoAttemptsShareNothing) {
  auto again = SealedRequest::create({suite_, key_id_, pair_.public_key});
  ASSERT_TRUE(again);
  EXPECT_NE(again->enc(), sent_->enc());
  EXPECT_NE(again->sealed_dek(), sent_->sealed_dek());
  EXPECT_FALSE(opener().open(*again->chunk_sealer(kParameters)->seal(as_bytes("x"), true), true));
}

INSTANTIATE_TEST_SUITE_P(BothSuites, SealedStream, ::testing::Values(KemId::kXWing, KemId::kX25519HkdfSha256),
                         [](const auto& info) { return info.param == KemId::kXWing ? "XWing" : "X25519"; });

TEST(MessageSplitter, FindsTheMessagesWhereverTheStreamIsCut) {
  Bytes stream;
  std::vector<Bytes> messages = {to_bytes("a"), {}, to_bytes("longer message"), Bytes(300, 'z')};
  for (const Bytes& message : messages) append(stream, frame_message(message));
  for (size_t step = 1; step <= stream.size(); ++step) {
    MessageSplitter splitter(300, stream.size());
    std::vector<Bytes> got;
    for (size_t at = 0; at < stream.size(); at += step) {
      ASSERT_TRUE(splitter.feed(ByteView(stream).subspan(at, std::min(step, stream.size() - at))));
      while (auto message = splitter.next()) got.push_back(std::move(*message));
    }
    EXPECT_EQ(got, messages) << "step " << step;
    EXPECT_TRUE(splitter.finish());
  }
}

TEST(MessageSplitter, RefusesAnIncompleteMessageAtTheEnd) {
  Bytes stream = frame_message(to_bytes("abc"));
  for (size_t length = 1; length < stream.size(); ++length) {
    MessageSplitter splitter(100);
    ASSERT_TRUE(splitter.feed(ByteView(stream).first(length)));
    EXPECT_FALSE(splitter.next());
    EXPECT_EQ(splitter.finish().error().code, Code::kBadRequest) << length;
  }
}

TEST(MessageSplitter, RefusesALengthOverTheLimitAsSoonAsItIsAnnounced) {
  MessageSplitter splitter(100);
  EXPECT_TRUE(splitter.feed(frame_message(Bytes(100))));
  EXPECT_TRUE(splitter.next());
  EXPECT_EQ(splitter.feed(Bytes{0, 0, 0, 101}).error().code, Code::kTooLarge);
  EXPECT_FALSE(splitter.feed(Bytes{0}));
  EXPECT_FALSE(splitter.finish());
  MessageSplitter second(10, 100);  // the long one hides behind a good one
  Bytes stream = frame_message(Bytes(3));
  append(stream, Bytes{0xff, 0xff, 0xff, 0xff});
  EXPECT_TRUE(second.feed(stream));
  EXPECT_TRUE(second.next());
  EXPECT_FALSE(second.next());
  EXPECT_EQ(second.finish().error().code, Code::kTooLarge);
}

TEST(MessageSplitter, BuffersNoMoreThanItsLimit) {
  MessageSplitter splitter(100, 104);
  EXPECT_TRUE(splitter.feed(frame_message(Bytes(100))));
  EXPECT_EQ(splitter.feed(Bytes{0}).error().code, Code::kTooLarge) << "the first message was not taken";
}

}  // namespace
}  // namespace tie::crypto
