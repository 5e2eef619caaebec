// Speed of single kernels on one core: the best of many short runs, so that a busy machine disturbs little.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cmath>
#include <functional>
#include <numeric>
#include <random>

#include "bench/limits.h"
#include "inference/bones/kernels/kernel_choice.h"
#include "inference/bones/kernels/q8_cache.h"
#include "inference/bones/kernels/reference/tile_access.h"
#include "inference/bones/kv_layout.h"
#include "inference/bones/ops/workspace.h"
#include "inference/bones/weights_image.h"

namespace {

using namespace tie;
using namespace tie::bones;

double best_seconds(const std::function<void()>& f, double budget) {
  double best = 1e30, total = 0;
  f();
  while (total < budget) {
    const auto start = std::chrono::steady_clock::now();
    f();
    const double t = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    best = std::min(best, t);
    total += t;
  }
  return best;
}

std::vector<float> random_floats(size_t n) {
  static std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> out(n);
  for (float& f : out) f = normal(random);
  return out;
}

std::byte* aligned_bytes(std::vector<std::byte>& raw, size_t n) {
  raw.resize(n + 64);
  return raw.data() + (64 - reinterpret_cast<uintptr_t>(raw.data()) % 64) % 64;
}

struct Limits {
  double int8, fp32;
} limits;

void product(const KernelSet& set, Packing packing, uint32_t rows, uint32_t n, uint32_t k, double budget) {
  std::vector<std::byte> raw, raw_scratch;
  const size_t bytes = n / kStrip * strip_bytes(packing, k);
  std::byte* w = aligned_bytes(raw, bytes);
  std::mt19937 random(2);
  for (size_t i = 0; i < bytes; ++i)
    w[i] = static_cast<std::byte>(random() % 0x38);  // small finite halves wherever they are read as scales
  if (packing == Packing::kTileQ4)
    for (uint32_t strip = 1; strip <= n / kStrip; ++strip)
      std::fill_n(reinterpret_cast<float*>(w + strip * strip_bytes(packing, k) - kQ4UnitBytes), kStrip, 1e-4f);
  std::byte* scratch = aligned_bytes(raw_scratch, matmul_scratch_bytes(k));
  Arena arena;
  take_activations(arena, rows, k);
  arena.allocate();
  Activations acts = take_activations(arena, rows, k);
  acts.rows = rows, acts.rows_per_tile = rows_per_tile(rows);
  acts.group = packing == Packing::kTileQ4 ? kScaleBlocks : 1;
  const auto x = random_floats(size_t{rows} * k);
  std::vector<float> out(size_t{rows} * n);
  auto quantize = [&] {
    for (uint32_t tile = 0; tile < acts.tiles(); ++tile) {
      QuantizeJob job;
      job.x = x.data(), job.x_stride = k, job.tile = tile, job.n_blocks = acts.blocks(), job.out = &acts;
      set.quantize(job);
    }
  };
  const double q = best_seconds(quantize, budget / 4);
  const MatmulJob job{{packing, n, k, w}, &acts, 0, n / kStrip, out.data(), n, false, scratch};
  const double t = best_seconds([&] { set.matmul(job); }, budget);
  const double ops = 2.0 * rows * n * k;
  fmt::print(
      "{} packing {} rows {:>3} n {} k {}: {:>7.1f} us {:>7.0f} GOP/s {:>5.1f} % of int8 peak {:>6.1f} GB/s   quantise "
      "{:.2f} ns an input\n",
      set.name, static_cast<int>(packing), rows, n, k, t * 1e6, ops / t * 1e-9, 100 * ops / t / limits.int8,
      static_cast<double>(bytes) / t * 1e-9, q * 1e9 / rows / k);
}

void attention(const KernelSet& set, KvType type, uint32_t rows, uint32_t dim, uint32_t keys, double budget) {
  std::vector<std::byte> raw;
  AttentionJob job;
  job.block_tokens = 32, job.head_dim = dim, job.n_rows = rows, job.type = type;
  job.block_stride = type == KvType::kQ8 ? 2 * q8_group_bytes(dim) : size_t{4} * dim * 32;
  job.kv = aligned_bytes(raw, keys / 32 * job.block_stride);
  std::vector<uint32_t> table;
  for (uint32_t i = 0; i < keys / 32; ++i) table.push_back(i);
  job.block_table = table.data();
  for (uint32_t t = 0; t < keys; ++t) {
    const auto k = random_floats(dim), v = random_floats(dim);
    set.store_kv(
        {k.data(), v.data(), const_cast<std::byte*>(job.kv) + t / 32 * job.block_stride, t % 32, 32, dim, type});
  }
  auto q = random_floats(rows * dim);
  for (float& x : q) x /= std::sqrt(static_cast<float>(dim));  // scores as a model has them
  for (uint32_t r = 0; r < rows; ++r) job.q[r] = q.data() + r * dim, job.key_end[r] = keys;
  std::vector<float> a(kAttentionRows * dim), b(kAttentionRows * dim);
  AttentionPartial total{{}, {}, a.data()}, block{{}, {}, b.data()};
  std::vector<std::byte> raw_q;
  job.prepared = aligned_bytes(raw_q, attention_scratch_bytes(dim));
  const double t = best_seconds(
      [&] {
        if (set.prepare_queries) set.prepare_queries(job);
        for (uint32_t i = 0; i < keys / kKeyBlock; ++i) {
          if (set.attend_more && type == KvType::kQ8 && i > 0) {
            set.attend_more(job, i, total);
            continue;
          }
          set.attend_block(job, i, i == 0 ? total : block);
          if (i > 0) set.merge_partial(total, block, rows, dim);
        }
      },
      budget);
  const double flops = 4.0 * rows * dim * keys;
  fmt::print(
      "{} attention {} rows {} dim {} keys {}: {:>7.1f} us {:>6.1f} GFLOP/s {:>5.1f} % of int8 peak {:>6.1f} GB/s\n",
      set.name, kv_type_name(type), rows, dim, keys, t * 1e6, flops / t * 1e-9, 100 * flops / t / limits.int8,
      static_cast<double>(keys / 32 * job.block_stride) / t * 1e-9);
}

// A decode step of one sequence as a model's layers walk it: what they read lies in the last-level cache, or in memory.
void deep_attention(const KernelSet& set, uint32_t rows, uint32_t heads, uint32_t dim, uint32_t keys, double budget) {
  constexpr uint32_t kLayers = 30, kTokens = 32;
  const size_t record = kTokens / 16 * q8_group_bytes(dim), layer = heads * record, stride = kLayers * layer;
  Arena arena;
  arena.take<std::byte>(keys / kTokens * stride);
  arena.allocate();
  std::byte* cache = arena.take<std::byte>(keys / kTokens * stride);
  const auto x = random_floats(dim);
  for (uint32_t at = 0; at < keys * kLayers * heads; ++at) {
    const uint32_t token = at % kTokens;
    set.store_kv({x.data(), x.data(), cache + at / kTokens * record, token, kTokens, dim, KvType::kQ8});
  }
  std::vector<uint32_t> table(keys / kTokens);
  std::iota(table.begin(), table.end(), 0u);
  auto q = random_floats(rows * dim);
  for (float& v : q) v /= std::sqrt(static_cast<float>(dim));
  std::vector<float> acc(kAttentionRows * dim);
  std::vector<std::byte> raw_q;
  std::byte* prepared = aligned_bytes(raw_q, attention_scratch_bytes(dim));
  AttentionPartial total{{}, {}, acc.data()};
  AttentionJob jobs[2];
  const auto job_of = [&](uint32_t item) {
    AttentionJob& job = jobs[item % 2];
    job.kv = cache + item / heads * layer + item % heads * record, job.block_stride = stride;
    job.block_table = table.data(), job.block_tokens = kTokens, job.head_dim = dim, job.type = KvType::kQ8;
    job.n_rows = rows, job.prepared = prepared;
    for (uint32_t r = 0; r < rows; ++r) job.q[r] = q.data() + r * dim, job.key_end[r] = keys;
  };
  const uint32_t blocks = keys / kKeyBlock;
  const double t = best_seconds(
      [&] {
        job_of(0);
        for (uint32_t item = 0; item < kLayers * heads; ++item) {
          AttentionJob& job = jobs[item % 2];
          if (item + 1 < kLayers * heads) job_of(item + 1);
          set.prepare_queries(job);
          for (uint32_t i = 0; i < blocks; ++i) {
            job.next = i + 1 < blocks ? &job : &jobs[(item + 1) % 2], job.next_block = (i + 1) % blocks;
            (i == 0 ? set.attend_block : set.attend_more)(job, i, total);
          }
        }
      },
      budget);
  fmt::print("{} deep attention rows {} heads {} dim {} keys {}: {:>7.1f} us a layer {:>6.1f} GB/s\n", set.name, rows,
             heads, dim, keys, t * 1e6 / kLayers, static_cast<double>(keys / kTokens * stride) / t * 1e-9);
}

void products(const KernelSet& set, double budget) {
  for (Packing packing : {Packing::kTileQ4, Packing::kTileQ8})
    for (uint32_t rows : {1, 4, 8, 12, 16, 32, 72, 128}) product(set, packing, rows, 768, 576, budget);
  for (Packing packing : {Packing::kTileQ5, Packing::kTileQ6})
    for (uint32_t rows : {1, 128}) product(set, packing, rows, 768, 768, budget);
  product(set, Packing::kTileQ4, 128, 576, 1536, budget);
  product(set, Packing::kTileQ4, 1, 576, 1536, budget);
}

void attentions(const KernelSet& set, double budget) {
  for (KvType type : {KvType::kF16, KvType::kQ8})
    for (uint32_t dim : {64, 256})
      for (uint32_t rows : {1, 3, 4, 8}) attention(set, type, rows, dim, 512, budget);
  if (set.attend_more == nullptr) return;
  deep_attention(set, 3, 3, 64, 2048, 4 * budget);
  deep_attention(set, 4, 1, 256, 2048, 4 * budget);
}

}  // namespace

int main(int argc, char** argv) {
  double budget = 0.05;
  std::string kernels, only;
  CLI::App app("measures single kernels");
  app.add_option("--seconds", budget);
  app.add_option("--kernels", kernels);
  app.add_option("--only", only, "products or attention")->check(CLI::IsMember({"products", "attention"}));
  CLI11_PARSE(app, argc, argv);
  auto set = choose_kernel_set(kernels);
  if (!set) return 1;
  if (__builtin_cpu_supports("avx512vnni")) {
    limits.int8 = 100'000 * 12.0 * 128 / best_seconds([] { bench::avx512_int8(100'000); }, 0.1);
    limits.fp32 = 100'000 * 12.0 * 32 / best_seconds([] { bench::avx512_fp32(100'000); }, 0.1);
  }
  fmt::print("peak of one core: int8 {:.0f} GOP/s, fp32 {:.0f} GFLOP/s\n", limits.int8 * 1e-9, limits.fp32 * 1e-9);
  if (only != "attention") products(**set, budget);
  if (only != "products") attentions(**set, budget);
  return 0;
}
