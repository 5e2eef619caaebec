#include "inference/hosts/server/weights_source.h"

#include <poll.h>

#include <algorithm>

#include "os/framed_message.h"
#include "os/unix_socket.h"
#include "owner.pb.h"

namespace tie::runtime_host {
namespace {

constexpr int64_t kRetryMs = 50;
constexpr int64_t kLeastPatienceMs = 10'000;  // without progress of a look
constexpr size_t kMaxReplyBytes = 1 << 20;

// False when stop_fd became readable.
bool wait_or_stop(int fd, int stop_fd, int64_t ms) {
  pollfd polls[2] = {{stop_fd, POLLIN, 0}, {fd, POLLIN, 0}};
  ::poll(polls, fd >= 0 ? 2 : 1, static_cast<int>(ms));
  return (polls[0].revents & POLLIN) == 0;
}

Result<AttachedModel> map_sealed(std::vector<os::Fd> fds) {
  if (fds.size() != 2) return fail(Code::kCorrupt, "the model owner sent not two descriptors");
  for (const auto& fd : fds) TIE_CHECK_OK(os::require_seals(fd.get(), os::kSealAll));
  AttachedModel out;
  TIE_TRY(out.weights, os::Mapping::read_only(fds[0].get()));
  TIE_TRY(out.tokenizer, os::Mapping::read_only(fds[1].get()));
  return out;
}

Result<GpuShare> gpu_share(const v1::ModelHandle& handle) {
  GpuShare share;
  if (handle.gpu_handle().size() != share.handle.size() || handle.gpu_bytes() == 0)
    return fail(Code::kCorrupt, "the model owner's GPU handle is not one");
  std::copy(handle.gpu_handle().begin(), handle.gpu_handle().end(), share.handle.begin());
  share.bytes = handle.gpu_bytes();
  share.gpu = handle.gpu_number();
  return share;
}

Result<AttachedModel> attach_once(const std::string& owner_socket, const std::string& model, Deadline deadline,
                                  int stop_fd) {
  TIE_TRY(os::Fd socket,
          os::connect_unix(owner_socket, Deadline::in_ms(std::min<int64_t>(1000, deadline.remaining_ms()))));
  // A look at the weights in GPU memory takes as long as they are large: as long as it gets on, we wait.
  const int64_t patience_ms = std::max(deadline.remaining_ms(), kLeastPatienceMs);
  auto ask = [&](uint32_t rank) -> Result<os::Received<v1::OwnerReply>> {
    v1::OwnerRequest request;
    request.mutable_attach()->set_model(model);
    request.mutable_attach()->set_rank(rank);
    for (uint64_t looked_at = 0;;) {
      TIE_CHECK_OK(os::send_message(socket.get(), request, Deadline::in_ms(1000)));
      if (!wait_or_stop(socket.get(), stop_fd, deadline.remaining_ms())) return fail(Code::kCancelled, "asked to stop");
      TIE_TRY(auto reply, os::receive_message<v1::OwnerReply>(socket.get(), kMaxReplyBytes, Deadline::in_ms(1000), 2));
      if (!reply.message.has_error() || reply.message.error().code() == v1::OK) return reply;
      if (!reply.message.has_look() || deadline.passed())
        return fail(static_cast<Code>(reply.message.error().code()), reply.message.error().message());
      if (reply.message.look().done_bytes() > looked_at) deadline = Deadline::in_ms(patience_ms);
      looked_at = std::max(looked_at, reply.message.look().done_bytes());
    }
  };
  TIE_TRY(auto reply, ask(0));
  TIE_TRY(AttachedModel attached, map_sealed(std::move(reply.fds)));
  const v1::ModelHandle handle = reply.message.model();
  TIE_TRY(attached.model_id, crypto::digest_from(as_bytes(handle.model_id()), "model id"));
  if (!handle.release_id().empty()) {
    TIE_TRY(attached.release_id, crypto::digest_from(as_bytes(handle.release_id()), "release id"));
  }
  attached.kv_cache = handle.kv_cache();
  attached.gpu_fast_kernels = !handle.gpu_portable_kernels();
  if (!handle.gpu_handle().empty()) {
    TIE_TRY(attached.gpu, gpu_share(handle));
  }
  attached.grid.tensor_ranks = std::max(1u, handle.tensor_ranks());
  attached.grid.stages = std::max(1u, handle.stages());
  if (attached.grid.tensor_ranks > bones::kMaxRanks || attached.grid.stages > bones::kMaxRanks)
    return fail(Code::kCorrupt, "the model owner names too many ranks");
  for (uint32_t rank = 1; rank < attached.grid.count(); ++rank) {
    TIE_TRY(auto more, ask(rank));
    if (more.fds.empty() || more.message.model().model_id() != handle.model_id())
      return fail(Code::kNotReady, "the model changed while its ranks were attached");
    TIE_CHECK_OK(os::require_seals(more.fds[0].get(), os::kSealAll));
    attached.later_ranks.push_back(std::move(more.fds[0]));
    if (!attached.gpu) continue;
    TIE_TRY(GpuShare share, gpu_share(more.message.model()));
    attached.later_gpus.push_back(std::move(share));
  }
  if (attached.gpu) attached.gpu->loan = std::move(socket);
  return attached;
}

}  // namespace

Result<AttachedModel> attach_from_owner(const std::string& owner_socket, const std::string& model, Deadline deadline,
                                        int stop_fd) {
  for (;;) {
    auto attached = attach_once(owner_socket, model, deadline, stop_fd);
    if (attached) return attached;
    Code code = attached.error().code;
    bool worth_waiting = code == Code::kIo || code == Code::kDeadline || code == Code::kNotReady;
    if (!worth_waiting || deadline.passed())
      return std::unexpected(std::move(attached.error()).context("attaching the model"));
    if (!wait_or_stop(-1, stop_fd, kRetryMs)) return fail(Code::kCancelled, "asked to stop");
  }
}

Result<AttachedModel> attach_from_files(const std::string& weights_image, const std::string& tokenizer_image) {
  AttachedModel out;
  TIE_TRY(out.weights, os::Mapping::file_read_only(weights_image));
  TIE_TRY(out.tokenizer, os::Mapping::file_read_only(tokenizer_image));
  return out;
}

}  // namespace tie::runtime_host
