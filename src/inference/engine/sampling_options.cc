#include "inference/engine/sampling_options.h"

#include <fmt/core.h>

#include <cmath>

namespace tie::engine {
namespace {

// NaN fails both comparisons' negation, so it is refused as well.
Result<void> in_range(const char* name, float value, float low, float high) {
  if (!(value >= low && value <= high))
    return fail(Code::kBadRequest, fmt::format("{} must be between {} and {}", name, low, high));
  return {};
}

Result<void> known_id(const char* name, int32_t id, uint32_t vocabulary) {
  if (id < 0 || static_cast<uint32_t>(id) >= vocabulary)
    return fail(Code::kBadRequest,
                fmt::format("{} names token {}, but the vocabulary has {} tokens", name, id, vocabulary));
  return {};
}

Result<void> check_stops(const SamplingOptions& o, uint32_t vocabulary) {
  if (o.stop.size() > kMaxStopStrings)
    return fail(Code::kBadRequest, fmt::format("at most {} stop strings are allowed", kMaxStopStrings));
  for (const auto& text : o.stop)
    if (text.empty() || text.size() > kMaxStopBytes)
      return fail(Code::kBadRequest, fmt::format("a stop string must have 1 to {} bytes", kMaxStopBytes));
  if (o.stop_token_ids.size() > kMaxStopTokenIds)
    return fail(Code::kBadRequest, fmt::format("at most {} stop_token_ids are allowed", kMaxStopTokenIds));
  for (int32_t id : o.stop_token_ids) TIE_CHECK_OK(known_id("stop_token_ids", id, vocabulary));
  return {};
}

}  // namespace

Result<void> check(const SamplingOptions& o, uint32_t vocabulary) {
  TIE_CHECK_OK(in_range("temperature", o.temperature, 0.0f, 2.0f));
  if (!(o.top_p > 0.0f && o.top_p <= 1.0f)) return fail(Code::kBadRequest, "top_p must be above 0 and at most 1");
  TIE_CHECK_OK(in_range("min_p", o.min_p, 0.0f, 1.0f));
  if (!(o.repetition_penalty > 0.0f && o.repetition_penalty <= 100.0f))
    return fail(Code::kBadRequest, "repetition_penalty must be above 0 and at most 100");
  TIE_CHECK_OK(in_range("presence_penalty", o.presence_penalty, -2.0f, 2.0f));
  TIE_CHECK_OK(in_range("frequency_penalty", o.frequency_penalty, -2.0f, 2.0f));
  if (o.n < 1 || o.n > kMaxSamples)
    return fail(Code::kBadRequest, fmt::format("n must be between 1 and {}", kMaxSamples));
  if (o.top_logprobs > kMaxTopLogprobs)
    return fail(Code::kBadRequest, fmt::format("top_logprobs must be between 0 and {}", kMaxTopLogprobs));
  if (o.logit_bias.size() > kMaxLogitBiases)
    return fail(Code::kBadRequest, fmt::format("logit_bias may name at most {} tokens", kMaxLogitBiases));
  for (const auto& [id, bias] : o.logit_bias) {
    TIE_CHECK_OK(known_id("logit_bias", id, vocabulary));
    TIE_CHECK_OK(in_range("logit_bias", bias, -100.0f, 100.0f));
  }
  return check_stops(o, vocabulary);
}

}  // namespace tie::engine
