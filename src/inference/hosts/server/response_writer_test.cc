#include "inference/hosts/server/response_writer.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>

#include "runtime.pb.h"

namespace tie::runtime_host {
namespace {

inference::ModelStreamInferResponse parse(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(buffer.Dump(&slices).ok());
  std::string whole;
  for (auto& s : slices) whole.append(reinterpret_cast<const char*>(s.begin()), s.size());
  inference::ModelStreamInferResponse r;
  EXPECT_TRUE(r.ParseFromString(whole));
  return r;
}

std::map<std::string, std::string> tensors(const inference::ModelStreamInferResponse& r) {
  std::map<std::string, std::string> out;
  for (int i = 0; i < r.infer_response().outputs_size(); ++i)
    out[r.infer_response().outputs(i).name()] = r.infer_response().raw_output_contents(i);
  return out;
}

TEST(ResponseWriter, WritesTheTensorsOfTheReadme) {
  ResponseWriter writer("m");
  ResponseParts parts{.sample = 2, .tokens = {7, 8}};
  auto r = parse(writer.write("id", parts, kAllOutputs, false));
  EXPECT_EQ(r.infer_response().model_name(), "m");
  EXPECT_EQ(r.infer_response().id(), "id");
  EXPECT_TRUE(r.error_message().empty());
  EXPECT_TRUE(r.infer_response().parameters().empty());
  auto t = tensors(r);
  EXPECT_EQ(t.at("sample_index"), std::string("\2\0\0\0", 4));
  EXPECT_EQ(t.at("token_ids"), std::string("\7\0\0\0\10\0\0\0", 8));
  EXPECT_EQ(t.at("finish"), std::string(4, '\0'));
  EXPECT_FALSE(t.contains("usage"));
  EXPECT_FALSE(t.contains("logprobs"));
  EXPECT_EQ(r.infer_response().outputs(1).shape(0), 2);
}

TEST(ResponseWriter, AMessageOfScoresIsOverwrittenEntryByEntry) {
  v1::RuntimeLogprobs message;
  for (int32_t id : {7, 8}) {
    auto& entry = *message.add_entries();
    entry.set_token_id(id);
    entry.set_logprob(-0.5f);
    auto& top = *entry.add_top();
    top.set_token_id(id + 10);
    top.set_logprob(-0.25f);
  }
  wipe(message);
  ASSERT_EQ(message.entries_size(), 2);
  for (const auto& entry : message.entries()) {
    EXPECT_EQ(entry.token_id(), 0);
    EXPECT_EQ(entry.logprob(), 0);
    ASSERT_EQ(entry.top_size(), 1);
    EXPECT_EQ(entry.top(0).token_id(), 0);
    EXPECT_EQ(entry.top(0).logprob(), 0);
  }
}

TEST(ResponseWriter, ScoresOfThePromptAreThereWhenThereAreAny) {
  ResponseWriter writer("m");
  ResponseParts parts;
  EXPECT_FALSE(tensors(parse(writer.write("id", parts, kAllOutputs, true))).contains("prompt_logprobs"));
  parts.prompt_logprobs = {{.token = 7, .logprob = -0.5f, .n_top = 1}, {.token = 8, .logprob = -1.5f}};
  parts.prompt_logprobs[0].top[0] = {9, -0.25f};
  EXPECT_FALSE(tensors(parse(writer.write("id", parts, kTokenIds, true))).contains("prompt_logprobs"));
  v1::RuntimeLogprobs scores;
  ASSERT_TRUE(scores.ParseFromString(
      tensors(parse(writer.write("id", parts, kAllOutputs, true))).at("prompt_logprobs").substr(4)));
  ASSERT_EQ(scores.entries_size(), 2);
  EXPECT_EQ(scores.entries(0).token_id(), 7);
  EXPECT_EQ(scores.entries(0).top(0).logprob(), -0.25f);
  EXPECT_EQ(scores.entries(1).logprob(), -1.5f);
}

TEST(ResponseWriter, WipedPartsSayNothingOfPromptOrAnswer) {
  ResponseParts parts;
  parts.tokens = {7, 8};
  parts.logprobs = parts.prompt_logprobs = {{.token = 7, .logprob = -0.5f, .n_top = 1, .top = {{{9, -0.25f}}}}};
  wipe(parts);
  EXPECT_EQ(parts.tokens, std::vector<int32_t>(2));
  for (const auto* entries : {&parts.logprobs, &parts.prompt_logprobs}) {
    EXPECT_EQ(entries->at(0).token, 0);
    EXPECT_EQ(entries->at(0).top[0].token, 0);
  }
}

TEST(ResponseWriter, TheLastCarriesUsageAndTheMark) {
  ResponseWriter writer("m");
  ResponseParts parts{
      .finish = engine::Finish::kStop, .final = true, .usage = {.prompt_tokens = 3, .completion_tokens = 4}};
  auto r = parse(writer.write("", parts, kAllOutputs, false));
  EXPECT_TRUE(r.infer_response().parameters().at("triton_final_response").bool_param());
  auto t = tensors(r);
  EXPECT_EQ(t.at("finish"), std::string("\4\0\0\0stop", 8));
  v1::RuntimeUsage usage;
  ASSERT_TRUE(usage.ParseFromString(t.at("usage").substr(4)));
  EXPECT_EQ(usage.completion_tokens(), 4u);
  // The writer's buffers do not leak into the next response.
  EXPECT_TRUE(parse(writer.write("", {}, kTokenIds, false)).infer_response().parameters().empty());
  EXPECT_EQ(parse(writer.write("", {}, kTokenIds, false)).infer_response().outputs_size(), 1);
}

TEST(ResponseWriter, ErrorsNameTheirCode) {
  ResponseWriter writer("m");
  auto r = parse(writer.write_error("id", {Code::kContextExceeded, "too long"}, nullptr));
  EXPECT_EQ(r.error_message(), "CONTEXT_EXCEEDED: too long");
  EXPECT_EQ(r.infer_response().id(), "id");
  EXPECT_TRUE(r.infer_response().parameters().at("triton_final_response").bool_param());
  ResponseParts parts{.finish = engine::Finish::kError, .final = true};
  EXPECT_EQ(tensors(parse(writer.write_error("id", {Code::kDeadline, "late"}, &parts))).at("finish"),
            std::string("\5\0\0\0error", 9));
}

}  // namespace
}  // namespace tie::runtime_host
