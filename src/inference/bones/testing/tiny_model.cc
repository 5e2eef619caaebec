#include "inference/bones/testing/tiny_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "inference/bones/kernels/tile.h"
#include "inference/bones/testing/gguf_writer.h"

namespace tie::bones::testing {
namespace {

using model_files::TensorType;

class RandomWeights {
 public:
  explicit RandomWeights(uint64_t seed) : random_(seed) {}

  Bytes floats(size_t n, float mean, float spread) {
    std::normal_distribution<float> normal(mean, spread);
    Bytes out(n * 4);
    for (size_t i = 0; i < n; ++i) {
      const float f = normal(random_);
      std::memcpy(out.data() + 4 * i, &f, 4);
    }
    return out;
  }

  // Rows of k inputs with weights of about `spread`.
  Bytes matrix(TensorType type, size_t rows, size_t k, float spread) {
    if (type == TensorType::kF32) return floats(rows * k, 0, spread);
    const auto* info = model_files::tensor_type_info(type);
    const size_t n = rows * k / info->block_elements;
    Bytes out(n * info->block_bytes);
    for (uint8_t& byte : out) byte = static_cast<uint8_t>(random_());
    if (info->block_elements == 1)
      narrow_floats(type, out, rows * k, spread);
    else
      for (size_t b = 0; b < n; ++b) set_scales(type, out.data() + b * info->block_bytes, spread);
    return out;
  }

 private:
  void narrow_floats(TensorType type, Bytes& out, size_t n, float spread) {
    std::normal_distribution<float> normal(0, spread);
    for (size_t i = 0; i < n; ++i) {
      const float f = normal(random_);
      put_u16(out.data() + 2 * i, type == TensorType::kF16 ? float_to_half(f) : float_to_bf16(f));
    }
  }

  static void put_u16(uint8_t* p, uint32_t value) {
    const auto narrow = static_cast<uint16_t>(value);
    std::memcpy(p, &narrow, 2);
  }

  // The codes stay random; scales (and minima) are set so that weights have about the wanted spread around zero.
  void set_scales(TensorType type, uint8_t* block, float spread) {
    std::uniform_real_distribution<float> around(0.5f, 1.5f);
    const float s = spread * around(random_);
    switch (type) {
      case TensorType::kQ4_0:
        return put_u16(block, float_to_half(s / 4.6f));
      case TensorType::kQ5_0:
        return put_u16(block, float_to_half(s / 9.2f));
      case TensorType::kQ8_0:
        return put_u16(block, float_to_half(s / 74.0f));
      case TensorType::kQ4_1:
        put_u16(block, float_to_half(s / 4.6f));
        return put_u16(block + 2, float_to_half(-s * 7.5f / 4.6f));
      case TensorType::kQ5_1:
        put_u16(block, float_to_half(s / 9.2f));
        return put_u16(block + 2, float_to_half(-s * 15.5f / 9.2f));
      case TensorType::kQ4_K:
        put_u16(block, float_to_half(s / 4.6f / 36));
        return put_u16(block + 2, float_to_half(s * 7.5f / 4.6f / 36));
      case TensorType::kQ5_K:
        put_u16(block, float_to_half(s / 9.2f / 36));
        return put_u16(block + 2, float_to_half(s * 15.5f / 9.2f / 36));
      case TensorType::kQ6_K:
        return put_u16(block + 208, float_to_half(s / 18.0f / 74));
      default:
        return;
    }
  }

  std::mt19937_64 random_;
};

// GPT-2's printable alphabet for bytes.
std::string printable(uint32_t byte) {
  static const std::vector<uint32_t> table = [] {
    std::vector<uint32_t> t(256);
    uint32_t next = 256;
    for (uint32_t b = 0; b < 256; ++b) t[b] = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174 ? b : next++;
    return t;
  }();
  const uint32_t c = table[byte];
  if (c < 0x80) return std::string(1, static_cast<char>(c));
  return {static_cast<char>(0xc0 | c >> 6), static_cast<char>(0x80 | (c & 63))};
}

void write_vocabulary(GgufWriter& out, uint32_t n_vocab) {
  std::vector<std::string> tokens, merges;
  for (uint32_t b = 0; b < 256; ++b) tokens.push_back(printable(b));
  for (const char* pair : {"t h", "th e", "i n", "a n", "e r", "o n", "r e", "h e"}) {
    std::string left(pair), joined(pair);
    joined.erase(joined.find(' '), 1);
    merges.push_back(left);
    tokens.push_back(joined);
  }
  std::vector<int32_t> types(tokens.size(), 1);
  const auto first_control = static_cast<uint32_t>(tokens.size());
  for (const char* control : {"<|endoftext|>", "<|im_start|>", "<|im_end|>"})
    tokens.emplace_back(control), types.push_back(3);
  while (tokens.size() < n_vocab) tokens.push_back("[PAD" + std::to_string(tokens.size()) + "]"), types.push_back(5);
  out.text("tokenizer.ggml.model", "gpt2");
  out.text("tokenizer.ggml.pre", "smollm");
  out.texts("tokenizer.ggml.tokens", tokens);
  out.integers("tokenizer.ggml.token_type", types);
  out.texts("tokenizer.ggml.merges", merges);
  out.u32("tokenizer.ggml.bos_token_id", first_control + 1);
  out.u32("tokenizer.ggml.eos_token_id", first_control + 2);
  out.boolean("tokenizer.ggml.add_bos_token", false);
  out.text("tokenizer.chat_template",
           "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + "
           "'<|im_end|>' + '\\n' }}{% endfor %}"
           "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}");
}

void write_sizes(GgufWriter& out, const TinyModelOptions& o) {
  const std::string a = o.architecture + ".";
  out.text("general.architecture", o.architecture);
  out.text("general.name", "tiny " + o.architecture);
  out.u32(a + "block_count", o.n_layers);
  out.u32(a + "context_length", o.context_length);
  out.u32(a + "embedding_length", o.n_embd);
  out.u32(a + "feed_forward_length", o.n_ff);
  out.u32(a + "attention.head_count", o.n_heads);
  out.u32(a + "attention.head_count_kv", o.n_kv_heads);
  out.u32(a + "attention.key_length", o.head_dim);
  out.u32(a + "attention.value_length", o.head_dim);
  out.f32(a + "attention.layer_norm_rms_epsilon", 1e-5f);
  out.f32(a + "rope.freq_base", 10000.0f);
  if (o.architecture == "qwen3moe") {
    out.u32(a + "expert_count", o.n_experts);
    out.u32(a + "expert_used_count", o.n_experts_used);
    out.u32(a + "expert_feed_forward_length", o.n_ff);
  }
  if (o.architecture.starts_with("gemma")) out.u32(a + "attention.sliding_window", o.sliding_window);
  if (o.architecture == "gemma2") {
    out.f32(a + "attn_logit_softcapping", 50.0f);
    out.f32(a + "final_logit_softcapping", 30.0f);
  }
  if (o.yarn) {
    out.text(a + "rope.scaling.type", "yarn");
    out.f32(a + "rope.scaling.factor", 4.0f);
    out.u32(a + "rope.scaling.original_context_length", o.context_length / 4);
  }
}

class TensorWriter {
 public:
  TensorWriter(GgufWriter& out, const TinyModelOptions& o) : out_(out), o_(o), random_(o.seed) {}

