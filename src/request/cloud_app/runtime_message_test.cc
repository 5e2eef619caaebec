#include "request/cloud_app/runtime_message.h"

#include <gtest/gtest.h>

#include "request/cloud_app/testing.h"

namespace tie::request::app {
namespace {

TEST(RuntimeMessage, ReadsWhatTheRuntimeSays) {
  auto message = testing::response({1, 2, 3}, "stop", 2, 7);
  testing::make_final(message, 11, 3);
  auto event = read_response(message);
  ASSERT_TRUE(event.has_value());
  EXPECT_EQ(event->tokens, (std::vector<int32_t>{1, 2, 3}));
  EXPECT_EQ(event->sample, 2);
  EXPECT_EQ(event->stop_trim_bytes, 7u);
  EXPECT_EQ(event->finish, "stop");
  EXPECT_TRUE(event->final);
  EXPECT_EQ(event->usage.prompt_tokens(), 11u);
}

TEST(RuntimeMessage, ErrorsKeepTheirNameAndUnknownOnesBecomeInternal) {
  inference::ModelStreamInferResponse message;
  message.set_error_message("CONTEXT_EXCEEDED: 9 of 8 tokens");
  auto known = read_response(message);
  EXPECT_EQ(known.error().code, Code::kContextExceeded);
  EXPECT_EQ(known.error().message, "9 of 8 tokens");
  message.set_error_message("something else");
  EXPECT_EQ(read_response(message).error().code, Code::kInternal);
}

TEST(RuntimeMessage, MalformedTensorsAreRefused) {
  for (int i = 0; i < 4; ++i) {
    auto message = testing::response({1, 2});
    *message.mutable_infer_response()->mutable_raw_output_contents(i) += "x";
    EXPECT_FALSE(read_response(message).has_value()) << i;
  }
  auto message = testing::response({1});
  message.mutable_infer_response()->mutable_raw_output_contents()->RemoveLast();
  EXPECT_FALSE(read_response(message).has_value());
  EXPECT_FALSE(read_response(testing::response({1}, "", 0, -1)).has_value());
}

TEST(RuntimeMessage, ARequestCarriesItsTensors) {
  v1::SamplingParams sampling;
  sampling.set_n(3);
  std::vector<int32_t> prompt{5, 6};
  inference::ModelInferRequest out;
  build_request({.model = "m", .request_id = "id", .prompt = prompt, .sampling = &sampling, .deadline_ms = 500}, out);
  ASSERT_EQ(out.inputs_size(), 2);
  EXPECT_EQ(out.inputs(0).name(), "token_ids");
  EXPECT_EQ(out.inputs(0).shape(0), 2);
  EXPECT_EQ(out.raw_input_contents(0), std::string("\5\0\0\0\6\0\0\0", 8));
  EXPECT_EQ(out.inputs(1).name(), "sampling");
  EXPECT_EQ(out.parameters().at("deadline_ms").int64_param(), 500);
}

}  // namespace
}  // namespace tie::request::app
