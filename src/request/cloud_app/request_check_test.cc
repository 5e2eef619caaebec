#include "request/cloud_app/request_check.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "request/cloud_app/limits.h"
#include "request/cloud_app/testing.h"

namespace tie::request::app {
namespace {

struct RequestCheckTest : ::testing::Test {
  testing::TinyAssets assets;
  std::unique_ptr<ServedModel> model = assets.model();
  template <typename Change>
  Refusal check(Change change) {
    v1::InferenceRequest request = testing::chat("hello");
    change(request);
    auto checked = check_request(request, *model);
    return checked ? Refusal(Code::kOk, "") : checked.error();
  }
};

using Request = v1::InferenceRequest;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();

TEST_F(RequestCheckTest, AbsurdNumbersNameTheirParameter) {
  struct Case {
    const char* param;
    std::function<void(v1::SamplingParams&)> change;
  };
  const Case cases[] = {
      {"temperature", [](auto& s) { s.set_temperature(-0.1f); }},
      {"temperature", [](auto& s) { s.set_temperature(2.1f); }},
      {"temperature", [](auto& s) { s.set_temperature(kNan); }},
      {"temperature", [](auto& s) { s.set_temperature(kInf); }},
      {"top_p", [](auto& s) { s.set_top_p(0); }},
      {"top_p", [](auto& s) { s.set_top_p(1.01f); }},
      {"top_p", [](auto& s) { s.set_top_p(kNan); }},
      {"min_p", [](auto& s) { s.set_min_p(-1); }},
      {"top_k", [](auto& s) { s.set_top_k(-5); }},
      {"repetition_penalty", [](auto& s) { s.set_repetition_penalty(0); }},
      {"repetition_penalty", [](auto& s) { s.set_repetition_penalty(1e9f); }},
      {"presence_penalty", [](auto& s) { s.set_presence_penalty(-2.5f); }},
      {"frequency_penalty", [](auto& s) { s.set_frequency_penalty(kNan); }},
      {"n", [](auto& s) { s.set_n(5'000'000); }},
      {"n", [](auto& s) { s.set_n(-1); }},
      {"max_tokens", [](auto& s) { s.set_max_tokens(0); }},
      {"max_tokens", [](auto& s) { s.set_max_tokens(-1); }},
      {"max_tokens", [](auto& s) { s.set_max_tokens(1'000'000'000); }},
      {"min_tokens", [](auto& s) { s.set_min_tokens(-1); }},
      {"min_tokens", [](auto& s) { s.set_max_tokens(3), s.set_min_tokens(4); }},
      {"top_logprobs", [](auto& s) { s.set_logprobs(true), s.set_top_logprobs(1'000'000'000); }},
      {"top_logprobs", [](auto& s) { s.set_top_logprobs(1); }},
      {"logit_bias", [](auto& s) { (*s.mutable_logit_bias())[258] = 1; }},
      {"logit_bias", [](auto& s) { (*s.mutable_logit_bias())[-1] = 1; }},
      {"logit_bias", [](auto& s) { (*s.mutable_logit_bias())[1] = 101; }},
      {"logit_bias", [](auto& s) { (*s.mutable_logit_bias())[1] = kNan; }},
      {"stop", [](auto& s) { s.add_stop(""); }},
      {"stop", [](auto& s) { s.add_stop(std::string(257, 'x')); }},
      {"stop",
       [](auto& s) {
         for (int i = 0; i < 5000; ++i) s.add_stop("x");
       }},
      {"stop_token_ids", [](auto& s) { s.add_stop_token_ids(1 << 30); }},
      {"stop_token_ids",
       [](auto& s) {
         for (int i = 0; i < 65; ++i) s.add_stop_token_ids(1);
       }},
  };
  for (const Case& c : cases) {
    Refusal refusal = check([&](Request& r) { c.change(*r.mutable_sampling()); });
    EXPECT_EQ(refusal.code, Code::kBadRequest) << c.param;
    EXPECT_EQ(refusal.param, c.param);
  }
}

TEST_F(RequestCheckTest, TheEdgesOfEachRangeAreAccepted) {
  auto code = check([](Request& r) {
                auto& s = *r.mutable_sampling();
                s.set_temperature(2);
                s.set_top_p(1);
                s.set_min_p(1);
                s.set_presence_penalty(-2);
                s.set_frequency_penalty(2);
                s.set_n(16);
                s.set_max_tokens(200);
                s.set_logprobs(true);
                s.set_top_logprobs(20);
                (*s.mutable_logit_bias())[257] = -100;
                for (int i = 0; i < 16; ++i) s.add_stop(std::string(256, 'x'));
              }).code;
  EXPECT_EQ(code, Code::kOk);
}

TEST_F(RequestCheckTest, PromptsThatMakeNoSense) {
  EXPECT_EQ(check([](Request& r) { r.clear_prompt(); }).code, Code::kBadRequest);
  EXPECT_EQ(check([](Request& r) { r.mutable_conversation()->clear_messages(); }).param, "messages");
  EXPECT_EQ(check([](Request& r) { r.mutable_conversation()->mutable_messages(0)->set_role("god"); }).param,
            "messages");
  EXPECT_EQ(check([](Request& r) { r.mutable_token_ids()->add_ids(258); }).param, "prompt");
  EXPECT_EQ(check([](Request& r) { r.mutable_token_ids()->add_ids(-1); }).param, "prompt");
  EXPECT_EQ(check([](Request& r) { r.mutable_sampling()->set_echo(true); }).param, "echo");
}

TEST_F(RequestCheckTest, ThePromptMayBeScoredButNotARegisteredOne) {
  auto scored = [](Request& r) {
    r.set_raw_text("a");
    r.mutable_sampling()->set_echo(true);
    r.mutable_sampling()->set_logprobs(true);
  };
  EXPECT_EQ(check(scored).code, Code::kOk);
  auto refusal = check([&](Request& r) {
    scored(r);
    r.set_prompt_id("support");
  });
  EXPECT_EQ(refusal.code, Code::kUnsupportedFeature) << "it would list the operator's tokens";
  EXPECT_EQ(refusal.param, "echo");
}

// What comes back is bounded, not only what was asked: sixteen samples of a long prompt with twenty alternatives for
// each token would be hundreds of megabytes.
TEST_F(RequestCheckTest, AnEchoForManySamplesIsBounded) {
  model->context_tokens = 1 << 20;
  v1::SamplingParams scored;
  scored.set_echo(true);
  scored.set_logprobs(true);
  scored.set_top_logprobs(19);
  EXPECT_TRUE(settle_sampling(scored, *model, 200'000, "prompt")) << "four million";
  scored.set_n(16);
  EXPECT_TRUE(settle_sampling(scored, *model, 12'500, "prompt"));
  auto refused = settle_sampling(scored, *model, 12'501, "prompt");
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, Code::kBadRequest);
  EXPECT_EQ(refused.error().param, "n");
  EXPECT_NE(refused.error().message.find("4000320 log-probabilities"), std::string::npos) << refused.error().message;
  scored.set_echo(false);
  EXPECT_TRUE(settle_sampling(scored, *model, 200'000, "prompt")) << "nothing of it is told";

  auto text = [](size_t bytes, int n) {
    return [=](Request& r) {
      r.set_raw_text(std::string(bytes, 'a'));
      r.mutable_sampling()->set_echo(true);
      r.mutable_sampling()->set_n(n);
    };
  };
  EXPECT_EQ(check(text(2 << 20, 16)).code, Code::kOk);
  EXPECT_EQ(check(text((2 << 20) + 1, 16)).param, "n");
  EXPECT_EQ(check(text(kMaxBodyBytes, 1)).code, Code::kOk);
}

TEST_F(RequestCheckTest, AnImageIsAClearRefusal) {
  Refusal refusal =
      check([](Request& r) { r.mutable_conversation()->mutable_messages(0)->add_parts()->set_image("png"); });
  EXPECT_EQ(refusal.code, Code::kUnsupportedFeature);
  EXPECT_EQ(refusal.param, "messages");
}

TEST_F(RequestCheckTest, ToolsHaveNamesOfTheirOwn) {
  EXPECT_EQ(check([](Request& r) { r.add_tools()->set_name("f"); }).code, Code::kOk);
  EXPECT_EQ(check([](Request& r) { r.add_tools(); }).param, "tools");
  EXPECT_EQ(check([](Request& r) {
              r.add_tools()->set_name("f");
              r.add_tools()->set_name("f");
            }).param,
            "tools");
  EXPECT_EQ(check([](Request& r) { r.mutable_tool_choice()->set_kind(v1::ToolChoice::REQUIRED); }).param,
            "tool_choice");
  EXPECT_EQ(check([](Request& r) {
              r.set_raw_text("x");
              r.add_tools()->set_name("f");
            }).param,
            "tools");
}

TEST_F(RequestCheckTest, APromptOverTheContextNamesBothNumbers) {
  auto settled = settle_sampling({}, *model, 200, "messages");
  ASSERT_FALSE(settled.has_value());
  EXPECT_EQ(settled.error().code, Code::kContextExceeded);
  EXPECT_NE(settled.error().message.find("context is 200 tokens"), std::string::npos) << settled.error().message;
  EXPECT_NE(settled.error().message.find("prompt has 200 tokens"), std::string::npos);
}

TEST_F(RequestCheckTest, MaxTokensIsBoundedByWhatTheContextLeaves) {
  v1::SamplingParams asked;
  EXPECT_EQ(settle_sampling(asked, *model, 150, "prompt")->max_tokens(), 50);
  asked.set_max_tokens(20);
  EXPECT_EQ(settle_sampling(asked, *model, 150, "prompt")->max_tokens(), 20);
  asked.set_max_tokens(100);
  EXPECT_EQ(settle_sampling(asked, *model, 150, "prompt")->max_tokens(), 50);
}

TEST(ServedModelDefaults, HoldWhereTheRequestSaysNothing) {
  testing::TinyAssets assets({"tiny"}, "[sampling]\ntemperature = 0.5\ntop_k = 40\n");
  auto model = assets.model();
  v1::SamplingParams asked;
  asked.set_temperature(0);
  auto settled = settle_sampling(asked, *model, 10, "prompt");
  EXPECT_EQ(settled->temperature(), 0);
  EXPECT_EQ(settled->top_k(), 40);
}

}  // namespace
}  // namespace tie::request::app