  void matrix(const std::string& name, uint32_t n, uint32_t k) {
    out_.tensor(name + ".weight", o_.weights, {k, n},
                random_.matrix(o_.weights, n, k, 1.5f / std::sqrt(static_cast<float>(k))));
  }
  void experts(const std::string& name, uint32_t n, uint32_t k) {
    out_.tensor(name + ".weight", o_.weights, {k, n, o_.n_experts},
                random_.matrix(o_.weights, size_t{n} * o_.n_experts, k, 1.5f / std::sqrt(static_cast<float>(k))));
  }
  void router(const std::string& name) {
    out_.tensor(name + ".weight", TensorType::kF32, {o_.n_embd, o_.n_experts},
                random_.floats(size_t{o_.n_experts} * o_.n_embd, 0.0f, 0.2f));
  }
  void embedding(const std::string& name) {
    out_.tensor(name + ".weight", o_.embedding, {o_.n_embd, o_.n_vocab},
                random_.matrix(o_.embedding, o_.n_vocab, o_.n_embd, 0.4f));
  }
  void norm(const std::string& name, uint32_t n) {
    out_.tensor(name + ".weight", TensorType::kF32, {n}, random_.floats(n, 1.0f, 0.1f));
  }
  void bias(const std::string& name, uint32_t n) {
    out_.tensor(name + ".bias", TensorType::kF32, {n}, random_.floats(n, 0.0f, 0.2f));
  }

 private:
  GgufWriter& out_;
  const TinyModelOptions& o_;
  RandomWeights random_;
};

void write_layer(TensorWriter& out, const TinyModelOptions& o, uint32_t layer) {
  const std::string p = "blk." + std::to_string(layer) + ".";
  const uint32_t nq = o.n_heads * o.head_dim, nkv = o.n_kv_heads * o.head_dim;
  const bool gemma = o.architecture.starts_with("gemma"), fused = o.architecture == "phi3";
  out.norm(p + "attn_norm", o.n_embd);
  if (fused)
    out.matrix(p + "attn_qkv", nq + 2 * nkv, o.n_embd);
  else {
    out.matrix(p + "attn_q", nq, o.n_embd);
    out.matrix(p + "attn_k", nkv, o.n_embd);
    out.matrix(p + "attn_v", nkv, o.n_embd);
  }
  if (o.architecture == "qwen2") out.bias(p + "attn_q", nq), out.bias(p + "attn_k", nkv), out.bias(p + "attn_v", nkv);
  if (o.architecture.starts_with("qwen3") || o.architecture == "gemma3")
    out.norm(p + "attn_q_norm", o.head_dim), out.norm(p + "attn_k_norm", o.head_dim);
  out.matrix(p + "attn_output", o.n_embd, nq);
  if (gemma) out.norm(p + "post_attention_norm", o.n_embd), out.norm(p + "post_ffw_norm", o.n_embd);
  out.norm(p + "ffn_norm", o.n_embd);
  if (o.architecture == "qwen3moe") {
    out.router(p + "ffn_gate_inp");
    out.experts(p + "ffn_gate_exps", o.n_ff, o.n_embd);
    out.experts(p + "ffn_up_exps", o.n_ff, o.n_embd);
    out.experts(p + "ffn_down_exps", o.n_embd, o.n_ff);
    return;
  }
  if (!fused) out.matrix(p + "ffn_gate", o.n_ff, o.n_embd);
  out.matrix(p + "ffn_up", fused ? 2 * o.n_ff : o.n_ff, o.n_embd);
  out.matrix(p + "ffn_down", o.n_embd, o.n_ff);
}

}  // namespace

Bytes tiny_model(const TinyModelOptions& options) {
  GgufWriter out;
  write_sizes(out, options);
  write_vocabulary(out, options.n_vocab);
  TensorWriter tensors(out, options);
  tensors.embedding("token_embd");
  tensors.norm("output_norm", options.n_embd);
  if (!options.tied) tensors.embedding("output");
  for (uint32_t i = 0; i < options.n_layers; ++i) write_layer(tensors, options, i);
  return out.finish();
}

}  // namespace tie::bones::testing
