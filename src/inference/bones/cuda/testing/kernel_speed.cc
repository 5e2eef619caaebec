#include "inference/bones/cuda/testing/kernel_speed.h"

#include <chrono>
#include <functional>
#include <numeric>

#include "inference/bones/cuda/fast_kernels.h"
#include "inference/bones/kernels/cuda/pack_weights.h"

namespace tie::bones::cuda {
namespace {

using nlohmann::json;

constexpr Format kAllFormats[] = {Format::kF32, Format::kF16, Format::kBf16, Format::kQ8,
                                  Format::kQ4,  Format::kQ5,  Format::kQ6};

// GPU memory full of small numbers, whatever their type.
struct Buffers {
  std::shared_ptr<Driver> driver;
  std::vector<DeviceMemory> all;

  Result<DevicePtr> take(size_t bytes) {
    TIE_TRY(DeviceMemory memory, DeviceMemory::allocate(driver, bytes));
    TIE_CHECK_OK(driver->check(driver->mem_set(memory.at(), 0x21, bytes), "filling a buffer"));
    all.push_back(std::move(memory));
    return all.back().at();
  }
};

// Seconds of one launch, out of `times` after a first.
Result<double> seconds_of(Launcher& launcher, int times, const std::function<Result<void>()>& launch) {
  TIE_CHECK_OK(launch());
  TIE_CHECK_OK(launcher.wait());
  const auto began = std::chrono::steady_clock::now();
  for (int i = 0; i < times; ++i) TIE_CHECK_OK(launch());
  TIE_CHECK_OK(launcher.wait());
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count() / times;
}

Result<void> time_product(Launcher& launcher, FastKernels& fast, Buffers& buffers, Format format, uint32_t size,
                          int times, json& cases) {
  TIE_TRY(const DevicePtr w, buffers.take(planes_of(format, size, size).bytes));
  TIE_TRY(const DevicePtr x, buffers.take(uint64_t{size} * size * 2));
  TIE_TRY(const DevicePtr y, buffers.take(uint64_t{size} * size * 4));
  const GemmArgs args{.w = matrix_at(format, size, size, reinterpret_cast<const uint8_t*>(w)),
                      .x = reinterpret_cast<const uint16_t*>(x),
                      .y = reinterpret_cast<float*>(y),
                      .rows = size,
                      .y_stride = size};
  const uint32_t tiles = (size + kGemmTile - 1) / kGemmTile;
  for (bool units : {false, true}) {
    if (units && !fast.multiplies(format)) continue;
    TIE_TRY(const double seconds, seconds_of(launcher, times, [&] {
              return units ? fast.multiply(launcher, format, args)
                           : launcher.launch_for("tie_gemm", format, args, {tiles, tiles, 1}, kGemmThreads,
                                                 kGemmSharedBytes);
            }));
    const double flops = 2.0 * size * size * size;
    cases.push_back({{"kernel", "product"},
                     {"format", static_cast<int>(format)},
                     {"units", units},
                     {"tflop_s", flops / seconds / 1e12}});
  }
  buffers.all.clear();
  return {};
}

Result<void> time_attention(Launcher& launcher, FastKernels& fast, Buffers& buffers, uint32_t tokens, uint32_t n_heads,
                            int times, json& cases) {
  constexpr uint32_t kDim = 128, kBlockTokens = 32, kGroup = 4;
  const uint32_t n_kv = std::max(n_heads / kGroup, 1u), blocks = (tokens + kBlockTokens - 1) / kBlockTokens;
  const uint64_t block_bytes = uint64_t{2} * n_kv * kBlockTokens * kDim * 2;
  TIE_TRY(const DevicePtr pool, buffers.take(blocks * block_bytes));
  TIE_TRY(const DevicePtr q, buffers.take(uint64_t{tokens} * n_heads * kDim * 4));
  TIE_TRY(const DevicePtr out, buffers.take(uint64_t{tokens} * n_heads * kDim * 4));
  TIE_TRY(const DevicePtr table, buffers.take(blocks * 4));
  TIE_TRY(const DevicePtr span, buffers.take(sizeof(PrefillSpan)));
  std::vector<uint32_t> order(blocks);
  std::iota(order.begin(), order.end(), 0u);
  const PrefillSpan whole{0, tokens, 0, 0};
  const Driver& driver = *buffers.driver;
  TIE_CHECK_OK(driver.check(driver.copy_in(table, order.data(), order.size() * 4), "writing a block table"));
  TIE_CHECK_OK(driver.check(driver.copy_in(span, &whole, sizeof whole), "writing a span"));
  const PrefillArgs args{.q = reinterpret_cast<const float*>(q),
                         .out = reinterpret_cast<float*>(out),
                         .spans = reinterpret_cast<const PrefillSpan*>(span),
                         .tables = reinterpret_cast<const uint32_t*>(table),
                         .table_stride = blocks,
                         .kv = {reinterpret_cast<uint8_t*>(pool), block_bytes, 0, kBlockTokens, kDim, n_kv},
                         .n_heads = n_heads};
  for (bool units : {false, true}) {
    if (units && !fast.attends(args.kv)) continue;
    TIE_TRY(const double seconds, seconds_of(launcher, times, [&] {
              return units ? fast.attend(launcher, args, blocks, tokens, 1)
                           : launcher.launch("tie_prefill_attention_128", args,
                                             {(tokens + kPrefillRows - 1) / kPrefillRows, n_heads, 1}, kPrefillThreads,
                                             kPrefillSharedBytes<kDim>);
            }));
    const double flops = 2.0 * tokens * tokens * n_heads * kDim;  // causal: half of four products
    cases.push_back({{"kernel", "attention"}, {"units", units}, {"tflop_s", flops / seconds / 1e12}});
  }
  buffers.all.clear();
  return {};
}

}  // namespace

Result<json> kernel_speed(std::shared_ptr<Driver> driver, std::span<const std::byte> kernels, bool quick) {
  TIE_TRY(const auto launcher, Launcher::create(driver, kernels));
  const Format formats[] = {Format::kBf16, Format::kQ8, Format::kQ4};
  TIE_TRY(FastKernels fast, FastKernels::choose(driver, *launcher, formats, 128));
  Buffers buffers{driver, {}};
  json cases = json::array();
  for (Format format : formats)
    TIE_CHECK_OK(time_product(*launcher, fast, buffers, format, quick ? 64 : 4096, quick ? 1 : 20, cases));
  TIE_CHECK_OK(time_attention(*launcher, fast, buffers, quick ? 40 : 4096, quick ? 1 : 32, quick ? 1 : 20, cases));
  return json{{"ok", true}, {"report", fast.report()}, {"cases", cases}};
}

Result<json> check_units(std::shared_ptr<Driver> driver, std::span<const std::byte> kernels) {
  json reports = json::array();
  bool ok = true;
  for (uint32_t head_dim : {64u, 128u}) {
    TIE_TRY(const auto launcher, Launcher::create(driver, kernels));
    TIE_TRY(const FastKernels fast, FastKernels::choose(driver, *launcher, kAllFormats, head_dim));
    ok = ok && fast.report().find("PORTABLE") == std::string::npos;
    reports.push_back(fast.report());
  }
  return json{{"ok", ok}, {"reports", reports}};
}

}  // namespace tie::bones::cuda
