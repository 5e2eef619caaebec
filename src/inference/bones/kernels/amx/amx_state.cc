#include "inference/bones/kernels/amx/amx_state.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <vector>

#include "inference/bones/kernels/amx/amx.h"
#include "inference/bones/kernels/amx/tile_config.h"
#include "inference/bones/kernels/reference/tile_access.h"
#include "inference/bones/weights_image.h"

namespace tie::bones::amx {
namespace {

struct Cpuid {
  uint32_t a = 0, b = 0, c = 0, d = 0;
  Cpuid(uint32_t leaf, uint32_t part) { (void)__get_cpuid_count(leaf, part, &a, &b, &c, &d); }
};

bool cpu_has_tiles() {
  constexpr uint32_t kTile = 1u << 24, kInt8 = 1u << 25;
  if ((Cpuid(7, 0).d & (kTile | kInt8)) != (kTile | kInt8)) return false;
  const Cpuid palette(0x1d, 1);  // bytes of a row and tiles in b, rows in c
  return (palette.b & 0xffff) == kTileRowBytes && palette.b >> 16 >= kTiles && (palette.c & 0xffff) == kTileRows;
}

bool kernel_saves_tiles() {
  if (!(Cpuid(1, 0).c & (1u << 27))) return false;
  uint32_t low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  constexpr uint32_t kTileState = 3u << 17;
  return (low & kTileState) == kTileState;
}

bool kernel_permits() {
  constexpr int kRequest = 0x1023, kGet = 0x1022, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, ARCH_GET_XCOMP_PERM
  if (::syscall(SYS_arch_prctl, kRequest, kTileData) != 0) return false;
  uint64_t permitted = 0;
  return ::syscall(SYS_arch_prctl, kGet, &permitted) == 0 && (permitted >> kTileData & 1) != 0;
}

// ---- the product that is tried ----

class Numbers {
 public:
  uint32_t next() {
    return static_cast<uint32_t>((state_ = state_ * 6364136223846793005u + 1442695040888963407u) >> 33);
  }
  float spread() { return static_cast<float>(next() % 2001) / 1000.0f - 1.0f; }

 private:
  uint64_t state_ = 7;
};

template <typename T>
class Aligned {
 public:
  explicit Aligned(size_t n) : raw_(n * sizeof(T) + 64) {}
  T* get() { return reinterpret_cast<T*>(raw_.data() + (64 - reinterpret_cast<uintptr_t>(raw_.data()) % 64) % 64); }

