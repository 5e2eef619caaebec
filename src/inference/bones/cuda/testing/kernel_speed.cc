#include "inference/bones/cuda/testing/kernel_speed.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <numeric>
#include <random>
#include <string>

#include "inference/bones/cuda/fast_kernels.h"
#include "inference/bones/cuda/fingerprints.h"
#include "inference/bones/kernels/cuda/pack_weights.h"

namespace tie::bones::cuda {
namespace {

using nlohmann::json;

constexpr Format kAllFormats[] = {Format::kF32, Format::kF16, Format::kBf16, Format::kQ8,
                                  Format::kQ4,  Format::kQ5,  Format::kQ6};

// Random numbers of ordinary size, whether read as f32, f16, bf16 or codes: equal ones would cost less power, and the
// GPU would be faster than it is.
const std::vector<uint16_t>& random_bits() {
  static const std::vector<uint16_t> bits = [] {
    std::mt19937 random(3);
    std::vector<uint16_t> out(4 << 20);
    for (uint16_t& b : out) b = static_cast<uint16_t>((random() & 0x80ffu) | 0x3f00u);
    return out;
  }();
  return bits;
}

// GPU memory full of them.
struct Buffers {
  std::shared_ptr<Driver> driver;
  std::vector<DeviceMemory> all;

