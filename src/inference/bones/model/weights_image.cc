#include "inference/bones/weights_image.h"

#include <sys/mman.h>

#include <cstring>
#include <new>
#include <string>

#include "inference/bones/kernels/reference/tile_access.h"
#include "inference/bones/kernels/tile.h"
#include "inference/bones/model/architecture.h"
#include "inference/bones/model/image_check.h"
#include "inference/bones/model/repack.h"
#include "inference/bones/model/shard_sources.h"
#include "inference/bones/thread_pool.h"

namespace tie::bones {
namespace {

constexpr char kMagic[8] = {'T', 'I', 'E', 'B', 'O', 'N', 'E', 'S'};
constexpr uint32_t kMaxImageTensors = 4 + kMaxLayers * 24;
constexpr uint64_t kMaxImageBytes = uint64_t{1} << 40;

uint64_t aligned(uint64_t bytes) {
  return (bytes + kImageAlignment - 1) / kImageAlignment * kImageAlignment;
}

bool is_vector(Role role) {
  switch (role) {
    case Role::kEmbedding:
    case Role::kOutput:
    case Role::kQ:
    case Role::kK:
    case Role::kV:
    case Role::kAttentionOutput:
    case Role::kGate:
    case Role::kUp:
    case Role::kDown:
    case Role::kRouter:
    case Role::kExpertGates:
    case Role::kExpertUps:
    case Role::kExpertDowns:
      return false;
    default:
      return true;
  }
}

}  // namespace

struct PackPlan::State {
  model_files::Gguf file;
  ModelConfig config;
  RankPlace place;
  std::vector<TensorSource> sources;
  std::vector<TensorEntry> entries;
  uint64_t bytes = 0;
};

PackPlan::PackPlan(std::unique_ptr<State> state) : state_(std::move(state)) {}
PackPlan::PackPlan(PackPlan&&) noexcept = default;
PackPlan& PackPlan::operator=(PackPlan&&) noexcept = default;
PackPlan::~PackPlan() = default;
size_t PackPlan::image_bytes() const {
  return state_->bytes;
}
const ModelConfig& PackPlan::config() const {
  return state_->config;
}

Result<PackPlan> PackPlan::from_gguf(ByteView gguf, RankPlace place) {
  auto state = std::make_unique<State>();
  TIE_TRY(state->file, model_files::Gguf::parse(gguf));
  TIE_TRY(state->config, config_from_gguf(state->file));
  TIE_TRY(state->sources, tensors_from_gguf(state->file, state->config));
  state->place = place;
  if (!place.alone()) {
    TIE_TRY(const Shard shard, shard_of(state->config, place));
    TIE_TRY(state->sources, shard_sources(std::move(state->sources), state->config, shard));
  }
  uint64_t at = aligned(sizeof(ImageHeader) + state->sources.size() * sizeof(TensorEntry));
  for (const TensorSource& source : state->sources) {
    const bool vector = is_vector(source.role);
    const Packing packing = vector ? Packing::kVector : packing_for(source.tensor->type);
    if (vector && is_quantised(packing_for(source.tensor->type)))
      return fail(Code::kUnsupportedFeature,
                  "tensor " + std::string(source.tensor->name) + " is a vector but quantised");
    const auto* info = model_files::tensor_type_info(source.tensor->type);
    if (!info || source.tensor->dims[0] % info->block_elements != 0)
      return fail(Code::kCorrupt,
                  "tensor " + std::string(source.tensor->name) + " has rows that are no whole number of blocks");
    TensorEntry entry{
        source.role, source.layer, packing, source.n, source.k, 0, at, packed_bytes(packing, source.n, source.k)};
    at += entry.bytes;
    if (at > kMaxImageBytes) return fail(Code::kTooLarge, "the model's weights exceed 1 TiB");
    state->entries.push_back(entry);
  }
  state->bytes = at;
  return PackPlan(std::move(state));
}

Result<void> PackPlan::write(std::span<std::byte> out, ThreadPool* pool) const {
  const State& s = *state_;
  if (out.size() != s.bytes) return fail(Code::kBadRequest, "the memory for the packed weights has the wrong size");
  if (reinterpret_cast<uintptr_t>(out.data()) % kImageAlignment != 0)
    return fail(Code::kBadRequest, "the memory for the packed weights is not 64-byte aligned");
  ImageHeader header{};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  header.version = header.packing_version = kImageVersion;
  header.image_bytes = s.bytes;
  header.n_tensors = static_cast<uint32_t>(s.entries.size());
  header.header_bytes = sizeof(ImageHeader);
  header.config = s.config;
  header.place = s.place;
  std::memcpy(out.data(), &header, sizeof header);
  std::memcpy(out.data() + sizeof header, s.entries.data(), s.entries.size() * sizeof(TensorEntry));
  const uint32_t n_threads = pool ? pool->size() : 1;
  auto body = [&](uint32_t thread) {
    for (size_t i = 0; i < s.entries.size(); ++i) {
      const TensorSource& source = s.sources[i];
      std::byte* to = out.data() + s.entries[i].offset;
      const ByteView data = s.file.tensor_data(*source.tensor);
      if (s.entries[i].packing == Packing::kVector) {
        if (thread == 0) repack_vector(source, s.config.rope_dim, data, reinterpret_cast<float*>(to));
        continue;
      }
      const uint64_t strips = (source.n + kStrip - 1) / kStrip;
      repack_strips(source, s.config.rope_dim, data, static_cast<uint32_t>(strips * thread / n_threads),
                    static_cast<uint32_t>(strips * (thread + 1) / n_threads), to);
    }
  };
  if (pool)
    pool->run(body);
  else
    body(0);
  return {};
}

void OwnedImage::Free::operator()(std::byte* p) const {
  ::operator delete[](p, std::align_val_t{kImageAlignment});
}

namespace {

// A hint, before the memory is first touched; the owner's images have such pages, too (os::Mapping).
void use_huge_pages(std::span<std::byte> memory) {
  constexpr size_t kPage = 4096;
  const auto at = reinterpret_cast<uintptr_t>(memory.data()), first = (at + kPage - 1) / kPage * kPage,
             last = (at + memory.size()) / kPage * kPage;
  if (last > first) ::madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
}

}  // namespace

Result<OwnedImage> OwnedImage::from_gguf(ByteView gguf, ThreadPool* pool, RankPlace place) {
  TIE_TRY(const PackPlan plan, PackPlan::from_gguf(gguf, place));
  OwnedImage image;
  image.size_ = plan.image_bytes();
  image.data_.reset(
      static_cast<std::byte*>(::operator new[](image.size_, std::align_val_t{kImageAlignment}, std::nothrow)));
  if (!image.data_) return fail(Code::kTooLarge, "no memory for the packed weights");
  use_huge_pages({image.data_.get(), image.size_});
  TIE_CHECK_OK(plan.write({image.data_.get(), image.size_}, pool));
  return image;
}

Result<WeightsImage> WeightsImage::attach(std::span<const std::byte> image) {
  ImageHeader header;
  if (image.size() < sizeof header) return fail(Code::kCorrupt, "the weights image is shorter than its header");
  if (reinterpret_cast<uintptr_t>(image.data()) % kImageAlignment != 0)
    return fail(Code::kBadRequest, "the weights image is not 64-byte aligned");
  std::memcpy(&header, image.data(), sizeof header);
  if (std::memcmp(header.magic, kMagic, sizeof kMagic) != 0)
    return fail(Code::kCorrupt, "the bytes are not a weights image");
  if (header.version != kImageVersion || header.packing_version != kImageVersion ||
      header.header_bytes != sizeof header)
    return fail(Code::kUnsupportedFeature, "the weights image has version " + std::to_string(header.version) +
                                               ", this program reads " + std::to_string(kImageVersion));
  if (header.image_bytes != image.size()) return fail(Code::kCorrupt, "the weights image is truncated or padded");
  if (header.n_tensors == 0) return fail(Code::kCorrupt, "the weights image holds no tensors");
  if (header.n_tensors > kMaxImageTensors || sizeof header + header.n_tensors * sizeof(TensorEntry) > image.size())
    return fail(Code::kCorrupt, "the weights image claims more tensors than it can hold");
  WeightsImage out;
  out.image_ = image;
  out.config_ = header.config;
  TIE_CHECK_OK(check_config(out.config_));
  out.place_ = header.place;
  auto shard = shard_of(out.config_, out.place_);
  if (!shard) return fail(Code::kCorrupt, "weights image: " + shard.error().message);
  out.shard_ = *shard;
  out.entries_.resize(header.n_tensors);
  std::memcpy(out.entries_.data(), image.data() + sizeof header, header.n_tensors * sizeof(TensorEntry));
  TIE_CHECK_OK(check_entries(out.config_, out.shard_, out.entries_,
                             sizeof header + header.n_tensors * sizeof(TensorEntry), image.size()));
  return out;
}

const TensorEntry* WeightsImage::find(Role role, uint32_t layer) const {
  for (const TensorEntry& entry : entries_)
    if (entry.role == role && entry.layer == layer) return &entry;
  return nullptr;
}

}  // namespace tie::bones
