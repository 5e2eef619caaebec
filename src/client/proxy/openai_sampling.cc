// How tokens are drawn: the parameters that both endpoints share.
#include <fmt/format.h>

#include <charconv>

#include "client/proxy/limits.h"
#include "client/proxy/openai_parts.h"

namespace tie::client {
namespace {

constexpr double kSmallestTopP = 1e-6;  // OpenAI takes 0; the engine's range is (0, 1]
constexpr size_t kMaxStopTokens = 64;

void read_stop(FieldReader& body, v1::SamplingParams& out) {
  const auto* stop = body.any("stop");
  if (!stop) return;
  auto add = [&](const nlohmann::json& value) {
    if (!value.is_string()) return body.fail_on("stop", "'stop' must be a string or an array of strings.");
    const auto& text = value.get_ref<const std::string&>();
    if (text.empty() || text.size() > kMaxStopBytes)
      return body.fail_on("stop", fmt::format("Each entry of 'stop' must have 1 to {} bytes.", kMaxStopBytes));
    out.add_stop(text);
  };
  if (!stop->is_array()) return add(*stop);
  if (stop->size() > kMaxStops)
    return body.fail_on("stop", fmt::format("'stop' has {} entries; at most {} are taken.", stop->size(), kMaxStops));
  for (const auto& value : *stop) add(value);
}

void read_logit_bias(FieldReader& body, v1::SamplingParams& out) {
  const auto* biases = body.object("logit_bias");
  if (!biases) return;
  if (biases->size() > kMaxLogitBiases)
    return body.fail_on("logit_bias", fmt::format("'logit_bias' may have at most {} entries.", kMaxLogitBiases));
  for (const auto& [key, value] : biases->items()) {
    int32_t id = -1;
    auto [end, problem] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (problem != std::errc{} || end != key.data() + key.size() || id < 0)
      return body.fail_on("logit_bias", "The keys of 'logit_bias' must be token ids.");
    if (!value.is_number())
      return body.fail_on("logit_bias", "The values of 'logit_bias' must be numbers between -100 and 100.");
    double bias = value.get<double>();
    if (!(bias >= -100 && bias <= 100))
      return body.fail_on("logit_bias", "The values of 'logit_bias' must be between -100 and 100.");
    (*out.mutable_logit_bias())[id] = float(bias);
  }
}

// Extensions under the names that vLLM and others use.
void read_extensions(FieldReader& body, v1::SamplingParams& out) {
  if (auto v = body.integer("top_k", -1, INT32_MAX)) out.set_top_k(int32_t(std::max<int64_t>(*v, 0)));
  if (auto v = body.number("min_p", 0, 1)) out.set_min_p(float(*v));
  if (auto v = body.number("repetition_penalty", 1e-3, 100)) out.set_repetition_penalty(float(*v));
  if (auto v = body.integer("min_tokens", 0, INT32_MAX)) out.set_min_tokens(int32_t(*v));
  if (auto v = body.boolean("ignore_eos")) out.set_ignore_eos(*v);
  if (auto v = body.boolean("include_stop_str_in_output")) out.set_include_stop_in_output(*v);
  if (const auto* ids = body.array("stop_token_ids", kMaxStopTokens)) {
    for (const auto& id : *ids) {
      if (!id.is_number_integer() || id < 0 || id > INT32_MAX)
        return body.fail_on("stop_token_ids", "'stop_token_ids' must hold token ids.");
      out.add_stop_token_ids(id.get<int32_t>());
    }
  }
}

}  // namespace

void read_sampling(FieldReader& body, v1::SamplingParams& out) {
  if (auto v = body.number("temperature", 0, 2)) out.set_temperature(float(*v));
  if (auto v = body.number("top_p", 0, 1)) out.set_top_p(float(std::max(*v, kSmallestTopP)));
  if (auto v = body.number("presence_penalty", -2, 2)) out.set_presence_penalty(float(*v));
  if (auto v = body.number("frequency_penalty", -2, 2)) out.set_frequency_penalty(float(*v));
  if (auto v = body.integer("seed", INT64_MIN, INT64_MAX)) out.set_seed(uint64_t(*v));
  if (auto v = body.integer("n", 1, kMaxSamples)) out.set_n(int32_t(*v));
  read_stop(body, out);
  read_logit_bias(body, out);
  read_extensions(body, out);
}

}  // namespace tie::client
