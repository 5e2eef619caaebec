#include "inference/engine/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "inference/engine/counter_random.h"
#include "inference/engine/logit_math.h"

namespace tie::engine {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr size_t kQuickTop = 256;         // top-p nearly always ends within this many candidates
constexpr size_t kLargestQuickTop = 1024;
constexpr size_t kBuckets = 2048;         // histogram of (max - logit) / temperature in steps of 1/32, for flat distributions
constexpr float kBucketsPerUnit = 32.0f;

bool better(const Candidate& a, const Candidate& b) { return a.logit > b.logit || (a.logit == b.logit && a.token < b.token); }

float finite(float logprob) { return logprob > kLogprobFloor ? logprob : kLogprobFloor; }  // also for NaN

// What survives truncation is always a prefix of the order `better`: everything up to and including `last`.
bool kept(const Candidate& c, const Candidate& last) { return !better(last, c); }

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
    : exponentials(row_size + 16), copy(row_size), shared_row(row_size), block_sums(row_size / kSumBlock + 1), bucket_mass(kBuckets) {
  candidates.reserve(row_size);
}

std::span<const Candidate> select_top(std::span<const float> row, size_t k, SamplerWorkspace& w) {
  auto& c = w.candidates;
  c.clear();
  k = std::min(k, row.size());
  if (k == 0) return {};
  float threshold = kMinusInfinity;
  size_t limit = std::min(2 * k + 64, row.size());
  for (size_t i = next_above(row, 0, threshold); i < row.size(); i = next_above(row, i + 1, threshold)) {
    c.push_back({row[i], static_cast<int32_t>(i)});
    if (c.size() < limit || c.size() <= k) continue;
    std::nth_element(c.begin(), c.begin() + static_cast<ptrdiff_t>(k) - 1, c.end(), better);
    c.resize(k);
    threshold = c[k - 1].logit;  // a later equal one has a higher id: it loses the tie
  }
  if (c.size() > k) {
    std::nth_element(c.begin(), c.begin() + static_cast<ptrdiff_t>(k) - 1, c.end(), better);
    c.resize(k);
  }
  std::sort(c.begin(), c.end(), better);
  return c;
}

Sampler::Sampler(const SamplingOptions& options, const TokenTable& table, uint64_t seed, uint32_t sample, std::span<const int32_t> prompt,
                 size_t max_output)
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
    if (count.in_output > 0) x -= options_.presence_penalty + options_.frequency_penalty * static_cast<float>(count.in_output);
  }
  for (const auto& [token, bias] : options_.logit_bias) row[static_cast<size_t>(token)] += bias;
  if (request.forbid_end) {
    for (int32_t token : table_.end_ids()) row[static_cast<size_t>(token)] = kMinusInfinity;
    for (int32_t token : options_.stop_token_ids) row[static_cast<size_t>(token)] = kMinusInfinity;
  }
  if (!request.mask.empty()) apply_mask(row, request.mask);
}

int32_t Sampler::draw(const DrawRequest& request, SamplerWorkspace& w, TokenLogprobs* logprobs) {
  auto row = request.row.first(std::min<size_t>(request.row.size(), table_.size()));
  float normaliser = 0;
  if (logprobs) {
    std::copy(row.begin(), row.end(), w.copy.begin());
    normaliser = log_sum_exp(row, w.exponentials.data(), w.block_sums.data());
    auto top = select_top(row, options_.top_logprobs, w);
    logprobs->n_top = static_cast<uint32_t>(top.size());
    for (size_t i = 0; i < top.size(); ++i) logprobs->top[i] = {top[i].token, finite(top[i].logit - normaliser)};
  }
  adjust(row, request);
  int32_t token = options_.greedy() ? argmax_of(row) : choose(row, request.position, w);
  if (logprobs && token >= 0) {
    logprobs->token = token;
    logprobs->logprob = finite(w.copy[static_cast<size_t>(token)] - normaliser);
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

  // How many of the sorted candidates survive top-p of `total` and min-p, with their mass in *sum; 0 when top-p needs more than these.
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

  size_t bucket_of(float logit) const {
    float distance = (max - logit) * scale * kBucketsPerUnit;
    return distance < static_cast<float>(kBuckets - 1) ? static_cast<size_t>(distance) : kBuckets - 1;
  }

  // The last token that top-p keeps, found without sorting everything: histogram of masses, then a sort of the one bucket in which the sum is reached.
  Candidate last_of_top_p(double total) const {
    std::fill(w.bucket_mass.begin(), w.bucket_mass.end(), 0.0);
    for (size_t i = 0; i < row.size(); ++i)
      if (w.exponentials[i] > 0.0f) w.bucket_mass[bucket_of(row[i])] += w.exponentials[i];
    double left = options.top_p * total;
    size_t bucket = 0;
    while (bucket + 1 < kBuckets && left > w.bucket_mass[bucket]) left -= w.bucket_mass[bucket++];
    auto& c = w.candidates;
    c.clear();
    for (size_t i = 0; i < row.size(); ++i)
      if (w.exponentials[i] > 0.0f && bucket_of(row[i]) == bucket) c.push_back({row[i], static_cast<int32_t>(i)});
    if (c.empty()) return {kMinusInfinity, std::numeric_limits<int32_t>::max()};
    std::sort(c.begin(), c.end(), better);
    for (const auto& candidate : c) {
      left -= w.exponentials[static_cast<size_t>(candidate.token)];
      if (left <= 0) return candidate;
    }
    return c.back();
  }

  int32_t from_flat_top_p(double total) const {
    Candidate last = last_of_top_p(total);
    double sum = 0;
    auto keep = [&](size_t i) {
      return w.exponentials[i] > 0.0f && w.exponentials[i] >= options.min_p && kept({row[i], static_cast<int32_t>(i)}, last);
    };
    for (size_t i = 0; i < row.size(); ++i)
      if (keep(i)) sum += w.exponentials[i];
    double left = uniform * sum;
    int32_t token = argmax_of(row);
    for (size_t i = 0; i < row.size(); ++i) {
      if (!keep(i)) continue;
      token = static_cast<int32_t>(i);
      left -= w.exponentials[i];
      if (left < 0) break;
    }
    return token;
  }
};

}  // namespace

int32_t Sampler::choose(std::span<const float> row, uint64_t position, SamplerWorkspace& w) const {
  float max = max_of(row);
  if (max == kMinusInfinity) return -1;
  if (max == std::numeric_limits<float>::infinity()) return argmax_of(row);
  Draw draw{row, max, 1.0f / options_.temperature, counter_uniform(seed_, sample_, position), options_, w};
  double sum = 0;
  if (options_.top_k > 0 && options_.top_k < row.size()) {
    auto sorted = select_top(row, options_.top_k, w);
    double total = 0;
    if (options_.top_p < 1.0f)
      for (const auto& c : sorted) total += draw.mass(c.logit);
    size_t survivors = draw.surviving(sorted, total, true, &sum);
    return draw.from_sorted(sorted.first(survivors), sum);
  }
  double total = exponentials(row, max, draw.scale, w.exponentials.data(), w.block_sums.data());
  if (options_.top_p >= 1.0f && options_.min_p <= 0.0f) return draw.from_all(total);
  for (size_t k = kQuickTop; k <= kLargestQuickTop; k *= 4) {
    auto sorted = select_top(row, k, w);
    size_t survivors = draw.surviving(sorted, total, sorted.size() < k || k >= row.size(), &sum);
    if (survivors > 0) return draw.from_sorted(sorted.first(survivors), sum);
  }
  return draw.from_flat_top_p(total);
}

}  // namespace tie::engine
