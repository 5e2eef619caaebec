// What a decoder-only transformer of this product is made of: sizes and the few choices in which the supported families
// differ. Plain data, filled by model/architecture.cc from a file's metadata and checked again when a packed image is
// attached; read by the engine for its limits. Source: the public model descriptions (Llama, Mistral, Qwen2, Qwen3,
// Gemma 2, Gemma 3, Phi-3, Mixtral, Qwen3-MoE) and the GGUF metadata names.
#pragma once
#include <cstdint>
#include <string_view>

#include "base/result.h"

namespace tie::bones {

enum class Activation : uint32_t { kSilu = 0, kGeluTanh = 1 };
// Llama 3's and Phi-3's scaling come as per-dimension factors in a tensor (Role::kRopeFactors) and need no kind of
// their own.
enum class RopeScaling : uint32_t { kNone = 0, kLinear = 1, kYarn = 2 };

// One set of rotary angles. Layers choose between the global set and the local one (Gemma 3 has two bases).
struct RopeConfig {
  float base = 10000.0f;
  RopeScaling scaling = RopeScaling::kNone;
  float factor = 1.0f;            // context is stretched by this
  uint32_t original_context = 0;  // of the training run; yarn
  float yarn_beta_fast = 32.0f, yarn_beta_slow = 1.0f;
  float yarn_ext_factor = 1.0f;
  float attention_factor = 1.0f;  // multiplies cos and sin
};

// Limits of what an image may claim; they bound every later product of two sizes.
inline constexpr uint32_t kMaxLayers = 512;
inline constexpr uint32_t kMaxHeads = 512;
inline constexpr uint32_t kMaxHeadDim = 512;
inline constexpr uint32_t kMaxWidth = 1u << 17;  // embedding and feed-forward width
inline constexpr uint32_t kMaxExperts = 1024;
inline constexpr uint32_t kMaxExpertsUsed = 64;
inline constexpr uint32_t kMaxVocab = 1u << 21;
inline constexpr uint32_t kMaxContext = 1u << 24;

struct ModelConfig {
  char architecture[16] = {};  // "llama", "gemma3", ... zero-terminated
  uint32_t n_layers = 0;
  uint32_t n_embd = 0;
  uint32_t n_ff = 0;
  uint32_t n_heads = 0;
  uint32_t n_kv_heads = 0;
  uint32_t head_dim = 0;  // even, at most kMaxHeadDim
  uint32_t n_vocab =
      0;  // rows of the embedding; may exceed the tokenizer's vocabulary (padding): never sample those ids
  uint32_t context_length = 0;  // tokens
  uint32_t rope_dim = 0;        // leading dimensions of a head that are rotated
  float norm_epsilon = 1e-5f;
  float embedding_scale = 1.0f;     // Gemma: sqrt(n_embd)
  float attention_scale = 1.0f;     // multiplies q
  float attention_soft_cap = 0.0f;  // 0 = none
  float logit_soft_cap = 0.0f;      // 0 = none
  uint32_t sliding_window = 0;      // keys a local layer sees, itself included; 0 = every layer is global
  uint32_t sliding_pattern =
      0;  // with a window: layer i is global when (i + 1) % pattern == 0; 0 = every layer is local
  Activation activation = Activation::kSilu;
  uint32_t qk_norm = 0;          // 1: RMS norm of each head of q and k before the rotation
  uint32_t post_norms = 0;       // 1: RMS norm after attention and after the feed-forward, before the residual (Gemma)
  uint32_t tied_embeddings = 0;  // 1: the output head is the embedding
  uint32_t qkv_bias = 0;         // 1: q, k and v have a bias
  uint32_t n_experts = 0;        // 0: an ordinary feed-forward; else n_ff is one expert's width
  uint32_t n_experts_used = 0;   // of each row
  uint32_t normalise_experts = 0;  // 1: the weights of a row's experts are scaled to a sum of 1
  RopeConfig rope_global;
  RopeConfig rope_local;  // used by local layers of Gemma 3; elsewhere equal to rope_global

  std::string_view name() const { return architecture; }
  bool layer_is_local(uint32_t layer) const {
    return sliding_window != 0 && (sliding_pattern == 0 || (layer + 1) % sliding_pattern != 0);
  }
};

// Every limit and relation that the rest of bones relies on; kCorrupt names the field.
Result<void> check_config(const ModelConfig& config);

}  // namespace tie::bones
