// Each family against a second, plain implementation in double precision: whole matrices, no cache, no packing, written
// from the models' public definitions. With float weights only the f16 cache rounds, 2^-11 of each key and value; a
// wrong norm, rotation, window, cap or order is larger by orders of magnitude.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <numeric>
#include <random>

#include "inference/bones/single_sequence.h"
#include "inference/bones/testing/tiny_model.h"

namespace tie::bones {
namespace {

using testing::TinyModelOptions;
using Vec = std::vector<double>;

Vec rms_norm(const Vec& x, const Vec& w) {
  double square = 0;
  for (double v : x) square += v * v;
  const double scale = 1 / std::sqrt(square / static_cast<double>(x.size()) + 1e-5);
  Vec y(x.size());
  for (size_t i = 0; i < x.size(); ++i) y[i] = x[i] * scale * w[i];
  return y;
}

class DenseModel {
 public:
  DenseModel(const TinyModelOptions& options, const Bytes& file) : o_(options) {
    const auto gguf = *model_files::Gguf::parse(file);
    for (const auto& tensor : gguf.tensors()) {
      const ByteView data = gguf.tensor_data(tensor);
      Vec& values = weights_[std::string(tensor.name)];
      for (size_t i = 0; i < data.size() / 4; ++i) {
        float f;
        std::memcpy(&f, data.data() + 4 * i, 4);
        values.push_back(f);
      }
    }
  }

  // Logits of every position.
  std::vector<Vec> run(const std::vector<int32_t>& tokens) {
    std::vector<Vec> x;
    for (int32_t t : tokens) {
      const Vec& all = weights_.at("token_embd.weight");
      Vec row(all.begin() + t * o_.n_embd, all.begin() + (t + 1) * o_.n_embd);
      if (gemma())
        for (double& v : row) v *= std::sqrt(static_cast<double>(o_.n_embd));
      x.push_back(row);
    }
    for (uint32_t i = 0; i < o_.n_layers; ++i) layer(i, x);
    std::vector<Vec> logits;
    for (const Vec& row : x) {
      Vec y = times("token_embd.weight", rms_norm(row, weights_.at("output_norm.weight")), 0, o_.n_vocab);
      if (o_.architecture == "gemma2")
        for (double& v : y) v = 30 * std::tanh(v / 30);
      logits.push_back(y);
    }
    return logits;
  }

 private:
  bool gemma() const { return o_.architecture.starts_with("gemma"); }
  bool has(const std::string& name) const { return weights_.contains(name); }
  const Vec& w(const std::string& name) const { return weights_.at(name); }

  Vec times(const std::string& name, const Vec& x, size_t first, size_t n) const {
    const Vec& m = w(name);
    Vec y(n);
    for (size_t r = 0; r < n; ++r)
      y[r] = std::inner_product(x.begin(), x.end(), m.begin() + static_cast<long>((first + r) * x.size()), 0.0);
    return y;
  }

  void rotate(double* head, size_t position, double base) const {
    const size_t d = o_.head_dim;
    for (size_t i = 0; i < d / 2; ++i) {
      const double angle =
          static_cast<double>(position) * std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(d));
      const size_t a = o_.architecture == "llama" ? 2 * i : i, b = o_.architecture == "llama" ? 2 * i + 1 : i + d / 2;
      const double u = head[a], v = head[b];
      head[a] = u * std::cos(angle) - v * std::sin(angle);
      head[b] = u * std::sin(angle) + v * std::cos(angle);
    }
  }

  struct Projected {
    Vec q, k, v;
  };

  Projected project(uint32_t i, const Vec& h, size_t position, double base) const {
    const std::string p = "blk." + std::to_string(i) + ".";
    const size_t nq = o_.n_heads * o_.head_dim, nkv = o_.n_kv_heads * o_.head_dim;
    Projected out;
    if (o_.architecture == "phi3") {
      out = {times(p + "attn_qkv.weight", h, 0, nq), times(p + "attn_qkv.weight", h, nq, nkv),
             times(p + "attn_qkv.weight", h, nq + nkv, nkv)};
    } else {
      out = {times(p + "attn_q.weight", h, 0, nq), times(p + "attn_k.weight", h, 0, nkv),
             times(p + "attn_v.weight", h, 0, nkv)};
    }
    for (auto [vector, name] : {std::pair{&out.q, "attn_q"}, {&out.k, "attn_k"}, {&out.v, "attn_v"}}) {
      if (has(p + name + ".bias"))
        for (size_t j = 0; j < vector->size(); ++j) (*vector)[j] += w(p + name + ".bias")[j];
      if (vector == &out.v) continue;
      for (size_t head = 0; head < vector->size(); head += o_.head_dim) {
        if (has(p + name + "_norm.weight")) {
          const Vec normed = rms_norm(
              Vec(vector->begin() + static_cast<long>(head), vector->begin() + static_cast<long>(head + o_.head_dim)),
              w(p + name + "_norm.weight"));
          std::copy(normed.begin(), normed.end(), vector->begin() + static_cast<long>(head));
        }
        rotate(vector->data() + head, position, base);
      }
    }
    return out;
  }

