// Whether the kernels of this GPU's own units give what their portable twins give, on random numbers.
#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "inference/bones/cuda/fast_kernels.h"
#include "inference/bones/kernels/cuda/pack_weights.h"

namespace tie::bones::cuda {
namespace {

constexpr int kCapabilityMajor = 75, kCapabilityMinor = 76;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_...
constexpr const char* kFormatNames[] = {"f32", "f16", "bf16", "q8", "q4", "q5", "q6"};
// Shapes that leave part of a tile and of a step empty, and go round the ring.
constexpr uint32_t kOutputs = 130, kInputs = 288, kRows = 70;
constexpr uint32_t kSpanRows = 150, kBefore = 40, kBlockTokens = 32, kBlocks = 8, kHeads = 2;

// Buffers of one check, one after another in GPU memory.
class Scratch {
 public:
  static Result<Scratch> allocate(std::shared_ptr<Driver> driver, size_t bytes) {
    Scratch s;
    TIE_TRY(s.memory_, DeviceMemory::allocate(driver, bytes));
    s.driver_ = std::move(driver);
    return s;
  }
  template <typename T>
  Result<T*> put(const std::vector<T>& values) {
    const DevicePtr at = memory_.at() + used_;
    used_ += (values.size() * sizeof(T) + 255) / 256 * 256;
    if (used_ > memory_.size()) return fail(Code::kInternal, "the check's memory is too small");
    TIE_CHECK_OK(write_now(*driver_, at, values.data(), values.size() * sizeof(T)));
    return reinterpret_cast<T*>(at);
  }

