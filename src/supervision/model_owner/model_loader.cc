#include "supervision/model_owner/model_loader.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include "base/clock.h"
#include "inference/bones/thread_pool.h"
#include "inference/bones/weights_image.h"
#include "os/log.h"
#include "os/memfd.h"
#include "supervision/model_owner/gpu_weights.h"
#include "supervision/model_owner/model_record.h"

namespace tie::owner {
namespace {

// A private copy of a file, in memory that only this process can change.
class PrivateCopy {
 public:
  PrivateCopy(PrivateCopy&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  PrivateCopy& operator=(PrivateCopy&&) = delete;
  ~PrivateCopy() {
    if (data_ != nullptr) ::munmap(data_, size_);
  }

  static Result<PrivateCopy> of(const std::string& path) {
    os::Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!fd) return os::fail_path(path, errno);
    TIE_TRY(size_t size, os::file_size(fd.get()));
    if (size == 0) return fail(Code::kCorrupt, path + " is empty");
    void* at = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return fail_errno("memory for " + path, errno);
    (void)::madvise(at, size, MADV_HUGEPAGE);
    PrivateCopy copy(static_cast<uint8_t*>(at), size);
    (void)::posix_fadvise(fd.get(), 0, static_cast<off_t>(size), POSIX_FADV_SEQUENTIAL);
    TIE_CHECK_OK(copy.fill(fd.get(), path));
    return copy;
  }
  ByteView view() const { return {data_, size_}; }

 private:
  PrivateCopy(uint8_t* data, size_t size) : data_(data), size_(size) {}

  Result<void> fill(int fd, const std::string& path) {
    size_t done = 0;
    while (done < size_) {
      ssize_t n = ::pread(fd, data_ + done, std::min(size_ - done, size_t{64} << 20), static_cast<off_t>(done));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return fail_errno("reading " + path, errno);
      if (n == 0) return fail(Code::kCorrupt, path + " became shorter while it was read");
      done += static_cast<size_t>(n);
    }
    return {};
  }

