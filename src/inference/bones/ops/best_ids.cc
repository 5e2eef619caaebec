#include "inference/bones/ops/best_ids.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "inference/bones/ops/each_set.h"

namespace tie::bones {
namespace {
constexpr size_t kLanes = 16;
using Floats = float __attribute__((vector_size(kLanes * sizeof(float)), aligned(4), may_alias));
constexpr float kInfinity = std::numeric_limits<float>::infinity(), kMinusInfinity = -kInfinity;
}  // namespace

TIE_EACH_SET float max_of(std::span<const float> row) {
  Floats best = Floats{} + kMinusInfinity, second = best;
  size_t i = 0;
  for (; i + 2 * kLanes <= row.size(); i += 2 * kLanes) {
    Floats a = *reinterpret_cast<const Floats*>(&row[i]), b = *reinterpret_cast<const Floats*>(&row[i + kLanes]);
    best = a > best ? a : best;
    second = b > second ? b : second;
  }
  best = second > best ? second : best;
  float result = kMinusInfinity;
  for (size_t lane = 0; lane < kLanes; ++lane) result = best[lane] > result ? best[lane] : result;
  for (; i < row.size(); ++i) result = row[i] > result ? row[i] : result;
  return result;
}

TIE_EACH_SET int32_t argmax_of(std::span<const float> row) {
  float best = max_of(row);
  if (best == kMinusInfinity) return -1;
  size_t i = 0;
  for (; i + kGroup <= row.size(); i += kGroup) {
    const float* x = &row[i];
    int hit = 0;
    for (size_t j = 0; j < kGroup; ++j) hit |= static_cast<int>(x[j] == best);
    if (hit) break;
  }
  for (; i < row.size(); ++i)
    if (row[i] == best) return static_cast<int32_t>(i);
  return -1;
}

TIE_EACH_SET void group_maxima(std::span<const float> row, std::vector<float>& out) {
  out.clear();
  size_t i = 0;
  for (; i + kGroup <= row.size(); i += kGroup) {
    const auto* x = reinterpret_cast<const Floats*>(&row[i]);
    Floats a = x[0] > x[1] ? x[0] : x[1], b = x[2] > x[3] ? x[2] : x[3];
    a = a > b ? a : b;
    float best = kMinusInfinity;
    for (size_t lane = 0; lane < kLanes; ++lane) best = a[lane] > best ? a[lane] : best;
    out.push_back(best);
  }
  if (i < row.size()) out.push_back(max_of(row.subspan(i)));
}

TIE_EACH_SET size_t collect_between(std::span<const float> row, size_t from, float low, float high, size_t most,
                                    std::vector<Candidate>& out) {
  size_t i = from;
  while (i < row.size()) {
    size_t end = i + kGroup < row.size() ? i + kGroup : row.size();
    if (end - i == kGroup) {
      const float* x = &row[i];
      int hit = 0;
      for (size_t j = 0; j < kGroup; ++j) hit |= static_cast<int>(x[j] > low) & static_cast<int>(x[j] <= high);
      if (hit == 0) {
        i = end;
        continue;
      }
    }
    if (out.size() + kGroup > most) return i;
    for (; i < end; ++i)
      if (row[i] > low && row[i] <= high) out.push_back({row[i], static_cast<int32_t>(i)});
  }
  return row.size();
}

TIE_EACH_SET void apply_mask(std::span<float> row, std::span<const uint32_t> mask, size_t first_bit) {
  const size_t shift = first_bit % 32;
  auto word = [&](size_t at) { return at < mask.size() ? mask[at] : 0u; };
  for (size_t start = 0, at = first_bit / 32; start < row.size(); start += 32, ++at) {
    const uint64_t both = word(at) | (shift != 0 ? uint64_t{word(at + 1)} << 32 : 0);
    const auto bits = static_cast<uint32_t>(both >> shift);
    if (bits == ~0u) continue;
    const size_t end = start + 32 < row.size() ? start + 32 : row.size();
    for (size_t i = start; i < end; ++i) row[i] = (bits >> (i & 31) & 1) ? row[i] : kMinusInfinity;
  }
}

void TopScratch::reserve(size_t row_size, size_t k) {
  candidates.reserve(std::min(row_size, 2 * k + 4 * kGroup) + kGroup);
  maxima.reserve(row_size / kGroup + 1);
}

std::span<const Candidate> select_top(std::span<const float> row, size_t k, TopScratch& scratch) {
  auto& c = scratch.candidates;
  auto& maxima = scratch.maxima;
  c.clear();
  k = std::min(k, row.size());
  if (k == 0) return {};
  if (k == 1) {
    if (const int32_t best = argmax_of(row); best >= 0) c.push_back({row[static_cast<size_t>(best)], best});
    return c;
  }
  // The k-th best of the groups' maxima is a bound that at least k elements reach, and few more than k do.
  float threshold = kMinusInfinity;
  if (group_maxima(row, maxima); maxima.size() > k) {
    std::nth_element(maxima.begin(), maxima.begin() + static_cast<ptrdiff_t>(k) - 1, maxima.end(), std::greater<>());
    threshold = std::nextafter(maxima[k - 1], kMinusInfinity);
  }
  size_t most = 2 * k + 4 * kGroup;
  for (size_t at = 0; at < row.size();) {
    at = collect_between(row, at, threshold, kInfinity, most, c);
    if (c.size() <= k) continue;
    std::nth_element(c.begin(), c.begin() + static_cast<ptrdiff_t>(k) - 1, c.end(), better);
    c.resize(k);
    threshold = c[k - 1].logit;  // a later equal one has a higher id: it loses the tie
  }
  std::sort(c.begin(), c.end(), better);
  return c;
}

uint32_t merge_best(const BestTable& table, uint32_t row, uint32_t k, Candidate* out) {
  // Two lists at a time would do for two ranks; with more threads the lists are still few and k is small.
  uint32_t n = 0;
  for (uint32_t i = 0; i < table.lists; ++i) {
    const Candidate* list = table.list(i, row);
    const uint32_t count = std::min(table.count(i, row), kMostBest);
    // Insertion from the worst place on: most entries of a list are beyond the k best or behind those that are there.
    for (uint32_t at = 0; at < count; ++at) {
      if (n == k && !better(list[at], out[n - 1])) break;  // nor is any behind it
      uint32_t place = n < k ? n++ : n - 1;
      for (; place > 0 && better(list[at], out[place - 1]); --place) out[place] = out[place - 1];
      out[place] = list[at];
    }
  }
  return n;
}

BestRows merge_best(const BestTable& table, std::span<const BestOf> wants, Candidate* out, uint32_t* counts) {
  for (uint32_t i = 0; i < wants.size(); ++i)
    counts[i] = wants[i].k == 0 ? 0 : merge_best(table, i, wants[i].k, out + size_t{i} * kMostBest);
  return {out, counts};
}

}  // namespace tie::bones
