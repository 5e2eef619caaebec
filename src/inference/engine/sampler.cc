#include "inference/engine/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>

#include "inference/engine/counter_random.h"

namespace tie::engine {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity(), kMinusInfinity = -kInfinity;
constexpr size_t kQuickTop = 256;       // top-p nearly always ends within this many candidates
constexpr float kWidestLogits = 88.0f;  // (max - logit) / temperature beyond which a mass is 0
constexpr int kSections = 8;            // each to a quarter: down to a thousandth

float finite(float logprob) {
  return logprob > kLogprobFloor ? logprob : kLogprobFloor;
}  // also for NaN

// Fills out.top; returns what is to be subtracted from the row's other logits.
float score_top(std::span<const float> row, uint32_t n_top, SamplerWorkspace& w, TokenLogprobs& out) {
  const float normaliser = log_sum_exp(row, w.exponentials.data(), w.block_sums.data());
  auto top = select_top(row, n_top, w.top);
  out.n_top = static_cast<uint32_t>(top.size());
  for (size_t i = 0; i < top.size(); ++i) out.top[i] = {top[i].token, finite(top[i].logit - normaliser)};
  return normaliser;
}

// Which token of candidates[0, n) the random number falls on. masses: unnormalised probabilities.
template <typename Mass>
int32_t pick(std::span<const Candidate> candidates, double total, double uniform, Mass mass) {
  double left = uniform * total;
  for (const auto& c : candidates) {
    left -= mass(c);
    if (left < 0) return c.token;
  }
  return candidates.back().token;  // rounding at the very end of the interval
}

}  // namespace

SamplerWorkspace::SamplerWorkspace(uint32_t row_size)
    : exponentials(row_size + 16), copy(row_size), shared_row(row_size), block_sums(row_size / kSumBlock + 1) {
  top.reserve(row_size, row_size);
}

Sampler::Sampler(const SamplingOptions& options, const TokenTable& table, uint64_t seed, uint32_t sample,
                 std::span<const int32_t> prompt, size_t max_output)
    : options_(options), table_(table), seed_(seed), sample_(sample) {
  if (!options.has_penalties()) return;
  size_t most = std::min<size_t>(prompt.size() + max_output, table.size());
  counts_.reserve(most);
  slots_.resize(std::bit_ceil(2 * most + 2));
  if (options.repetition_penalty != 1.0f)
    for (int32_t token : prompt) count_of(token);
}

Sampler::Count& Sampler::count_of(int32_t token) {
  size_t mask = slots_.size() - 1;
  size_t at = (static_cast<uint32_t>(token) * 0x9E3779B1u) & mask;
  while (slots_[at] != 0 && counts_[slots_[at] - 1].token != token) at = (at + 1) & mask;
  if (slots_[at] == 0) {
    counts_.push_back({token, 0});
    slots_[at] = static_cast<uint32_t>(counts_.size());
  }
  return counts_[slots_[at] - 1];
}

void Sampler::accept(int32_t token) {
  if (!slots_.empty()) ++count_of(token).in_output;
}

void Sampler::adjust(std::span<float> row, const DrawRequest& request) const {
  for (const auto& count : counts_) {
    float& x = row[static_cast<size_t>(count.token)];
    x = x > 0 ? x / options_.repetition_penalty : x * options_.repetition_penalty;
    if (count.in_output > 0)
      x -= options_.presence_penalty + options_.frequency_penalty * static_cast<float>(count.in_output);
  }
  for (const auto& [token, bias] : options_.logit_bias) row[static_cast<size_t>(token)] += bias;
  if (request.forbid_end) {
    for (int32_t token : table_.end_ids()) row[static_cast<size_t>(token)] = kMinusInfinity;
    for (int32_t token : options_.stop_token_ids) row[static_cast<size_t>(token)] = kMinusInfinity;
  }
  if (!request.mask.empty()) apply_mask(row, request.mask);
}