 private:
  std::vector<std::byte> raw_;
};

constexpr uint32_t kTriedRows = 2 * kAmxTileRows + 1, kTriedStrips = 3, kTriedInputs = 3 * kBlock,
                   kTriedPadded = 3 * kAmxTileRows;

// Random codes, finite scales.
void fill_strip(Packing packing, Numbers& numbers, std::byte* strip) {
  const size_t bytes = strip_bytes(packing, kTriedInputs);
  for (size_t i = 0; i < bytes; ++i) strip[i] = static_cast<std::byte>(numbers.next());
  auto put = [&](size_t at, uint32_t value) { std::memcpy(strip + at, &value, 2); };
  if (packing == Packing::kTileQ4) {
    for (uint32_t b = 0; b < kTriedInputs / kBlock; ++b)
      for (uint32_t i = 0; i < 2 * kStrip; ++i)
        put(size_t{b} * kQ4TileBytes + 256 + 2 * i,
            static_cast<uint32_t>(static_cast<int32_t>(numbers.next() % 16383) - kFoldedMax));
    const float unit = 1e-5f;
    for (uint32_t c = 0; c < kStrip; ++c) std::memcpy(strip + bytes - kQ4UnitBytes + 4 * c, &unit, 4);
    return;
  }
  const size_t tile = packing == Packing::kTileQ8 ? kQ8TileBytes : strip_bytes(packing, kBlock);
  for (size_t end = tile; end <= bytes; end += tile)
    for (uint32_t i = 0; i < 32; ++i) put(end - 64 + 2 * i, float_to_half(0.1f * numbers.spread()));
}

bool product_is_right(Packing packing, void (*matmul)(const MatmulJob& job)) {
  constexpr size_t kCells = size_t{kTriedPadded} * (kTriedInputs / kBlock),
                   kOutputs = size_t{kTriedRows} * kTriedStrips * kStrip;
  Numbers numbers;
  const size_t bytes = strip_bytes(packing, kTriedInputs);
  Aligned<std::byte> weights(kTriedStrips * bytes), scratch(matmul_scratch_bytes(kTriedInputs));
  for (uint32_t s = 0; s < kTriedStrips; ++s) fill_strip(packing, numbers, weights.get() + s * bytes);
  Aligned<int8_t> codes(kCells * kBlock);
  Aligned<float> scale(kCells), sum(kCells), expected(kOutputs), got(kOutputs);
  Aligned<int32_t> start4(kCells), neg128(kCells), neg32(2 * kCells);
  Activations x{.rows = kTriedRows,
                .k = kTriedInputs,
                .rows_per_tile = kAmxTileRows,
                .group = packing == Packing::kTileQ4 ? kScaleBlocks : 1,
                .codes = codes.get(),
                .scale = scale.get(),
                .sum = sum.get(),
                .start4 = start4.get(),
                .neg128 = neg128.get(),
                .neg32 = neg32.get()};
  std::vector<float> rows(size_t{kTriedRows} * kTriedInputs);
  for (float& value : rows) value = numbers.spread();
  for (uint32_t tile = 0; tile < x.tiles(); ++tile) {
    QuantizeJob job;
    job.x = rows.data(), job.x_stride = kTriedInputs, job.tile = tile, job.n_blocks = x.blocks(), job.out = &x;
    kReferenceKernels.quantize(job);
  }
  MatmulJob job{{packing, kTriedStrips * kStrip, kTriedInputs, weights.get()},
                &x,
                0,
                kTriedStrips,
                expected.get(),
                kTriedStrips * kStrip,
                false,
                scratch.get()};
  kReferenceKernels.matmul(job);
  job.out = got.get();
  matmul(job);
  return std::memcmp(expected.get(), got.get(), kOutputs * sizeof(float)) == 0;
}

}  // namespace

bool products_are_right(void (*matmul)(const MatmulJob& job)) {
  for (const Packing packing : {Packing::kTileQ4, Packing::kTileQ5, Packing::kTileQ6, Packing::kTileQ8})
    if (!product_is_right(packing, matmul)) return false;
  return true;
}

State judge(const Questions& questions) {
  if (!questions.cpu_has_tiles()) return State::kNoHardware;
  if (!questions.kernel_saves_tiles()) return State::kNotSaved;
  if (!questions.kernel_permits()) return State::kRefused;
  return products_are_right(questions.matmul) ? State::kReady : State::kWrong;
}

State state() {
  static const State found = judge({cpu_has_tiles, kernel_saves_tiles, kernel_permits, matmul});
  return found;
}

std::string_view reason(State state) {
  switch (state) {
    case State::kReady:
      return "";
    case State::kNoHardware:
      return "this CPU has no AMX int8 tiles";
    case State::kNotSaved:
      return "the kernel does not save AMX tiles between threads";
    case State::kRefused:
      return "the kernel refused the permission to use AMX tiles";
    case State::kWrong:
      break;
  }
  return "products on AMX tiles differ from plain arithmetic on this CPU";
}

std::string_view word(State state) {
  switch (state) {
    case State::kReady:
    case State::kNoHardware:
      return "";
    case State::kNotSaved:
      return "not-saved";
    case State::kRefused:
      return "refused";
    case State::kWrong:
      break;
  }
  return "wrong-results";
}

}  // namespace tie::bones::amx
