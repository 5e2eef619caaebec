#include "inference/hosts/server/model_description.h"

#include <array>

namespace tie::runtime_host {
namespace {

struct TensorRow {
  const char* name;
  const char* datatype;
  inference::DataType type;
  int64_t size;  // -1: variable
  bool optional;
};
constexpr auto kInt32 = inference::TYPE_INT32;
constexpr auto kBytes = inference::TYPE_STRING;
constexpr std::array kInputRows = {
    TensorRow{"token_ids", "INT32", kInt32, -1, false}, TensorRow{"sampling", "BYTES", kBytes, 1, true},
    TensorRow{"grammar", "BYTES", kBytes, 1, true},     TensorRow{"prompt_id", "BYTES", kBytes, 1, true},
    TensorRow{"images", "BYTES", kBytes, -1, true},     TensorRow{"image_positions", "INT32", kInt32, -1, true},
    TensorRow{"kv_import", "BYTES", kBytes, 1, true},   TensorRow{"kv_export", "BYTES", kBytes, 1, true}};
constexpr std::array kOutputRows = {
    TensorRow{"sample_index", "INT32", kInt32, 1, false},    TensorRow{"token_ids", "INT32", kInt32, -1, false},
    TensorRow{"stop_trim_bytes", "INT32", kInt32, 1, false}, TensorRow{"logprobs", "BYTES", kBytes, 1, false},
    TensorRow{"finish", "BYTES", kBytes, 1, false},          TensorRow{"usage", "BYTES", kBytes, 1, false},
    TensorRow{"prompt_logprobs", "BYTES", kBytes, 1, false}};

template <typename Add>
void describe(const auto& rows, Add add) {
  for (const auto& row : rows) {
    auto* t = add();
    t->set_name(row.name);
    t->set_datatype(row.datatype);
    t->add_shape(row.size);
  }
}

}  // namespace

inference::ModelMetadataResponse model_metadata(const std::string& model) {
  inference::ModelMetadataResponse m;
  m.set_name(model);
  m.add_versions("1");
  m.set_platform("tie-afm-runtime");
  describe(kInputRows, [&] { return m.add_inputs(); });
  describe(kOutputRows, [&] { return m.add_outputs(); });
  return m;
}

inference::ModelConfig model_config(const std::string& model) {
  inference::ModelConfig c;
  c.set_name(model);
  c.set_platform("tie-afm-runtime");
  c.set_backend("tie-afm-runtime");
  c.set_max_batch_size(0);
  c.mutable_model_transaction_policy()->set_decoupled(true);
  for (const auto& row : kInputRows) {
    auto* t = c.add_input();
    t->set_name(row.name);
    t->set_data_type(row.type);
    t->add_dims(row.size);
    t->set_optional(row.optional);
  }
  for (const auto& row : kOutputRows) {
    auto* t = c.add_output();
    t->set_name(row.name);
    t->set_data_type(row.type);
    t->add_dims(row.size);
  }
  return c;
}

}  // namespace tie::runtime_host
