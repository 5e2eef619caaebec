#include "keys/tokens/issuer_directory.h"

#include <gtest/gtest.h>

#include "keys/tokens/testing.h"

namespace tie::tokens {
namespace {

TEST(IssuerDirectory, RoundTripsAndPassesOverWhatItDoesNotKnow) {
  const testing::Issuer issuer;
  Directory directory{"/token-request", {}};
  directory.keys.push_back(issuer.public_half(100, 200));
  std::string text = render_directory(directory);
  auto parsed = parse_directory(text);
  ASSERT_TRUE(parsed) << parsed.error().message;
  ASSERT_EQ(parsed->keys.size(), 1u);
  EXPECT_EQ(parsed->keys[0].id, issuer.key.public_key().key_id());
  EXPECT_EQ(parsed->keys[0].not_before_s, 100);
  EXPECT_EQ(parsed->keys[0].not_after_s, 200);
  EXPECT_EQ(parsed->request_uri, "/token-request");
  // Other issuers serve other types beside, and know no end.
  const std::string key = base64url(issuer.key.public_key().spki());
  auto foreign = parse_directory(R"({"issuer-request-uri":"https://i.example/r","x":1,"token-keys":[
      {"token-type":1,"token-key":"AAAA"},{"token-type":2,"token-key":")" +
                                 key + R"("}]})");
  ASSERT_TRUE(foreign);
  EXPECT_TRUE(foreign->keys[0].counts_at(1) && foreign->keys[0].counts_at(4'000'000'000));
}

TEST(IssuerDirectory, RefusesWhatIsNoDirectory) {
  for (const char* bad : {"", "[]", "{}", R"({"token-keys":[]})", R"({"issuer-request-uri":"/r","token-keys":[]})",
                          R"({"issuer-request-uri":"/r","token-keys":[{"token-type":2,"token-key":"AAAA"}]})",
                          R"({"issuer-request-uri":7,"token-keys":[]})",
                          R"({"issuer-request-uri":"/r","token-keys":[{"token-type":"2","token-key":1}]})"})
    EXPECT_FALSE(parse_directory(bad)) << bad;
}

TEST(IssuerDirectory, Base64UrlIsTheOneOfRfc4648) {
  EXPECT_EQ(base64url(as_bytes("")), "");
  EXPECT_EQ(base64url(as_bytes("f")), "Zg==");
  EXPECT_EQ(base64url(as_bytes("foobar")), "Zm9vYmFy");
  EXPECT_EQ(base64url(Bytes{0xfb, 0xff}), "-_8=");
  EXPECT_EQ(*from_base64url("Zg"), to_bytes("f"));
  EXPECT_EQ(*from_base64url("Zm9vYmE="), to_bytes("fooba"));
  for (const char* bad : {"Z", "Zh", "Zg=a", "+/8="}) EXPECT_FALSE(from_base64url(bad)) << bad;
}

}  // namespace
}  // namespace tie::tokens
