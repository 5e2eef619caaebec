#include "inference/bones/cuda/device_weights.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "inference/bones/cuda/launcher.h"
#include "inference/bones/kernels/cuda/attention.h"
#include "inference/bones/kernels/cuda/pack_weights.h"
#include "inference/bones/model/architecture.h"
#include "inference/bones/model/image_check.h"
#include "inference/bones/model/repack.h"
#include "inference/bones/model/shard_sources.h"

namespace tie::bones::cuda {
namespace {

constexpr char kMagic[8] = {'T', 'I', 'E', 'C', 'U', 'D', 'A', '1'};
constexpr uint64_t kLentUnit = 2 << 20;  // of IPC: a smaller allocation would share a block with others
constexpr uint32_t kMaxTensors = 4 + kMaxLayers * 24;
constexpr uint32_t kMaxRows = std::max(kMaxVocab, kMaxExperts* kMaxWidth);  // of a matrix, or of a stack of experts

struct Header {
  char magic[8];
  uint64_t bytes;
  uint32_t n_tensors, image_version;
  ModelConfig config;
  RankPlace place;
};

uint64_t tensor_bytes(const DeviceTensor& t) {
  return t.k == 1 ? (uint64_t{t.n} * 4 + 255) / 256 * 256 : planes_of(t.format, t.n, t.k).bytes;
}

Result<void> check_runnable(const ModelConfig& c) {
  constexpr uint32_t kHeadDims[] = {16, 32, 64, 96, 128, 256};
  if (std::find(std::begin(kHeadDims), std::end(kHeadDims), c.head_dim) == std::end(kHeadDims))
    return fail(Code::kUnsupportedFeature,
                "the GPU back end has no attention for heads of " + std::to_string(c.head_dim));
  if (c.n_heads / c.n_kv_heads > kMaxGroup)
    return fail(Code::kUnsupportedFeature, "the GPU back end serves at most 16 query heads for each key-value head");
  return {};
}

// Shapes, and that each tensor is there once, by the checks of the CPU's image: its entries with stand-in offsets.
Result<void> check_shapes(const DeviceTable& table, const Shard& shard) {
  std::vector<TensorEntry> entries;
  uint64_t at = 0;
  for (const DeviceTensor& t : table.tensors) {
    const Packing packing = t.k == 1 ? Packing::kVector : Packing::kTileF32;
    const uint64_t bytes = packed_bytes(packing, t.n, t.k);
    entries.push_back({t.role, t.layer, packing, t.n, t.k, 0, at, bytes});
    at += bytes;
  }
  return check_entries(table.config, shard, entries, 0, at);
}

}  // namespace

Bytes DeviceTable::serialize() const {
  Header header{};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  header.bytes = bytes;
  header.n_tensors = static_cast<uint32_t>(tensors.size());
  header.image_version = kImageVersion;
  header.config = config;
  header.place = place;
  Bytes out(sizeof header + tensors.size() * sizeof(DeviceTensor));
  std::memcpy(out.data(), &header, sizeof header);
  if (!tensors.empty()) std::memcpy(out.data() + sizeof header, tensors.data(), tensors.size() * sizeof(DeviceTensor));
  return out;
}

Result<DeviceTable> DeviceTable::parse(ByteView bytes) {
  Header header;
  if (bytes.size() < sizeof header) return fail(Code::kCorrupt, "the table of GPU weights is too short");
  std::memcpy(&header, bytes.data(), sizeof header);
  if (std::memcmp(header.magic, kMagic, sizeof kMagic) != 0 || header.image_version != kImageVersion)
    return fail(Code::kCorrupt, "the bytes are not a table of GPU weights of this version");
  if (header.n_tensors > kMaxTensors || bytes.size() != sizeof header + header.n_tensors * sizeof(DeviceTensor))
    return fail(Code::kCorrupt, "the table of GPU weights has the wrong length");
  DeviceTable out{header.config, header.place, {}, header.bytes};
  out.tensors.resize(header.n_tensors);
  if (!out.tensors.empty())
    std::memcpy(out.tensors.data(), bytes.data() + sizeof header, header.n_tensors * sizeof(DeviceTensor));
  TIE_CHECK_OK(check_config(out.config));
  auto shard = shard_of(out.config, out.place);
  if (!shard) return fail(Code::kCorrupt, "table of GPU weights: " + shard.error().message);
  for (const DeviceTensor& t : out.tensors)
    if (t.format > Format::kQ6 || (t.k == 1 && t.format != Format::kF32) || t.n > kMaxRows || t.k > kMaxWidth ||
        t.offset % 256 != 0 || t.bytes != tensor_bytes(t) || t.offset > out.bytes || t.bytes > out.bytes - t.offset)
      return fail(Code::kCorrupt, std::string("table of GPU weights: tensor ") + role_name(t.role) + " lies outside");
  TIE_CHECK_OK(check_shapes(out, *shard));
  TIE_CHECK_OK(check_runnable(out.config));
  return out;
}

const DeviceTensor* DeviceTable::find(Role role, uint32_t layer) const {
  for (const DeviceTensor& t : tensors)
    if (t.role == role && t.layer == layer) return &t;
  return nullptr;
}

Result<LoadedWeights> load_weights(std::shared_ptr<Driver> driver, ByteView gguf, RankPlace place,
                                   const std::function<void(ByteView)>& written) {
  TIE_TRY(const model_files::Gguf file, model_files::Gguf::parse(gguf));
  LoadedWeights out;
  DeviceTable& table = out.table;
  TIE_TRY(table.config, config_from_gguf(file));
  TIE_TRY(std::vector<TensorSource> sources, tensors_from_gguf(file, table.config));
  TIE_CHECK_OK(check_runnable(table.config));
  table.place = place;
  TIE_TRY(const Shard shard, shard_of(table.config, place));
  TIE_TRY(sources, shard_sources(std::move(sources), table.config, shard));
  uint64_t largest = 0;
  for (const TensorSource& s : sources) {
    DeviceTensor t{s.role, s.layer, s.k == 1 ? Format::kF32 : format_for(s.tensor->type), s.n, s.k, 0, table.bytes, 0};
    t.bytes = tensor_bytes(t);
    table.bytes += t.bytes;
    largest = std::max(largest, t.bytes);
    table.tensors.push_back(t);
  }
  // Memory that is lent is lent in whole blocks of the driver's: nothing else may lie in the last one.
  const uint64_t lent = (table.bytes + kLentUnit - 1) / kLentUnit * kLentUnit;
  TIE_TRY(out.memory, DeviceMemory::allocate(driver, lent));
  TIE_CHECK_OK(fill_now(*driver, out.memory.at() + table.bytes, 0, lent - table.bytes));
  TIE_TRY(const PinnedMemory staging, PinnedMemory::allocate(driver, largest));
  for (size_t i = 0; i < sources.size(); ++i) {
    const DeviceTensor& t = table.tensors[i];
    const ByteView data = file.tensor_data(*sources[i].tensor);
    std::memset(staging.data(), 0, t.bytes);
    if (t.k == 1)
      repack_vector(sources[i], table.config.rope_dim, data, reinterpret_cast<float*>(staging.data()));
    else
      pack_matrix(sources[i], table.config.rope_dim, data, {staging.data(), t.bytes});
    if (written) written({staging.data(), t.bytes});
    TIE_CHECK_OK(driver->check(driver->copy_in(out.memory.at() + t.offset, staging.data(), t.bytes),
                               "copying weights to the GPU"));
  }
  return out;
}

}  // namespace tie::bones::cuda
