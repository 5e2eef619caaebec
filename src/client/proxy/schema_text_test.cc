#include "client/proxy/schema_text.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "client/proxy/openai_request.h"

namespace tie::client {
namespace {

v1::InferenceRequest read(const std::string& rest) {
  auto request = read_openai_request(Endpoint::kChat,
                                     R"({"model":"m","messages":[{"role":"user","content":"a \"b\\"}],)" + rest + "}");
  EXPECT_TRUE(request.has_value()) << (request ? "" : request.error().message);
  return request ? request->payloads.front() : v1::InferenceRequest{};
}

TEST(SchemaText, StaysAsWritten) {
  const std::string schema = R"({ "z":{"type":"integer"}, "a" : [1e2, "}]\\\"", {"x":null}] })";
  auto tools = read(R"("tools":[{"type":"function","function":{"name":"f"}},{"function":{"parameters":)" + schema +
                    R"(,"name":"g"},"type":"function"}])");
  EXPECT_EQ(tools.tools(0).parameters_json(), "");
  EXPECT_EQ(tools.tools(1).parameters_json(), schema);
  EXPECT_EQ(read(R"("response_format":{"type":"json_schema","json_schema":{"name":"n","schema":)" + schema + "}}")
                .response_format()
                .schema_or_grammar(),
            schema);
  EXPECT_EQ(read(R"("guided_json":)" + schema).response_format().schema_or_grammar(), schema);
  EXPECT_EQ(read(R"("guided_json":"{\"type\":\"object\"}")").response_format().schema_or_grammar(),
            R"({"type":"object"})");
  EXPECT_EQ(read(R"("structured_outputs":{"json":)" + schema + "}").response_format().schema_or_grammar(), schema);
}

TEST(SchemaText, TakesTheLastOfTwoAsTheParserDoes) {
  auto request = read(R"("guided_json":{"a":1},"guided_\u006ason":{"b":2})");
  EXPECT_EQ(request.response_format().schema_or_grammar(), R"({"b":2})");
}

TEST(SchemaText, NeverReadsBeyondBrokenText) {
  v1::InferenceRequest request;
  request.add_tools();
  request.mutable_response_format()->set_kind(v1::ResponseFormat::JSON_SCHEMA);
  const std::string whole = R"({"tools":[{"function":{"parameters":{"a":"\"]}"}}}],"guided_json":{"x":[1,{}]}})";
  for (size_t size = 0; size <= whole.size(); ++size)
    keep_schema_texts(std::string_view(whole).substr(0, size), request);
  EXPECT_EQ(request.tools(0).parameters_json(), R"({"a":"\"]}"})");
}

}  // namespace
}  // namespace tie::client
