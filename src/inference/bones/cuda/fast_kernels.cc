#include "inference/bones/cuda/fast_kernels.h"

namespace tie::bones::cuda {
namespace {

// The driver's numbers: CUtensorMapDataType, CUtensorMapSwizzle, CUtensorMapL2promotion.
constexpr int kF16Elements = 6, kBf16Elements = 9, kSwizzle128 = 3, kPromote128 = 2;
constexpr size_t kMaxMaps = 4096;  // of either kind; a model has fewer

Result<TensorMap> encode(const Driver& driver, int type, uint32_t rank, const void* base, const uint64_t* sizes,
                         const uint64_t* strides, const uint32_t* box) {
  constexpr uint32_t kEach[4] = {1, 1, 1, 1};
  TensorMap map{};
  TIE_CHECK_OK(driver.check(driver.tensor_map_encode(map.bytes, type, rank, const_cast<void*>(base), sizes, strides,
                                                     box, kEach, 0, kSwizzle128, kPromote128, 0),
                            "describing a tile to TMA"));
  return map;
}

}  // namespace

// Rows of bf16, 64 inputs of 128 rows at a time; zeros outside.
Result<TensorMap> FastKernels::rows_map(const void* base, uint32_t inputs, uint32_t rows) const {
  const uint64_t sizes[2] = {inputs, rows}, strides[1] = {uint64_t{inputs} * 2};
  const uint32_t box[2] = {kRingInputs, kRingRows};
  return encode(*driver_, kBf16Elements, 2, base, sizes, strides, box);
}

// The whole pool: K and V of every layer and head are planes of a block.
Result<TensorMap> FastKernels::kv_map(const PagedKv& kv, uint32_t pool_blocks) const {
  const uint64_t plane = uint64_t{kv.block_tokens} * kv.head_dim * 2;
  const uint64_t sizes[4] = {kv.head_dim, kv.block_tokens, kv.block_bytes / plane, pool_blocks};
  const uint64_t strides[3] = {uint64_t{kv.head_dim} * 2, plane, kv.block_bytes};
  const uint32_t box[4] = {64, attend90_box_tokens(kv.block_tokens), 1, 1};
  return encode(*driver_, kv.element == KvElement::kBf16 ? kBf16Elements : kF16Elements, 4, kv.base, sizes, strides,
                box);
}

Result<void> FastKernels::multiply(Launcher& launcher, Format format, const GemmArgs& product) {
  FastGemmArgs args{.product = product};
  TIE_TRY(args.x_map, rows_map(product.x, product.w.k, product.rows));
  if (format == Format::kBf16) {
    if (weight_maps_.size() >= kMaxMaps) weight_maps_.clear();
    auto [found, fresh] = weight_maps_.try_emplace({product.w.codes, product.w.k, product.w.n});
    if (fresh) {
      TIE_TRY(found->second, rows_map(product.w.codes, product.w.k, product.w.n));
    }
    args.w_map = found->second;
  }
  const GridSize grid{(product.w.n + kRingOutputs - 1) / kRingOutputs, (product.rows + kRingRows - 1) / kRingRows, 1};
  const bool hopper = units_ == Units::kHopper;
  return launcher.launch_for(hopper ? "tie_gemm_sm90" : "tie_gemm_sm100", format, args, grid,
                             hopper ? kGemm90Threads : kGemm100Threads, kRingSharedBytes);
}

Result<void> FastKernels::attend(Launcher& launcher, const PrefillArgs& attention, uint32_t pool_blocks,
                                 uint32_t longest_span, uint32_t spans) {
  const PagedKv& kv = attention.kv;
  if (kv_maps_.size() >= kMaxMaps) kv_maps_.clear();
  auto [found, fresh] = kv_maps_.try_emplace({kv.base, pool_blocks, kv.element});
  if (fresh) {
    TIE_TRY(found->second, kv_map(kv, pool_blocks));
  }
  const auto plane = static_cast<uint32_t>(kv.block_tokens * kv.head_dim * 2);
  const FastPrefillArgs args{found->second, attention, static_cast<uint32_t>(kv.layer_offset / plane)};
  const uint32_t shared = kv.head_dim == 64 ? Attend90<64>::kSharedBytes : Attend90<128>::kSharedBytes;
  return launcher.launch("tie_attention_sm90_" + std::to_string(kv.head_dim), args,
                         {(longest_span + kAttend90Rows - 1) / kAttend90Rows, attention.n_heads, spans},
                         kAttend90Threads, shared);
}

}  // namespace tie::bones::cuda