void score_token(std::span<const float> row, int32_t token, uint32_t n_top, SamplerWorkspace& w, TokenLogprobs& out) {
  const float normaliser = score_top(row, n_top, w, out);
  out.token = token;
  out.logprob = finite(row[static_cast<size_t>(token)] - normaliser);
}

// Whatever changes single logits, or asks how likely a token is, needs the row; so does drawing from more than top_k.
uint32_t Sampler::best_needed(bool forbid_end) const {
  if (options_.has_penalties() || !options_.logit_bias.empty() || options_.logprobs) return 0;
  uint64_t k = options_.greedy() ? 1 : options_.top_k;
  if (k == 0 || k >= table_.size()) return 0;
  if (forbid_end) k += table_.end_ids().size() + options_.stop_token_ids.size();  // those are left out afterwards
  return k <= bones::kMostBest ? static_cast<uint32_t>(k) : 0;
}

bool Sampler::is_end(int32_t token) const {
  const auto& stops = options_.stop_token_ids;
  return table_.is_end(token) || std::find(stops.begin(), stops.end(), token) != stops.end();
}

int32_t Sampler::draw_best(const DrawRequest& request, SamplerWorkspace& w) const {
  std::span<const Candidate> best = *request.best;
  if (request.forbid_end) {
    w.top.candidates.clear();
    for (const auto& c : best)
      if (!is_end(c.token)) w.top.candidates.push_back(c);
    best = w.top.candidates;
  }
  if (best.empty()) return -1;
  if (options_.greedy()) return best.front().token;
  return choose_sorted(best.first(std::min<size_t>(best.size(), options_.top_k)), request.position, w);
}

int32_t Sampler::draw(const DrawRequest& request, SamplerWorkspace& w, TokenLogprobs* logprobs) {
  if (request.best) return draw_best(request, w);
  auto row = request.row.first(std::min<size_t>(request.row.size(), table_.size()));
  float normaliser = 0;
  std::span<const float> raw = row;
  if (logprobs) {
    bool adjusted = !slots_.empty() || !options_.logit_bias.empty() || request.forbid_end || !request.mask.empty();
    if (adjusted)
      raw = {w.copy.data(), static_cast<size_t>(std::copy(row.begin(), row.end(), w.copy.begin()) - w.copy.begin())};
    normaliser = score_top(row, options_.top_logprobs, w, *logprobs);
  }
  adjust(row, request);
  int32_t token = options_.greedy() ? argmax_of(row) : choose(row, request.position, w);
  if (logprobs && token >= 0) {
    logprobs->token = token;
    logprobs->logprob = finite(raw[static_cast<size_t>(token)] - normaliser);
  }
  return token;
}

namespace {

// One draw from a row whose best logit is known.
struct Draw {
  std::span<const float> row;
  float max, scale;
  double uniform;
  const SamplingOptions& options;
  SamplerWorkspace& w;

  double mass(float logit) const { return std::exp(static_cast<double>(logit - max) * scale); }

  // How many of the sorted candidates survive top-p of `total` and min-p, with their mass in *sum; 0 when top-p needs
  // more than these.
  size_t surviving(std::span<const Candidate> sorted, double total, bool complete, double* sum) const {
    double wanted = options.top_p < 1.0f ? options.top_p * total : std::numeric_limits<double>::infinity();
    *sum = 0;
    for (size_t i = 0; i < sorted.size(); ++i) {
      double m = mass(sorted[i].logit);
      if (i > 0 && m < options.min_p) return i;
      *sum += m;
      if (*sum >= wanted) return i + 1;
    }
    return complete ? sorted.size() : 0;
  }

  int32_t from_sorted(std::span<const Candidate> survivors, double sum) const {
    return pick(survivors, sum, uniform, [&](const Candidate& c) { return mass(c.logit); });
  }

