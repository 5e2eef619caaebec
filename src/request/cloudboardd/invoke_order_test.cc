#include "request/cloudboardd/invoke_order.h"

#include <gtest/gtest.h>

namespace tie::request::cloudboard {
namespace {

v1::InvokeRequest message(char kind) {
  v1::InvokeRequest m;
  if (kind == 's') m.mutable_setup()->set_protocol_version(1);
  if (kind == 'p') m.mutable_parameters();
  if (kind == 'c') m.mutable_chunk();
  if (kind == 'f') m.mutable_chunk()->set_final(true);
  if (kind == 't') m.mutable_terminate();
  return m;
}

// How many messages of a conversation are accepted.
size_t accepted(std::string_view kinds) {
  InvokeOrder order;
  size_t n = 0;
  while (n < kinds.size() && order.next(message(kinds[n]))) ++n;
  return n;
}

TEST(InvokeOrder, TakesTheOneOrder) {
  for (std::string_view good : {"spf", "spcf", "spcccf", "spt", "spct", "st"})
    EXPECT_EQ(accepted(good), good.size()) << good;
}

// Every conversation of up to five messages, against the rule written as a pattern.
TEST(InvokeOrder, RefusesEveryOtherOrder) {
  std::string_view kinds = "spcft-";
  std::vector<std::string> all{""};
  for (size_t i = 0; i < all.size(); ++i) {
    const std::string text = all[i];
    if (text.size() < 5)
      for (char kind : kinds) all.push_back(text + kind);
    size_t want = 0;
    int state = 0;  // 0 setup, 1 parameters, 2 chunks, 3 complete
    for (char kind : text) {
      bool ok = (state == 0 && kind == 's') || (state == 1 && (kind == 'p' || kind == 't')) ||
                (state == 2 && (kind == 'c' || kind == 'f' || kind == 't'));
      if (!ok) break;
      if (kind == 's') state = 1;
      if (kind == 'p') state = 2;
      if (kind == 'f' || kind == 't') state = 3;
      ++want;
    }
    ASSERT_EQ(accepted(text), want) << text;
  }
}

TEST(InvokeOrder, AnEarlyHalfCloseIsOutOfOrder) {
  InvokeOrder order;
  EXPECT_EQ(order.client_closed().error().code, Code::kFailedPrecondition);
  for (char kind : std::string_view("spcf")) ASSERT_TRUE(order.next(message(kind)).has_value());
  EXPECT_TRUE(order.client_closed().has_value());
}

TEST(InvokeOrder, AnotherProtocolVersionIsRefused) {
  InvokeOrder order;
  v1::InvokeRequest m;
  m.mutable_setup()->set_protocol_version(2);
  EXPECT_EQ(order.next(m).error().code, Code::kUnsupportedFeature);
}

v1::ClearParameters good_parameters() {
  v1::ClearParameters p;
  p.set_workload("tie-inference");
  p.set_key_id(std::string(32, 'k'));
  p.set_encapsulated_key(std::string(1120, 'e'));
  p.set_sealed_dek(std::string(48, 'd'));
  p.set_request_id(std::string(32, '0'));
  return p;
}

TEST(ClearParameters, EachFieldIsChecked) {
  EXPECT_TRUE(parse_clear_parameters(good_parameters().SerializeAsString()).has_value());
  auto code_of = [](auto change) {
    v1::ClearParameters p = good_parameters();
    change(p);
    auto parsed = parse_clear_parameters(p.SerializeAsString());
    return parsed ? Code::kOk : parsed.error().code;
  };
  EXPECT_EQ(code_of([](auto& p) { p.set_workload("other"); }), Code::kModelNotFound);
  EXPECT_EQ(code_of([](auto& p) { p.set_key_id("short"); }), Code::kBadRequest);
  EXPECT_EQ(code_of([](auto& p) { p.clear_encapsulated_key(); }), Code::kBadRequest);
  EXPECT_EQ(code_of([](auto& p) { p.set_encapsulated_key(std::string(2049, 'e')); }), Code::kBadRequest);
  EXPECT_EQ(code_of([](auto& p) { p.set_sealed_dek(std::string(49, 'd')); }), Code::kBadRequest);
  EXPECT_EQ(code_of([](auto& p) { p.set_request_id("../../etc/passwd"); }), Code::kBadRequest);
  EXPECT_EQ(code_of([](auto& p) { p.set_request_id(std::string(32, 'G')); }), Code::kBadRequest);
  EXPECT_EQ(code_of([](auto& p) { p.set_trace_id(std::string(65, 'x')); }), Code::kBadRequest);
  EXPECT_EQ(code_of([](auto& p) { p.set_trace_id("line\nbreak"); }), Code::kBadRequest);
  EXPECT_EQ(parse_clear_parameters(std::string(17 << 10, 'x')).error().code, Code::kTooLarge);
  EXPECT_EQ(parse_clear_parameters("\xff\xff rubbish").error().code, Code::kBadRequest);
}

}  // namespace
}  // namespace tie::request::cloudboard
