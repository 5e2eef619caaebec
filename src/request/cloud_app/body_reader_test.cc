#include "request/cloud_app/body_reader.h"

#include <gtest/gtest.h>

#include "request/cloud_app/delta_padding/delta_padding.h"
#include "request/cloud_app/limits.h"

namespace tie::request::app {
namespace {

Bytes body(const v1::BodyMessage& message) {
  return pad_message(message.SerializeAsString());
}

v1::BodyMessage request_message(const std::string& model = "m") {
  v1::BodyMessage message;
  message.mutable_request()->set_model(model);
  message.mutable_request()->set_raw_text("text");
  return message;
}

TEST(BodyReader, FindsTheRequestWhereverItsBytesAreCut) {
  Bytes bytes = body(request_message());
  for (size_t cut = 0; cut <= bytes.size(); ++cut) {
    BodyReader reader;
    ASSERT_TRUE(reader.feed(ByteView(bytes).first(cut)).has_value());
    ASSERT_TRUE(reader.feed(ByteView(bytes).subspan(cut)).has_value());
    auto request = reader.finish();
    ASSERT_TRUE(request.has_value());
    ASSERT_EQ(request->raw_text(), "text");
  }
}

TEST(BodyReader, ACutMessageAtTheEndIsAnError) {
  Bytes bytes = body(request_message());
  BodyReader reader;
  ASSERT_TRUE(reader.feed(ByteView(bytes).first(bytes.size() - 1)).has_value());
  EXPECT_EQ(reader.finish().error().code, Code::kBadRequest);
  EXPECT_EQ(BodyReader().finish().error().code, Code::kBadRequest);
}

TEST(BodyReader, MoreThanOneRequestIsAnError) {
  BodyReader reader;
  ASSERT_TRUE(reader.feed(body(request_message())).has_value());
  EXPECT_EQ(reader.feed(body(request_message())).error().code, Code::kBadRequest);
}

TEST(BodyReader, AHugePrefixIsRefusedBeforeItsBytesCome) {
  Bytes prefix;
  append_u32_be(prefix, 0xffffffff);
  BodyReader reader;
  EXPECT_EQ(reader.feed(prefix).error().code, Code::kTooLarge);
}

TEST(BodyReader, MoreThanTenMebibytesAreRefused) {
  BodyReader reader;
  Bytes prefix;
  append_u32_be(prefix, kMaxBodyBytes);
  ASSERT_TRUE(reader.feed(prefix).has_value());
  Checked<void> fed;
  Bytes piece(1 << 20);
  for (int i = 0; i < 11 && fed; ++i) fed = reader.feed(piece);
  ASSERT_FALSE(fed.has_value());
  EXPECT_EQ(fed.error().code, Code::kTooLarge);
}

TEST(BodyReader, RubbishTokensAndUnknownMessagesAreRefused) {
  Bytes rubbish;
  append_u32_be(rubbish, 3);
  append(rubbish, "\xff\xff\xff");
  EXPECT_EQ(BodyReader().feed(rubbish).error().code, Code::kBadRequest);
  v1::BodyMessage token;
  token.set_one_time_token("t");
  EXPECT_EQ(BodyReader().feed(body(token)).error().code, Code::kBadRequest);
  EXPECT_EQ(BodyReader().feed(body(v1::BodyMessage())).error().code, Code::kBadRequest);
}

}  // namespace
}  // namespace tie::request::app