  // Everything may be drawn: walk blocks, then elements.
  int32_t from_all(double total) const {
    double left = uniform * total;
    size_t block = 0, blocks = (row.size() + kSumBlock - 1) / kSumBlock;
    while (block + 1 < blocks && left >= w.block_sums[block]) left -= w.block_sums[block++];
    int32_t last = -1;
    for (size_t i = block * kSumBlock; i < row.size(); ++i) {
      if (w.exponentials[i] == 0.0f) continue;
      last = static_cast<int32_t>(i);
      left -= w.exponentials[i];
      if (left < 0) return last;
    }
    return last >= 0 ? last : argmax_of(row);
  }

  // Top-p over a flat distribution, without sorting everything: the logit at which the sum is reached is found by
  // cutting an interval into quarters, then the few candidates around it are sorted. The sum is not reached above
  // `high`.
  int32_t from_flat_top_p(double total, float high) const {
    double wanted = options.top_p * total;
    float low = max - kWidestLogits / scale;  // mass_above(low) >= wanted > mass_above(high)
    for (int i = 0; i < kSections; ++i) {
      const float step = (high - low) * 0.25f, cuts[kThresholds] = {low + step, low + 2 * step, low + 3 * step};
      double above[kThresholds];
      masses_above(row, w.exponentials.data(), cuts, above);
      for (size_t t = 0; t < kThresholds; ++t) {
        if (above[t] < wanted) {
          high = cuts[t];
          break;
        }
        low = cuts[t];
      }
    }
    auto& c = w.top.candidates;
    c.clear();
    collect_between(row, 0, low, high, row.size() + kGroup, c);
    std::sort(c.begin(), c.end(), better);
    double sum = mass_above(row, w.exponentials.data(), high);
    size_t n = 0;
    while (n < c.size() && sum < wanted) sum += w.exponentials[static_cast<size_t>(c[n++].token)];
    float cut = n > 0 ? c[n - 1].logit : high;
    if (options.min_p > 0.0f) cut = std::max(cut, max + std::log(options.min_p) / scale);
    for (; n < c.size() && c[n].logit == cut; ++n)
      w.exponentials[static_cast<size_t>(c[n].token)] = 0.0f;  // ties beyond the last
    return from_all(keep_from(row, cut, w.exponentials.data(), w.block_sums.data()));
  }
};

}  // namespace

int32_t Sampler::choose_sorted(std::span<const Candidate> sorted, uint64_t position, SamplerWorkspace& w) const {
  const float max = sorted.front().logit;
  if (max == kInfinity) return sorted.front().token;
  const Draw draw{{}, max, 1.0f / options_.temperature, counter_uniform(seed_, sample_, position), options_, w};
  double total = 0, sum = 0;
  if (options_.top_p < 1.0f)
    for (const auto& c : sorted) total += draw.mass(c.logit);
  const size_t survivors = draw.surviving(sorted, total, true, &sum);
  return draw.from_sorted(sorted.first(survivors), sum);
}

int32_t Sampler::choose(std::span<const float> row, uint64_t position, SamplerWorkspace& w) const {
  if (options_.top_k > 0 && options_.top_k < row.size()) {
    const auto sorted = select_top(row, options_.top_k, w.top);
    return sorted.empty() ? -1 : choose_sorted(sorted, position, w);
  }
  float max = max_of(row);
  if (max == kMinusInfinity) return -1;
  if (max == kInfinity) return argmax_of(row);
  Draw draw{row, max, 1.0f / options_.temperature, counter_uniform(seed_, sample_, position), options_, w};
  double sum = 0;
  double total = exponentials(row, max, draw.scale, w.exponentials.data(), w.block_sums.data());
  if (options_.top_p >= 1.0f && options_.min_p <= 0.0f) return draw.from_all(total);
  auto sorted = select_top(row, kQuickTop, w.top);
  size_t survivors = draw.surviving(sorted, total, sorted.size() < kQuickTop || kQuickTop >= row.size(), &sum);
  return survivors > 0 ? draw.from_sorted(sorted.first(survivors), sum)
                       : draw.from_flat_top_p(total, sorted.back().logit);
}

}  // namespace tie::engine
