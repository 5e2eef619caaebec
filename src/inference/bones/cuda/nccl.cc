#include "inference/bones/cuda/nccl.h"

#include <dlfcn.h>

#include <chrono>
#include <thread>
#include <utility>

namespace tie::bones::cuda {
namespace {

constexpr int kSuccess = 0, kInProgress = 7;
constexpr int kFloat32 = 7, kSum = 0;
constexpr int kNotReady = 600;  // CUDA_ERROR_NOT_READY
constexpr int kLeastVersion = 21400, kPastVersion = 30000;
constexpr uint32_t kSpins = 2000;  // looks at the stream before the thread sleeps between them
constexpr auto kNap = std::chrono::microseconds(100);
constexpr uint32_t kNapsBetweenLooks = 100;  // at peers and at NCCL: each 10 ms

}  // namespace

Result<std::shared_ptr<Nccl>> Nccl::load(const std::string& library) {
  void* handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle) return fail(Code::kNotFound, "no NCCL on this machine: " + library + " (several GPUs need it)");
  auto out = std::make_shared<Nccl>();
#define TIE_NCCL_LOAD(member, symbol, parameters)                                  \
  out->member = reinterpret_cast<decltype(out->member)>(::dlsym(handle, #symbol)); \
  if (!out->member) return fail(Code::kUnsupportedFeature, "NCCL is too old: no " #symbol);
  TIE_NCCL(TIE_NCCL_LOAD)
#undef TIE_NCCL_LOAD
  out->error_text_ = reinterpret_cast<const char* (*)(int)>(::dlsym(handle, "ncclGetErrorString"));
  if (const int result = out->get_version(&out->version_); result != kSuccess)
    return fail(Code::kIo, "asking NCCL for its version: " + out->text(result));
  if (out->version_ < kLeastVersion || out->version_ >= kPastVersion)
    return fail(Code::kUnsupportedFeature, "NCCL says version " + std::to_string(out->version_) +
                                               "; 2.14 (21400) or later of major version 2 is needed");
  return out;
}

Result<NcclUniqueId> Nccl::unique_id() const {
  NcclUniqueId id;
  if (const int result = get_unique_id(&id); result != kSuccess)
    return fail(Code::kIo, "drawing an id for the ranks: " + text(result));
  return id;
}

std::string Nccl::text(int result) const {
  const char* words = error_text_ ? error_text_(result) : nullptr;
  return std::string(words ? words : "error") + " (" + std::to_string(result) + ")";
}

NcclRanks::NcclRanks(std::shared_ptr<Nccl> nccl, std::shared_ptr<Driver> driver, NcclRankOptions options)
    : nccl_(std::move(nccl)), driver_(std::move(driver)), options_(std::move(options)) {}

NcclRanks::~NcclRanks() {
  if (!comm_) return;
  // Without its peers a communicator is not wound up, only ended.
  if (options_.peer_lost && options_.peer_lost())
    nccl_->abort(comm_);
  else
    nccl_->destroy(comm_);
}

Result<std::unique_ptr<NcclRanks>> NcclRanks::join(std::shared_ptr<Nccl> nccl, std::shared_ptr<Driver> driver,
                                                   const NcclUniqueId& id, NcclRankOptions options) {
  if (options.ranks == 0 || options.ranks > 64 || options.rank >= options.ranks)
    return fail(Code::kBadRequest, "a rank lies outside of 0 to 63");
  std::unique_ptr<NcclRanks> out(new NcclRanks(std::move(nccl), std::move(driver), std::move(options)));
  const Deadline deadline = Deadline::in_ms(out->options_.join_ms);
  NcclConfig config;
  const int result = out->nccl_->init(&out->comm_, static_cast<int>(out->options_.ranks), id,
                                      static_cast<int>(out->options_.rank), &config);
  TIE_CHECK_OK(out->settle(result, "joining the ranks of the model", deadline));
  return out;
}

// The communicator is gone from here on, and with it whatever of it still runs on the GPU.
std::unexpected<Error> NcclRanks::give_up(Code code, const std::string& why) {
  lost_ = true;
  if (comm_) nccl_->abort(std::exchange(comm_, nullptr));
  return fail(code, why);
}

Result<void> NcclRanks::no_error(const char* doing) {
  int error = kSuccess;
  if (comm_) {
    const int asked = nccl_->async_error(comm_, &error);
    if (asked != kSuccess) error = asked;
  }
  if (error == kSuccess || error == kInProgress) return {};
  return give_up(Code::kRuntimeLost, std::string(doing) + ": " + nccl_->text(error));
}

Result<void> NcclRanks::look(const Deadline& deadline, const char* doing) {
  if (options_.peer_lost && options_.peer_lost())
    return give_up(Code::kRuntimeLost, std::string(doing) + ": a rank of the model is lost");
  TIE_CHECK_OK(no_error(doing));
  if (deadline.passed()) return give_up(Code::kDeadline, std::string(doing) + ": not every rank took part in time");
  return {};
}

// A call that may still be under way on NCCL's side: no other may follow until it is not.
Result<void> NcclRanks::settle(int result, const char* doing, const Deadline& deadline) {
  if (result != kSuccess && result != kInProgress)
    return give_up(Code::kRuntimeLost, std::string(doing) + ": " + nccl_->text(result));
  while (result == kInProgress) {
    TIE_CHECK_OK(look(deadline, doing));
    int now = kSuccess;
    if (nccl_->async_error(comm_, &now) == kSuccess && now != kInProgress) {
      result = now;
      if (now != kSuccess) return give_up(Code::kRuntimeLost, std::string(doing) + ": " + nccl_->text(now));
    } else {
      std::this_thread::sleep_for(kNap);
    }
  }
  return {};
}

Result<void> NcclRanks::started(int result, const char* doing) {
  return settle(result, doing, Deadline::in_ms(options_.step_ms));
}

Result<void> NcclRanks::all_reduce(float* at, size_t count, void* stream) {
  if (lost_) return fail(Code::kRuntimeLost, "a rank of the model is lost");
  return started(nccl_->all_reduce(at, at, count, kFloat32, kSum, comm_, stream), "adding up over the ranks");
}

Result<void> NcclRanks::send(const float* from, size_t count, uint32_t to_rank, void* stream) {
  if (lost_) return fail(Code::kRuntimeLost, "a rank of the model is lost");
  return started(nccl_->send(from, count, kFloat32, static_cast<int>(to_rank), comm_, stream), "handing rows on");
}

Result<void> NcclRanks::receive(float* to, size_t count, uint32_t from_rank, void* stream) {
  if (lost_) return fail(Code::kRuntimeLost, "a rank of the model is lost");
  return started(nccl_->recv(to, count, kFloat32, static_cast<int>(from_rank), comm_, stream), "taking rows over");
}

// A peer that dies leaves NCCL's kernels spinning on the GPU: only an abort ends them, so nothing here waits inside
// the driver.
Result<void> NcclRanks::wait(void* stream) {
  if (lost_) return fail(Code::kRuntimeLost, "a rank of the model is lost");
  const Deadline deadline = Deadline::in_ms(options_.step_ms);
  for (uint32_t looks = 0;; ++looks) {
    const int status = driver_->stream_query(stream);
    if (status == 0) return no_error("the ranks' step");
    if (status != kNotReady) {
      auto failed = driver_->check(status, "waiting for the GPU");
      return give_up(failed.error().code, failed.error().message);
    }
    if (looks < kSpins) continue;
    if ((looks - kSpins) % kNapsBetweenLooks == 0) TIE_CHECK_OK(look(deadline, "waiting for the ranks"));
    std::this_thread::sleep_for(kNap);
  }
}

}  // namespace tie::bones::cuda
