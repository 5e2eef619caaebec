#include "inference/hosts/server/request_parser.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <optional>
#include <span>

#include "base/secret_bytes.h"
#include "inference/hosts/server/limits.h"

namespace tie::runtime_host {
namespace {

static_assert(std::endian::native == std::endian::little, "raw tensor contents are little-endian");

using inference::InferParameter;
using inference::InferTensorContents;
using inference::ModelInferRequest;
using Tensor = inference::ModelInferRequest::InferInputTensor;

struct InputRule {
  const char* name;
  const char* datatype;
  size_t max_elements;
};
constexpr std::array kInputs = {
    InputRule{"token_ids", "INT32", kMaxPromptTokens},
    InputRule{"sampling", "BYTES", 1},
    InputRule{"grammar", "BYTES", 1},
    InputRule{"prompt_id", "BYTES", 1},
    InputRule{"images", "BYTES", kMaxImages},
    InputRule{"image_positions", "INT32", kMaxImages},
    InputRule{"kv_import", "BYTES", 1},
    InputRule{"kv_export", "BYTES", 1},
};
constexpr std::array<std::pair<const char*, uint32_t>, 7> kOutputs = {{{"sample_index", kSampleIndex},
                                                                       {"token_ids", kTokenIds},
                                                                       {"stop_trim_bytes", kStopTrimBytes},
                                                                       {"logprobs", kLogprobs},
                                                                       {"finish", kFinish},
                                                                       {"usage", kUsage},
                                                                       {"prompt_logprobs", kPromptLogprobs}}};

// Names come from outside: only short, plain ones are repeated in a message.
std::string shown(std::string_view name) {
  bool plain = name.size() <= 40 && std::all_of(name.begin(), name.end(), [](char c) { return c > 32 && c < 127; });
  return plain ? fmt::format("'{}'", name) : "with an unreadable name";
}

// A tensor that has passed the checks that all tensors share.
struct Input {
  const Tensor* tensor = nullptr;
  size_t elements = 0;
  const std::string* raw = nullptr;  // null: typed contents
};

Result<size_t> element_count(const Tensor& t, const InputRule& rule) {
  if (t.shape_size() != 1) return fail(Code::kBadRequest, fmt::format("input '{}' must have one dimension", rule.name));
  if (t.shape(0) < 0 || static_cast<uint64_t>(t.shape(0)) > rule.max_elements)
    return fail(Code::kBadRequest,
                fmt::format("input '{}' may have at most {} elements", rule.name, rule.max_elements));
  return static_cast<size_t>(t.shape(0));
}

struct Inputs {
  std::array<std::optional<Input>, kInputs.size()> found;
  const std::optional<Input>& operator[](std::string_view name) const {
    size_t i = 0;
    while (name != kInputs[i].name) ++i;
    return found[i];
  }
};

Result<Inputs> collect_inputs(const ModelInferRequest& request) {
  bool raw = request.raw_input_contents_size() > 0;
  if (raw && request.raw_input_contents_size() != request.inputs_size())
    return fail(Code::kBadRequest, fmt::format("{} inputs come with {} raw contents", request.inputs_size(),
                                               request.raw_input_contents_size()));
  Inputs inputs;
  for (int i = 0; i < request.inputs_size(); ++i) {
    const Tensor& t = request.inputs(i);
    auto rule = std::find_if(kInputs.begin(), kInputs.end(), [&](const InputRule& r) { return t.name() == r.name; });
    if (rule == kInputs.end()) return fail(Code::kBadRequest, fmt::format("there is no input {}", shown(t.name())));
    auto& slot = inputs.found[static_cast<size_t>(rule - kInputs.begin())];
    if (slot) return fail(Code::kBadRequest, fmt::format("input '{}' is given twice", rule->name));
    if (t.datatype() != rule->datatype)
      return fail(Code::kBadRequest, fmt::format("input '{}' must be {}", rule->name, rule->datatype));
    if (raw && t.has_contents())
      return fail(Code::kBadRequest, fmt::format("input '{}' has typed and raw contents", rule->name));
    if (t.parameters().contains("shared_memory_region"))
      return fail(Code::kUnsupportedFeature, "tensors in shared memory are not accepted");
    TIE_TRY(size_t n, element_count(t, *rule));
    slot = Input{&t, n, raw ? &request.raw_input_contents(i) : nullptr};
  }
  return inputs;
}

Result<std::vector<int32_t>> read_int32(const Input& input) {
  const char* name = input.tensor->name().c_str();  // one of kInputs by now
  std::vector<int32_t> out(input.elements);
  if (input.raw) {
    if (input.raw->size() != input.elements * sizeof(int32_t))
      return fail(Code::kBadRequest, fmt::format("input '{}' of {} elements must have {} bytes, not {}", name,
                                                 input.elements, input.elements * 4, input.raw->size()));
    if (!out.empty()) std::memcpy(out.data(), input.raw->data(), input.raw->size());
    return out;
  }
  const auto& values = input.tensor->contents().int_contents();
  if (static_cast<size_t>(values.size()) != input.elements)
    return fail(Code::kBadRequest,
                fmt::format("input '{}' of shape [{}] has {} values", name, input.elements, values.size()));
  std::copy(values.begin(), values.end(), out.begin());
  return out;
}

// Raw BYTES: each element is a 4-byte little-endian length and that many bytes. The views point into the request.
Result<std::vector<std::string_view>> read_bytes(const Input& input) {
  const char* name = input.tensor->name().c_str();
  std::vector<std::string_view> out;
  if (!input.raw) {
    const auto& values = input.tensor->contents().bytes_contents();
    if (static_cast<size_t>(values.size()) != input.elements)
      return fail(Code::kBadRequest,
                  fmt::format("input '{}' of shape [{}] has {} values", name, input.elements, values.size()));
    out.assign(values.begin(), values.end());
    return out;
  }
  std::string_view rest = *input.raw;
  for (size_t i = 0; i < input.elements; ++i) {
    uint32_t length = 0;
    if (rest.size() < sizeof length)
      return fail(Code::kBadRequest, fmt::format("input '{}' ends inside a length", name));
    std::memcpy(&length, rest.data(), sizeof length);
    rest.remove_prefix(sizeof length);
    if (rest.size() < length) return fail(Code::kBadRequest, fmt::format("input '{}' ends inside an element", name));
    out.push_back(rest.substr(0, length));
    rest.remove_prefix(length);
  }
  if (!rest.empty()) return fail(Code::kBadRequest, fmt::format("input '{}' has bytes behind its last element", name));
  return out;
}

// The single element of a BYTES tensor; empty when the tensor is absent or has none.
Result<std::string_view> read_one(const std::optional<Input>& input, size_t max_bytes) {
  if (!input || input->elements == 0) return std::string_view();
  TIE_TRY(auto values, read_bytes(*input));
  if (values[0].size() > max_bytes)
    return fail(Code::kTooLarge, fmt::format("input '{}' is over {} bytes", input->tensor->name(), max_bytes));
  return values[0];
}

// A kvxfer handle, or nothing.
Result<std::string> read_handle(const std::optional<Input>& input) {
  TIE_TRY(auto handle, read_one(input, kMaxIdBytes));
  if (!handle.empty() && handle.size() != kKvHandleBytes)
    return fail(Code::kBadRequest, fmt::format("input '{}' is a handle of 16 bytes", input->tensor->name()));
  return std::string(handle);
}

Result<uint64_t> whole_number(std::string_view name, const InferParameter& p, uint64_t most) {
  uint64_t value = 0;
  if (p.has_int64_param() && p.int64_param() >= 0) {
    value = static_cast<uint64_t>(p.int64_param());
  } else if (p.has_uint64_param()) {
    value = p.uint64_param();
  } else {
    return fail(Code::kBadRequest, fmt::format("parameter '{}' must be a whole number", name));
  }
  if (value > most) return fail(Code::kBadRequest, fmt::format("parameter '{}' must be at most {}", name, most));
  return value;
}

Result<void> read_parameters(const ModelInferRequest& request, engine::RequestSpec& spec) {
  for (const auto& [name, value] : request.parameters()) {
    if (name == "deadline_ms") {
      TIE_TRY(uint64_t ms, whole_number(name, value, UINT32_MAX));
      spec.deadline_ms = static_cast<uint32_t>(ms);
    } else if (name == "timeout") {  // Triton's own name, in microseconds
      TIE_TRY(uint64_t us, whole_number(name, value, uint64_t{UINT32_MAX} * 1000));
      if (spec.deadline_ms == 0) spec.deadline_ms = static_cast<uint32_t>((us + 999) / 1000);
    } else if (name == "priority") {
      TIE_TRY(uint64_t priority, whole_number(name, value, engine::kLowestPriority));
      spec.priority = static_cast<uint32_t>(priority);
    } else if (name == "request_id") {
      if (!value.has_string_param() || value.string_param().size() > kMaxIdBytes)
        return fail(Code::kBadRequest,
                    fmt::format("parameter 'request_id' must be a string of at most {} bytes", kMaxIdBytes));
    } else if (!name.starts_with("triton_")) {
      return fail(Code::kBadRequest, fmt::format("there is no parameter {}", shown(name)));
    }
  }
  return {};
}

Result<uint32_t> read_outputs(const ModelInferRequest& request) {
  if (request.outputs_size() == 0) return kAllOutputs;
  uint32_t bits = 0;
  for (const auto& output : request.outputs()) {
    auto known =
        std::find_if(kOutputs.begin(), kOutputs.end(), [&](const auto& o) { return output.name() == o.first; });
    if (known == kOutputs.end())
      return fail(Code::kBadRequest, fmt::format("there is no output {}", shown(output.name())));
    bits |= known->second;
  }
  return bits;
}

Result<void> read_images(const Inputs& inputs) {
  bool images = inputs["images"] && inputs["images"]->elements > 0;
  bool positions = inputs["image_positions"] && inputs["image_positions"]->elements > 0;
  if (images || positions) return fail(Code::kUnsupportedFeature, "this model reads text only, not images");
  return {};
}

Result<uint32_t> not_negative(const char* name, int64_t value) {
  if (value < 0) return fail(Code::kBadRequest, fmt::format("{} must not be negative", name));
  return static_cast<uint32_t>(value);
}

}  // namespace

Result<engine::SamplingOptions> parse_sampling(const v1::SamplingParams& p) {
  engine::SamplingOptions o;
  if (p.has_temperature()) o.temperature = p.temperature();
  if (p.has_top_p()) o.top_p = p.top_p();
  if (p.has_min_p()) o.min_p = p.min_p();
  if (p.has_repetition_penalty()) o.repetition_penalty = p.repetition_penalty();
  if (p.has_presence_penalty()) o.presence_penalty = p.presence_penalty();
  if (p.has_frequency_penalty()) o.frequency_penalty = p.frequency_penalty();
  if (p.has_seed()) o.seed = p.seed();
  TIE_TRY(o.top_k, not_negative("top_k", p.top_k()));
  TIE_TRY(o.n, not_negative("n", p.n()));
  if (o.n == 0) o.n = 1;
  if (p.has_max_tokens()) {
    TIE_TRY(o.max_tokens, not_negative("max_tokens", p.max_tokens()));
  }
  TIE_TRY(o.min_tokens, not_negative("min_tokens", p.min_tokens()));
  if (o.max_tokens && o.min_tokens > *o.max_tokens)
    return fail(Code::kBadRequest, "min_tokens must not be above max_tokens");
  TIE_TRY(o.top_logprobs, not_negative("top_logprobs", p.top_logprobs()));
  o.logit_bias.assign(p.logit_bias().begin(), p.logit_bias().end());
  std::sort(o.logit_bias.begin(), o.logit_bias.end());
  o.stop.assign(p.stop().begin(), p.stop().end());
  o.stop_token_ids.assign(p.stop_token_ids().begin(), p.stop_token_ids().end());
  o.ignore_eos = p.ignore_eos();
  o.logprobs = p.logprobs() || p.top_logprobs() > 0;
  o.include_stop_in_output = p.include_stop_in_output();
  o.prompt_logprobs = p.echo() && o.logprobs;
  return o;
}

Result<ParsedRequest> parse_request(const ModelInferRequest& request, std::string_view model) {
  if (request.model_name() != model || !(request.model_version().empty() || request.model_version() == "1"))
    return fail(Code::kModelNotFound, fmt::format("this runtime serves model '{}' version 1 only", model));
  if (request.id().size() > kMaxIdBytes)
    return fail(Code::kBadRequest, fmt::format("the request id is over {} bytes", kMaxIdBytes));
  TIE_TRY(Inputs inputs, collect_inputs(request));
  ParsedRequest out;
  TIE_CHECK_OK(read_parameters(request, out.spec));
  TIE_TRY(out.outputs, read_outputs(request));
  TIE_CHECK_OK(read_images(inputs));
  TIE_TRY(out.kv_import, read_handle(inputs["kv_import"]));
  TIE_TRY(out.kv_export, read_handle(inputs["kv_export"]));
  TIE_TRY(auto prompt_id, read_one(inputs["prompt_id"], kMaxIdBytes));
  out.prompt_id = prompt_id;
  TIE_TRY(auto sampling_text, read_one(inputs["sampling"], kMaxSamplingBytes));
  v1::SamplingParams sampling;
  if (!sampling.ParseFromArray(sampling_text.data(), static_cast<int>(sampling_text.size())))
    return fail(Code::kBadRequest, "input 'sampling' is not a serialized SamplingParams");
  auto options = parse_sampling(sampling);
  for (auto& stop : *sampling.mutable_stop()) secure_zero(stop);
  TIE_TRY(out.spec.sampling, std::move(options));
  if (inputs["grammar"] && inputs["grammar"]->elements > 0) {
    TIE_TRY(auto grammar, read_one(inputs["grammar"], kMaxGrammarBytes));
    out.spec.grammar = std::string(grammar);
  }
  if (!inputs["token_ids"]) return fail(Code::kBadRequest, "input 'token_ids' is missing");
  TIE_TRY(out.spec.prompt, read_int32(*inputs["token_ids"]));
  return out;
}

void wipe(ModelInferRequest& request) {
  for (auto& raw : *request.mutable_raw_input_contents()) secure_zero(raw);
  for (auto& input : *request.mutable_inputs()) {
    auto* contents = input.mutable_contents();
    std::fill(contents->mutable_int_contents()->begin(), contents->mutable_int_contents()->end(), 0);
    for (auto& value : *contents->mutable_bytes_contents()) secure_zero(value);
  }
}

}  // namespace tie::runtime_host