  uint8_t* data_;
  size_t size_;
};

// One rank's image in sealed memory.
Result<os::Fd> pack_rank(ByteView file, bones::RankPlace place, bones::ThreadPool* pool, LoadedModel& out) {
  TIE_TRY(bones::PackPlan plan, bones::PackPlan::from_gguf(file, place));
  out.weights_bytes += plan.image_bytes();
  out.context_tokens = plan.config().context_length;
  TIE_TRY(os::Fd memory, os::create_memfd("tie-weights", plan.image_bytes()));
  {
    // The writable mapping must be gone before F_SEAL_WRITE is accepted.
    TIE_TRY(os::Mapping mapping, os::Mapping::read_write(memory.get()));
    TIE_CHECK_OK(plan.write(mapping.writable(), pool));
    (void)mapping.use_huge_pages();  // fewer misses of the address cache in every runtime that attaches
  }
  TIE_CHECK_OK(os::add_seals(memory.get(), os::kSealAll));
  return memory;
}

Result<os::Fd> sealed(const char* name, ByteView bytes) {
  TIE_TRY(os::Fd memory, os::create_memfd(name, bytes.size()));
  TIE_CHECK_OK(os::write_all(memory.get(), bytes, Deadline::in_ms(60'000)));
  TIE_CHECK_OK(os::add_seals(memory.get(), os::kSealAll));
  return memory;
}

Result<void> load_on_gpu(ByteView file, GpuHost& gpu, std::span<const uint32_t> gpus, LoadedModel& out) {
  TIE_TRY(out.gpu, gpu.load(file, out.grid.at(0), gpus));
  out.weights_bytes = out.gpu->bytes();
  out.context_tokens = out.gpu->context_tokens();
  TIE_TRY(out.weights, sealed("tie-gpu-table", out.gpu->table()));
  for (uint32_t rank = 1; rank < out.grid.count(); ++rank) {
    TIE_TRY(auto shard, gpu.load(file, out.grid.at(rank), gpus));
    TIE_TRY(os::Fd table, sealed("tie-gpu-table", shard->table()));
    out.weights_bytes += shard->bytes();
    out.later_gpus.push_back(std::move(shard));
    out.later_ranks.push_back(std::move(table));
  }
  return {};
}

// Whether the model goes to the GPU. Asked to choose, a GPU that is absent or ill is no error.
Result<bool> goes_to_gpu(const std::string& name, const ModelRecord& record, GpuHost* gpu) {
  const DeviceWish wish = record.device;
  if (wish == DeviceWish::kCpu || (wish == DeviceWish::kAuto && gpu == nullptr)) return false;
  if (gpu == nullptr) return fail(Code::kUnsupportedFeature, "this owner puts no model on a GPU");
  if (wish == DeviceWish::kCuda) return true;
  auto healthy = gpu->healthy(record.gpus);
  if (healthy) return true;
  TIE_LOG("tie-model-owner", "{} goes to the CPU: the GPU answers {}", os::LogWord(name), healthy.error().code);
  std::fprintf(stderr, "tie-model-owner: %s goes to the CPU: %s\n", name.c_str(), healthy.error().message.c_str());
  return false;
}

Error with_next_step(Error error) {
  return std::move(error).context(
      "model.toml says device = \"cuda\" (the driver must be there: nvidia-smi shows the GPU; or set device = "
      "\"cpu\")");
}

Result<void> pack_weights(const std::string& path, bones::ThreadPool* pool, LoadedModel& out, GpuHost* gpu,
                          std::span<const uint32_t> gpus) {
  TIE_TRY(PrivateCopy file, PrivateCopy::of(path));
  std::thread hashing([&] { out.digests.weights = crypto::sha256(file.view()); });
  auto packed = [&]() -> Result<void> {
    if (gpu != nullptr) {
      auto loaded = load_on_gpu(file.view(), *gpu, gpus, out);
      return loaded ? loaded : std::unexpected(with_next_step(std::move(loaded.error())));
    }
    for (uint32_t rank = 0; rank < out.grid.count(); ++rank) {
      TIE_TRY(os::Fd image, pack_rank(file.view(), out.grid.at(rank), pool, out));
      if (rank == 0)
        out.weights = std::move(image);
      else
        out.later_ranks.push_back(std::move(image));
    }
    return {};
  }();
  hashing.join();
  return packed;
}

// The digest is taken of the sealed memory, not of the file: what is named is what is handed out.
Result<void> load_tokenizer(const std::string& path, LoadedModel& out) {
  TIE_TRY(Bytes image, os::read_file(path, kMaxTokenizerBytes));
  if (image.empty()) return fail(Code::kCorrupt, path + " is empty");
  out.tokenizer_bytes = image.size();
  TIE_TRY(out.tokenizer, sealed("tie-tokenizer", image));
  out.digests.tokenizer = crypto::sha256(ByteView(image));
  return {};
}

Result<void> hash_template(const std::string& path, LoadedModel& out) {
  auto text = os::read_file(path, kMaxTemplateBytes);
  if (!text && text.error().code != Code::kNotFound) return std::unexpected(std::move(text.error()));
  out.digests.chat_template = crypto::sha256(text ? ByteView(*text) : ByteView{});
  return {};
}

}  // namespace

Result<LoadedModel> load_model(const std::string& name, const std::string& folder, bones::ThreadPool* pool,
                               GpuHost* gpu) {
  if (!valid_model_name(name))
    return fail(Code::kBadRequest, "a model's folder has a name of 1 to 64 letters, digits, '.', '_' and '-'");
  int64_t start = monotonic_ms();
  LoadedModel out;
  out.name = name;
  TIE_TRY(const ModelRecord record, read_model_record(folder));
  out.grid = record.grid;
  out.kv_cache = record.kv_cache;
  out.gpu_fast_kernels = record.gpu_fast_kernels;
  TIE_TRY(const bool on_gpu, goes_to_gpu(name, record, gpu));
  TIE_CHECK_OK(load_tokenizer(folder + "/" + kTokenizerFile, out));
  TIE_CHECK_OK(hash_template(folder + "/" + kTemplateFile, out));
  TIE_CHECK_OK(pack_weights(folder + "/" + kWeightsFile, pool, out, on_gpu ? gpu : nullptr, record.gpus));
  out.model_id = model_id(out.digests);
  out.load_ms = monotonic_ms() - start;
  return out;
}

}  // namespace tie::owner