 private:
  std::shared_ptr<Driver> driver_;
  DeviceMemory memory_;
  size_t used_ = 0;
};

std::vector<float> random_numbers(size_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<float> out(n);
  for (float& f : out) f = uniform(random);
  return out;
}

// Any codes; scales and minima of which products are numbers of ordinary size.
std::vector<uint8_t> random_weights(Format format) {
  const Planes planes = planes_of(format, kOutputs, kInputs);
  std::vector<uint8_t> out(planes.bytes);
  std::mt19937 random(5);
  for (uint8_t& byte : out) byte = static_cast<uint8_t>(random());
  const auto numbers = random_numbers(size_t{kOutputs} * kInputs, 6);
  const auto halves = [&](uint64_t at, uint64_t end, auto bits_of) {
    for (size_t i = 0; at + 2 * i + 1 < end; ++i) {
      const uint32_t bits = bits_of(numbers[i % numbers.size()]);
      out[at + 2 * i] = static_cast<uint8_t>(bits);
      out[at + 2 * i + 1] = static_cast<uint8_t>(bits >> 8);
    }
  };
  if (format == Format::kF32)
    std::copy_n(reinterpret_cast<const uint8_t*>(numbers.data()), numbers.size() * 4, out.begin());
  else if (format == Format::kBf16)
    halves(0, planes.high, [](float f) { return bf16_bits(f); });
  else
    halves(format == Format::kF16 ? 0 : planes.scales, planes.bytes, [](float f) { return half_bits(f / 16); });
  return out;
}

// The largest difference, as a fraction of the twin's numbers; infinite where something is no number.
double difference(const std::vector<float>& twin, const std::vector<float>& fast) {
  double square = 0, worst = 0;
  for (size_t i = 0; i < twin.size(); ++i) {
    if (!std::isfinite(twin[i]) || !std::isfinite(fast[i])) return INFINITY;
    square += double{twin[i]} * twin[i];
    worst = std::max(worst, std::fabs(double{twin[i]} - fast[i]));
  }
  return worst / std::sqrt(square / static_cast<double>(twin.size()) + 1e-30);
}

Result<std::vector<float>> fetch(Launcher& launcher, const float* from, size_t n) {
  std::vector<float> out(n);
  TIE_CHECK_OK(launcher.copy_out(out.data(), reinterpret_cast<DevicePtr>(from), n * sizeof(float)));
  TIE_CHECK_OK(launcher.wait());
  return out;
}

}  // namespace

// The same bf16 products, added in another order.
Result<bool> FastKernels::same_product(Launcher& launcher, Format format) {
  TIE_TRY(Scratch scratch, Scratch::allocate(driver_, 1 << 20));
  TIE_TRY(const uint8_t* weights, scratch.put(random_weights(format)));
  std::vector<uint16_t> narrow;
  for (float f : random_numbers(size_t{kRows} * kInputs, 7)) narrow.push_back(static_cast<uint16_t>(bf16_bits(f)));
  TIE_TRY(const uint16_t* x, scratch.put(narrow));
  const auto start = random_numbers(size_t{kRows} * kOutputs, 8);
  GemmArgs args{
      .w = matrix_at(format, kOutputs, kInputs, weights), .x = x, .rows = kRows, .y_stride = kOutputs, .add = 1};
  std::vector<float> found[2];
  for (bool fast : {false, true}) {
    TIE_TRY(args.y, scratch.put(start));
    TIE_CHECK_OK(
        fast ? multiply(launcher, format, args)
             : launcher.launch_for("tie_gemm", format, args,
                                   {(kOutputs + kGemmTile - 1) / kGemmTile, (kRows + kGemmTile - 1) / kGemmTile, 1},
                                   kGemmThreads, kGemmSharedBytes));
    TIE_TRY(found[fast], fetch(launcher, args.y, start.size()));
  }
  weight_maps_.clear();  // of memory that goes away
  return difference(found[0], found[1]) < 1e-3;
}

// Queries, weights and (of f16) keys and values are rounded to 8 bits on the twin's way.
Result<bool> FastKernels::same_attention(Launcher& launcher, KvElement element) {
  TIE_TRY(Scratch scratch, Scratch::allocate(driver_, 4 << 20));
  const uint32_t d = head_dim_;
  const uint64_t plane = uint64_t{kBlockTokens} * d * 2, layer = 2 * plane;  // one kv head; the second of two layers
  std::vector<uint16_t> cache;
  for (float f : random_numbers(kBlocks * layer, 9))
    cache.push_back(element == KvElement::kBf16 ? static_cast<uint16_t>(bf16_bits(f)) : half_bits(f));
  TIE_TRY(uint16_t* pool, scratch.put(cache));
  TIE_TRY(const float* q, scratch.put(random_numbers(size_t{kSpanRows} * kHeads * d, 10)));
  TIE_TRY(const uint32_t* tables, scratch.put(std::vector<uint32_t>{6, 1, 7, 2, 0, 4, 0xffffffffu}));
  TIE_TRY(const PrefillSpan* spans, scratch.put(std::vector<PrefillSpan>{{0, kSpanRows, kBefore, 0}}));
  PrefillArgs args{.q = q,
                   .spans = spans,
                   .tables = tables,
                   .table_stride = 7,
                   .kv = {reinterpret_cast<uint8_t*>(pool), 2 * layer, layer, kBlockTokens, d, 1, element},
                   .n_heads = kHeads};
  std::vector<float> found[2];
  for (bool fast : {false, true}) {
    const std::vector<float> nothing(size_t{kSpanRows} * kHeads * d, NAN);
    TIE_TRY(args.out, scratch.put(nothing));
    const uint32_t shared = ((kPrefillRows + kPrefillKeys) * (d / 2 + 4) + d * kPrefillKeyStride) * 4;
    TIE_CHECK_OK(fast ? attend(launcher, args, kBlocks, kSpanRows, 1)
                      : launcher.launch("tie_prefill_attention_" + std::to_string(d), args,
                                        {(kSpanRows + kPrefillRows - 1) / kPrefillRows, kHeads, 1}, kPrefillThreads,
                                        shared));
    TIE_TRY(found[fast], fetch(launcher, args.out, nothing.size()));
  }
  kv_maps_.clear();
  return difference(found[0], found[1]) < 0.1;
}

Result<FastKernels> FastKernels::choose(std::shared_ptr<Driver> driver, Launcher& launcher,
                                        std::span<const Format> formats, uint32_t head_dim) {
  FastKernels out;
  int major = 0, minor = 0;
  TIE_CHECK_OK(
      driver->check(driver->device_attribute(&major, kCapabilityMajor, driver->device()), "asking for the GPU's kind"));
  TIE_CHECK_OK(
      driver->check(driver->device_attribute(&minor, kCapabilityMinor, driver->device()), "asking for the GPU's kind"));
  out.driver_ = std::move(driver);
  out.units_ = minor != 0 ? Units::kNone : major == 9 ? Units::kHopper : major == 10 ? Units::kBlackwell : Units::kNone;
  out.report_ = "GPU of compute capability " + std::to_string(major) + "." + std::to_string(minor);
  if (out.units_ == Units::kNone) {
    out.report_ += ": portable kernels";
    return out;
  }
  uint32_t tried = 0, used = 0;
  auto say = [&](const std::string& what, bool same) {
    ++tried;
    used += same ? 1 : 0;
    out.word_ = std::string(out.units_ == Units::kHopper ? "cuda-hopper-" : "cuda-blackwell-") + std::to_string(used) +
                "-of-" + std::to_string(tried);
    out.report_ += "; " + what + (same ? ": its own units" : ": PORTABLE, the units disagree with the twin");
  };
  for (Format format : formats) {
    TIE_TRY(out.product_[static_cast<uint32_t>(format)], out.same_product(launcher, format));
    say(std::string("products of ") + kFormatNames[static_cast<uint32_t>(format)],
        out.product_[static_cast<uint32_t>(format)]);
  }
  if (out.units_ != Units::kHopper || (head_dim != 64 && head_dim != 128)) return out;
  out.head_dim_ = head_dim;
  TIE_TRY(const bool f16, out.same_attention(launcher, KvElement::kF16));
  TIE_TRY(const bool bf16, out.same_attention(launcher, KvElement::kBf16));
  out.attention_ = f16 && bf16;
  say("attention", out.attention_);
  return out;
}

}  // namespace tie::bones::cuda