  Result<DevicePtr> take(size_t bytes) {
    TIE_TRY(DeviceMemory memory, DeviceMemory::allocate(driver, bytes));
    const auto& bits = random_bits();
    for (size_t at = 0; at < bytes; at += bits.size() * 2)
      TIE_CHECK_OK(write_now(*driver, memory.at() + at, bits.data(), std::min(bytes - at, bits.size() * 2)));
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
    cases.push_back({{"kernel", "product"}, {"units", units}, {"tflop_s", flops / seconds / 1e12}});
  }
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
  TIE_CHECK_OK(write_now(driver, table, order.data(), order.size() * 4));
  TIE_CHECK_OK(write_now(driver, span, &whole, sizeof whole));
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
  return {};
}

// One row: weights are read once, and nothing else counts.
Result<void> time_row(Launcher& launcher, Buffers& buffers, Format format, uint32_t outputs, uint32_t inputs, int times,
                      json& cases) {
  const Planes planes = planes_of(format, outputs, inputs);
  TIE_TRY(const DevicePtr w, buffers.take(planes.bytes));
  TIE_TRY(const DevicePtr x, buffers.take(uint64_t{inputs} * 4));
  TIE_TRY(const DevicePtr y, buffers.take(uint64_t{outputs} * 4));
  const GemvArgs args{.w = matrix_at(format, outputs, inputs, reinterpret_cast<const uint8_t*>(w)),
                      .x = reinterpret_cast<const float*>(x),
                      .y = reinterpret_cast<float*>(y),
                      .rows = 1,
                      .x_stride = inputs,
                      .y_stride = outputs};
  TIE_TRY(const double seconds, seconds_of(launcher, times, [&] {
            return launcher.launch_for("tie_gemv_one", format, args, {gemv_blocks(outputs, false), 1, 1}, kGemvThreads,
                                       kGemvSharedBytes);
          }));
  cases.push_back({{"kernel", "row"}, {"units", false}, {"gb_s", static_cast<double>(planes.bytes) / seconds / 1e9}});
  return {};
}

// Bytes read and written, as the yardstick of others counts them.
Result<void> time_copy(Launcher& launcher, Buffers& buffers, const Driver& driver, size_t bytes, int times,
                       json& cases) {
  TIE_TRY(const DevicePtr from, buffers.take(bytes));
  TIE_TRY(const DevicePtr to, buffers.take(bytes));
  TIE_TRY(const double seconds, seconds_of(launcher, times, [&] {
            return driver.check(driver.copy_within_async(to, from, bytes, launcher.stream()), "copying");
          }));
  cases.push_back({{"kernel", "copy"}, {"units", false}, {"gb_s", 2.0 * static_cast<double>(bytes) / seconds / 1e9}});
  return {};
}

// What hashlib makes of 2 MiB of zeros, as kernels/cuda/fingerprint_test.cc says it.
constexpr Fingerprint kOfZeros = {0x36, 0xc9, 0x6f, 0x8c, 0x2f, 0xd1, 0xc5, 0x6a, 0xb9, 0x88, 0x29,
                                  0x73, 0xa0, 0xf8, 0x4a, 0x14, 0xb4, 0xe5, 0x46, 0x00, 0x0b, 0xb0,
                                  0xc9, 0x25, 0xcd, 0xfd, 0x1f, 0xa9, 0x6c, 0x6d, 0xf1, 0xf3};

// How many parts of the memory are not zeros.
Result<uint64_t> parts_with_more_than_zeros(FingerprintReader& reader, const DeviceMemory& memory) {
  uint64_t others = 0;
  TIE_CHECK_OK(reader.read(memory.at(), memory.size(), std::atomic<bool>(false),
                           [&](uint64_t, std::span<const Fingerprint> parts) -> Result<void> {
                             for (const Fingerprint& part : parts) others += part != kOfZeros;
                             return {};
                           }));
  return others;
}

// Also whether the GPU's hash is SHA-256, and sees one bit.
Result<void> time_fingerprints(std::shared_ptr<Driver> driver, std::span<const std::byte> kernels, uint64_t bytes,
                               int times, json& cases) {
  TIE_TRY(const auto reader, FingerprintReader::create(driver, kernels));
  TIE_TRY(const DeviceMemory memory, DeviceMemory::allocate(driver, bytes));
  TIE_CHECK_OK(fill_now(*driver, memory.at(), 0, bytes));
  TIE_TRY(const uint64_t of_zeros, parts_with_more_than_zeros(*reader, memory));
  const uint8_t bit = 16;
  TIE_CHECK_OK(write_now(*driver, memory.at() + bytes - 1, &bit, 1));
  TIE_TRY(const uint64_t of_one_bit, parts_with_more_than_zeros(*reader, memory));
  if (of_zeros != 0 || of_one_bit != 1)
    return fail(Code::kInternal, "the fingerprints of GPU memory are not what they must be");
  const auto began = std::chrono::steady_clock::now();
  for (int i = 0; i < times; ++i) {
    TIE_TRY([[maybe_unused]] const uint64_t again, parts_with_more_than_zeros(*reader, memory));
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count() / times;
  cases.push_back({{"kernel", "fingerprint"}, {"units", false}, {"gb_s", static_cast<double>(bytes) / seconds / 1e9}});
  return {};
}

constexpr const char* kNames[] = {"f32", "f16", "bf16", "q8", "q4", "q5", "q6"};
const char* name_of(Format format) {
  return kNames[static_cast<uint32_t>(format)];
}

}  // namespace

std::vector<CheckCase> speed_of_kernels(std::shared_ptr<Driver> driver, std::span<const std::byte> kernels,
                                        bool quick) {
  std::vector<CheckCase> cases;
  // Each with a launcher, memory and units of its own.
  auto add = [&](const std::string& name, std::vector<Format> formats, uint32_t head_dim, auto measure) {
    cases.push_back({name, [=](json& found) -> Result<void> {
                       TIE_TRY(const auto launcher, Launcher::create(driver, kernels));
                       TIE_TRY(FastKernels fast, FastKernels::choose(driver, *launcher, formats, head_dim));
                       Buffers buffers{driver, {}};
                       found["report"] = fast.report();
                       found["kernels"] = json::array();
                       TIE_CHECK_OK(measure(*launcher, fast, buffers, found["kernels"]));
                       found["ok"] = true;
                       return {};
                     }});
  };
  const int times = quick ? 1 : 20;
  add("copy", {}, 0, [=](Launcher& launcher, FastKernels&, Buffers& buffers, json& out) {
    return time_copy(launcher, buffers, *driver, quick ? 4096 : size_t{1} << 30, times, out);
  });
  add("fingerprint", {}, 0, [=](Launcher&, FastKernels&, Buffers&, json& out) {
    return time_fingerprints(driver, kernels, quick ? 2 * kFingerprintPartBytes : uint64_t{4} << 30, times, out);
  });
  for (Format format : {Format::kBf16, Format::kQ8, Format::kQ4}) {
    add(std::string("row-") + name_of(format), {}, 0,
        [=](Launcher& launcher, FastKernels&, Buffers& buffers, json& out) {
          return time_row(launcher, buffers, format, quick ? 64 : 1 << 16, quick ? 64 : 4096, times, out);
        });
    add(std::string("product-") + name_of(format), {format}, 0,
        [=](Launcher& launcher, FastKernels& fast, Buffers& buffers, json& out) {
          return time_product(launcher, fast, buffers, format, quick ? 64 : 4096, times, out);
        });
  }
  add("attention", {}, 128, [=](Launcher& launcher, FastKernels& fast, Buffers& buffers, json& out) {
    return time_attention(launcher, fast, buffers, quick ? 40 : 4096, quick ? 1 : 32, times, out);
  });
  return cases;
}

std::vector<CheckCase> units_of_gpu(std::shared_ptr<Driver> driver, std::span<const std::byte> kernels) {
  std::vector<CheckCase> cases;
  auto add = [&](const std::string& name, std::vector<Format> formats, uint32_t head_dim) {
    cases.push_back({name, [=](json& found) -> Result<void> {
                       TIE_TRY(const auto launcher, Launcher::create(driver, kernels));
                       TIE_TRY(const FastKernels fast, FastKernels::choose(driver, *launcher, formats, head_dim));
                       found["report"] = fast.report();
                       found["ok"] = fast.report().find("PORTABLE") == std::string::npos;
                       return {};
                     }});
  };
  for (Format format : kAllFormats) add(std::string("product-") + name_of(format), {format}, 0);
  for (uint32_t head_dim : {64u, 128u}) add("attention-" + std::to_string(head_dim), {}, head_dim);
  return cases;
}

}  // namespace tie::bones::cuda
