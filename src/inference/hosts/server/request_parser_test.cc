#include "inference/hosts/server/request_parser.h"

#include <gtest/gtest.h>

#include <cstring>

#include "inference/hosts/server/limits.h"

namespace tie::runtime_host {
namespace {

using inference::ModelInferRequest;

std::string raw_int32(const std::vector<int32_t>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * 4};
}
std::string raw_bytes(std::string_view value) {
  std::string out(4, '\0');
  auto n = static_cast<uint32_t>(value.size());
  std::memcpy(out.data(), &n, 4);
  return out.append(value);
}

void add(ModelInferRequest& r, const char* name, const char* type, int64_t n, std::string raw) {
  auto* t = r.add_inputs();
  t->set_name(name);
  t->set_datatype(type);
  t->add_shape(n);
  r.add_raw_input_contents(std::move(raw));
}

ModelInferRequest minimal() {
  ModelInferRequest r;
  r.set_model_name("m");
  add(r, "token_ids", "INT32", 3, raw_int32({5, 6, 7}));
  return r;
}

Code refused(const ModelInferRequest& r) {
  auto parsed = parse_request(r, "m");
  return parsed ? Code::kOk : parsed.error().code;
}

TEST(RequestParser, TokenIdsAloneAreEnough) {
  auto parsed = parse_request(minimal(), "m");
  ASSERT_TRUE(parsed) << parsed.error().message;
  EXPECT_EQ(parsed->spec.prompt, (std::vector<int32_t>{5, 6, 7}));
  EXPECT_FALSE(parsed->spec.grammar);
  EXPECT_EQ(parsed->spec.sampling.n, 1u);
  EXPECT_FALSE(parsed->spec.sampling.max_tokens);
  EXPECT_EQ(parsed->outputs, kAllOutputs);
}

TEST(RequestParser, TypedContentsSayTheSame) {
  ModelInferRequest r;
  r.set_model_name("m");
  auto* t = r.add_inputs();
  t->set_name("token_ids");
  t->set_datatype("INT32");
  t->add_shape(2);
  t->mutable_contents()->add_int_contents(8);
  t->mutable_contents()->add_int_contents(9);
  auto* g = r.add_inputs();
  g->set_name("grammar");
  g->set_datatype("BYTES");
  g->add_shape(1);
  g->mutable_contents()->add_bytes_contents("g");
  auto parsed = parse_request(r, "m");
  ASSERT_TRUE(parsed) << parsed.error().message;
  EXPECT_EQ(parsed->spec.prompt, (std::vector<int32_t>{8, 9}));
  EXPECT_EQ(*parsed->spec.grammar, "g");
}

TEST(RequestParser, AnEmptyGrammarIsNotAnAbsentOne) {
  auto r = minimal();
  add(r, "grammar", "BYTES", 1, raw_bytes(""));
  auto parsed = parse_request(r, "m");
  ASSERT_TRUE(parsed);
  ASSERT_TRUE(parsed->spec.grammar);
  EXPECT_TRUE(parsed->spec.grammar->empty());
}

TEST(RequestParser, SamplingTravelsWhole) {
  v1::SamplingParams s;
  s.set_temperature(0.5f);
  s.set_top_k(7);
  s.set_seed(0);
  s.set_n(3);
  s.set_max_tokens(0);
  s.add_stop("x");
  (*s.mutable_logit_bias())[4] = -1;
  s.set_top_logprobs(2);
  auto r = minimal();
  add(r, "sampling", "BYTES", 1, raw_bytes(s.SerializeAsString()));
  auto parsed = parse_request(r, "m");
  ASSERT_TRUE(parsed) << parsed.error().message;
  const auto& o = parsed->spec.sampling;
  EXPECT_EQ(o.temperature, 0.5f);
  EXPECT_EQ(o.top_k, 7u);
  EXPECT_EQ(o.seed, 0u);
  EXPECT_EQ(o.n, 3u);
  EXPECT_EQ(o.max_tokens, 0u);
  EXPECT_EQ(o.stop, std::vector<std::string>{"x"});
  EXPECT_EQ(o.logit_bias.size(), 1u);
  EXPECT_TRUE(o.logprobs);
  EXPECT_FALSE(o.prompt_logprobs);
  EXPECT_EQ(o.top_p, 1.0f);
}

TEST(RequestParser, EchoAndLogprobsTogetherAskForThoseOfThePrompt) {
  v1::SamplingParams s;
  s.set_echo(true);
  EXPECT_FALSE(parse_sampling(s)->prompt_logprobs);
  s.set_logprobs(true);
  EXPECT_TRUE(parse_sampling(s)->prompt_logprobs);
}

TEST(RequestParser, ParametersCarryDeadlineAndPriority) {
  auto r = minimal();
  (*r.mutable_parameters())["deadline_ms"].set_int64_param(1500);
  (*r.mutable_parameters())["priority"].set_uint64_param(2);
  (*r.mutable_parameters())["request_id"].set_string_param("abc");
  (*r.mutable_parameters())["triton_enable_empty_final_response"].set_bool_param(true);
  auto parsed = parse_request(r, "m");
  ASSERT_TRUE(parsed) << parsed.error().message;
  EXPECT_EQ(parsed->spec.deadline_ms, 1500u);
  EXPECT_EQ(parsed->spec.priority, 2u);
  auto t = minimal();
  (*t.mutable_parameters())["timeout"].set_int64_param(2'500'001);
  EXPECT_EQ(parse_request(t, "m")->spec.deadline_ms, 2501u);
}

TEST(RequestParser, EachKindOfMalformedTensorIsAnError) {
  auto change = [](auto edit) {
    auto r = minimal();
    edit(r);
    return refused(r);
  };
  EXPECT_EQ(refused(ModelInferRequest()), Code::kModelNotFound);
  EXPECT_EQ(change([](auto& r) { r.set_model_version("2"); }), Code::kModelNotFound);
  EXPECT_EQ(change([](auto& r) { r.mutable_inputs(0)->set_name("tokens"); }), Code::kBadRequest);
  EXPECT_EQ(change([](auto& r) { r.mutable_inputs(0)->set_datatype("INT64"); }), Code::kBadRequest);
  EXPECT_EQ(change([](auto& r) { r.mutable_inputs(0)->set_shape(0, 4); }), Code::kBadRequest);
  EXPECT_EQ(change([](auto& r) { r.mutable_inputs(0)->set_shape(0, -1); }), Code::kBadRequest);
  EXPECT_EQ(change([](auto& r) { r.mutable_inputs(0)->set_shape(0, INT64_MAX); }), Code::kBadRequest);
  EXPECT_EQ(change([](auto& r) { r.mutable_inputs(0)->add_shape(1); }), Code::kBadRequest);
  EXPECT_EQ(change([](auto& r) { r.mutable_inputs(0)->clear_shape(); }), Code::kBadRequest);
  EXPECT_EQ(change([](auto& r) { r.add_raw_input_contents("x"); }), Code::kBadRequest);
  EXPECT_EQ(change([](auto& r) { r.clear_raw_input_contents(); }), Code::kBadRequest);
  EXPECT_EQ(change([](auto& r) { r.mutable_inputs(0)->mutable_contents()->add_int_contents(1); }), Code::kBadRequest);
  EXPECT_EQ(change([](auto& r) { add(r, "token_ids", "INT32", 1, raw_int32({1})); }), Code::kBadRequest);
  EXPECT_EQ(change([](auto& r) { add(r, "sampling", "BYTES", 1, raw_bytes("\xff\xff\xff")); }), Code::kBadRequest);
  EXPECT_EQ(change([](auto& r) { add(r, "sampling", "BYTES", 1, "\x05"); }), Code::kBadRequest);
  EXPECT_EQ(change([](auto& r) { add(r, "sampling", "BYTES", 1, std::string("\xff\xff\xff\xff", 4)); }),
            Code::kBadRequest);
  EXPECT_EQ(change([](auto& r) { add(r, "sampling", "BYTES", 1, raw_bytes("") + "x"); }), Code::kBadRequest);
  EXPECT_EQ(change([](auto& r) { add(r, "grammar", "BYTES", 2, raw_bytes("") + raw_bytes("")); }), Code::kBadRequest);
  EXPECT_EQ(change([](auto& r) { add(r, "grammar", "BYTES", 1, raw_bytes(std::string(kMaxGrammarBytes + 1, 'x'))); }),
            Code::kTooLarge);
  EXPECT_EQ(change([](auto& r) { add(r, "images", "BYTES", 1, raw_bytes("\x89PNG")); }), Code::kUnsupportedFeature);
  EXPECT_EQ(change([](auto& r) { add(r, "kv_import", "BYTES", 1, raw_bytes("handle")); }), Code::kBadRequest);
  EXPECT_EQ(change([](auto& r) { add(r, "kv_import", "BYTES", 1, raw_bytes(std::string(16, 'h'))); }), Code::kOk);
  EXPECT_EQ(change([](auto& r) { add(r, "kv_export", "BYTES", 1, raw_bytes("")); }), Code::kOk);
  EXPECT_EQ(change([](auto& r) { (*r.mutable_parameters())["deadline_ms"].set_int64_param(-1); }), Code::kBadRequest);
  EXPECT_EQ(change([](auto& r) { (*r.mutable_parameters())["priority"].set_int64_param(10); }), Code::kBadRequest);
  EXPECT_EQ(change([](auto& r) { (*r.mutable_parameters())["colour"].set_int64_param(1); }), Code::kBadRequest);
  EXPECT_EQ(change([](auto& r) { r.add_outputs()->set_name("text"); }), Code::kBadRequest);
  EXPECT_EQ(change([](auto& r) { r.add_outputs()->set_name("token_ids"); }), Code::kOk);
}

TEST(RequestParser, AbsurdSamplingIsRefused) {
  auto with = [](auto edit) {
    v1::SamplingParams s;
    edit(s);
    auto parsed = parse_sampling(s);
    return !parsed || !engine::check(*parsed, 100);
  };
  EXPECT_TRUE(with([](auto& s) { s.set_n(5'000'000); }));
  EXPECT_TRUE(with([](auto& s) { s.set_n(-1); }));
  EXPECT_TRUE(with([](auto& s) { s.set_top_logprobs(1'000'000'000); }));
  EXPECT_TRUE(with([](auto& s) { s.set_max_tokens(-5); }));
  EXPECT_TRUE(with([](auto& s) { s.set_max_tokens(2), s.set_min_tokens(3); }));
  EXPECT_TRUE(with([](auto& s) { s.set_top_k(-1); }));
  EXPECT_TRUE(with([](auto& s) { (*s.mutable_logit_bias())[100] = 1; }));
  EXPECT_FALSE(with([](auto& s) { s.set_temperature(1e-6f); }));
}

TEST(RequestParser, WipingLeavesNothingOfThePrompt) {
  auto r = minimal();
  wipe(r);
  EXPECT_EQ(r.raw_input_contents(0).find('\5'), std::string::npos);
}

}  // namespace
}  // namespace tie::runtime_host