  void layer(uint32_t i, std::vector<Vec>& x) const {
    const std::string p = "blk." + std::to_string(i) + ".";
    const bool local = (o_.architecture == "gemma2" && i % 2 == 0) || (o_.architecture == "gemma3" && i % 6 != 5);
    const double base = 10000.0;  // the writer gives Gemma 3's global layers the same base as its local ones
    std::vector<Projected> all;
    for (size_t t = 0; t < x.size(); ++t) all.push_back(project(i, rms_norm(x[t], w(p + "attn_norm.weight")), t, base));
    for (size_t t = 0; t < x.size(); ++t) {
      Vec y = times(p + "attn_output.weight", attend(all, t, local), 0, o_.n_embd);
      if (gemma()) y = rms_norm(y, w(p + "post_attention_norm.weight"));
      for (size_t j = 0; j < y.size(); ++j) x[t][j] += y[j];
    }
    for (Vec& row : x) {
      Vec y = feed_forward(p, rms_norm(row, w(p + "ffn_norm.weight")));
      if (gemma()) y = rms_norm(y, w(p + "post_ffw_norm.weight"));
      for (size_t j = 0; j < y.size(); ++j) row[j] += y[j];
    }
  }

  Vec attend(const std::vector<Projected>& all, size_t t, bool local) const {
    const size_t d = o_.head_dim, group = o_.n_heads / o_.n_kv_heads,
                 first = local && t + 1 > o_.sliding_window ? t + 1 - o_.sliding_window : 0;
    Vec out(o_.n_heads * d);
    for (size_t h = 0; h < o_.n_heads; ++h) {
      const size_t kv = h / group * d;
      Vec weight(t + 1);
      double total = 0;
      for (size_t s = first; s <= t; ++s) {
        double score = 0;
        for (size_t j = 0; j < d; ++j) score += all[t].q[h * d + j] * all[s].k[kv + j];
        score /= std::sqrt(static_cast<double>(d));
        if (o_.architecture == "gemma2") score = 50 * std::tanh(score / 50);
        total += weight[s] = std::exp(score);
      }
      for (size_t s = first; s <= t; ++s)
        for (size_t j = 0; j < d; ++j) out[h * d + j] += weight[s] / total * all[s].v[kv + j];
    }
    return out;
  }

  Vec feed_forward(const std::string& p, const Vec& h) const {
    const bool fused = o_.architecture == "phi3";
    Vec gate = times(p + (fused ? "ffn_up.weight" : "ffn_gate.weight"), h, 0, o_.n_ff);
    const Vec up = times(p + "ffn_up.weight", h, fused ? o_.n_ff : 0, o_.n_ff);
    for (size_t j = 0; j < gate.size(); ++j) {
      const double g = gate[j];
      const double active = gemma() ? 0.5 * g * (1 + std::tanh(std::sqrt(2 / M_PI) * (g + 0.044715 * g * g * g)))
                                    : g / (1 + std::exp(-g));
      gate[j] = active * up[j];
    }
    return times(p + "ffn_down.weight", gate, 0, o_.n_embd);
  }

  TinyModelOptions o_;
  std::map<std::string, Vec> weights_;
};

class Families : public ::testing::TestWithParam<std::string> {};

TEST_P(Families, AgreeWithADensePlainImplementation) {
  TinyModelOptions o;
  o.architecture = GetParam();
  o.weights = o.embedding = model_files::TensorType::kF32;
  o.n_layers = GetParam() == "gemma3" ? 7 : 3;
  const Bytes file = testing::tiny_model(o);
  std::mt19937 random(17);
  std::vector<int32_t> tokens(60);
  for (int32_t& t : tokens) t = static_cast<int32_t>(random() % o.n_vocab);
  auto model = SingleSequence::from_gguf(file, {});
  ASSERT_TRUE(model) << model.error().message;
  const std::vector<Vec> expected = DenseModel(o, file).run(tokens);
  struct Worst {
    const std::vector<Vec>& expected;
    double difference = 0, square = 0;
    size_t n = 0;
  } worst{expected};
  auto visit = [](void* context, uint32_t index, std::span<float> logits) {
    auto& all = *static_cast<Worst*>(context);
    for (size_t i = 0; i < logits.size(); ++i) {
      all.difference = std::max(all.difference, std::fabs(logits[i] - all.expected[index][i]));
      all.square += all.expected[index][i] * all.expected[index][i];
      ++all.n;
    }
  };
  ASSERT_TRUE(model->append_each(tokens, 0, visit, &worst));
  const double spread = std::sqrt(worst.square / static_cast<double>(worst.n));
  std::printf("%s: logits of spread %.3f, worst difference %.6f\n", GetParam().c_str(), spread, worst.difference);
  EXPECT_LT(worst.difference, 0.03 * spread);
}

INSTANTIATE_TEST_SUITE_P(All, Families, ::testing::Values("llama", "qwen2", "qwen3", "gemma2", "gemma3", "phi3"));

}  // namespace
}  // namespace tie::bones
