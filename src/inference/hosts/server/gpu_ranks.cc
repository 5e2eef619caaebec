#include "inference/hosts/server/gpu_ranks.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <type_traits>

#include "inference/hosts/server/rank_start.h"
#include "os/process.h"
#include "os/serving_mode.h"
#include "os/unix_socket.h"

namespace tie::runtime_host {
namespace {

using namespace bones::cuda;

constexpr int64_t kOfferMs = 60'000;  // from the rank's start until it has been told where its weights are
constexpr int64_t kEndMs = 5'000;     // for ranks that have been told to stop
static_assert(std::is_trivially_copyable_v<RankOffer>);

// What a rank is told, in the order of its arguments: these numbers, then driver, NCCL and kernels.
struct RankArguments {
  uint32_t rank = 0, gpu = 0;
  CudaModelOptions limits;
  GpuFlags flags;

  uint32_t fast_kernels = limits.fast_kernels ? 1 : 0;

  std::array<uint32_t*, 6> numbers() {
    return {&rank, &gpu, &limits.max_batch_rows, &limits.max_logit_rows, &limits.max_sequences, &fast_kernels};
  }
};

Result<RankArguments> parse(int argc, char** argv) {
  RankArguments out;
  const auto numbers = out.numbers();
  if (argc != 2 + static_cast<int>(numbers.size()) + 3)
    return fail(Code::kBadRequest, "a rank is started by its runtime");
  TIE_CHECK_OK(parse_numbers(argv + 2, numbers));
  out.limits.fast_kernels = out.fast_kernels != 0;
  char** words = argv + 2 + numbers.size();
  out.flags = {.driver = words[0], .nccl = words[1], .kernels = words[2]};
  return out;
}

Result<DeviceTable> table_in(const os::Mapping& sealed) {
  const auto image = sealed.bytes();
  return DeviceTable::parse({reinterpret_cast<const uint8_t*>(image.data()), image.size()});
}

GpuRankOptions options_of(uint32_t gpu, const GpuFlags& flags, const CudaModelOptions& limits) {
  return {.driver = flags.driver, .nccl = flags.nccl, .gpu = gpu, .model = limits};
}

std::span<const std::byte> as_kernels(const Bytes& bytes) {
  return {reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()};
}

Result<RankOffer> receive_offer(int lifeline) {
  RankOffer offer;
  TIE_TRY(const os::Frame frame, os::receive_frame(lifeline, sizeof offer, 0, Deadline::in_ms(kOfferMs)));
  if (frame.payload.size() != sizeof offer) return fail(Code::kCorrupt, "a rank's offer has the wrong size");
  std::memcpy(&offer, frame.payload.data(), sizeof offer);
  return offer;
}

Result<void> rank_life(int argc, char** argv) {
  TIE_CHECK_OK(begin_rank_life());
  settle_nccl();
  TIE_TRY(RankArguments arguments, parse(argc, argv));
  os::Fd table_fd(kWeightsFd), segment_fd(kSegmentFd), board_fd(kKvFd), lifeline(kLifelineFd);
  TIE_CHECK_OK(os::require_seals(table_fd.get(), os::kSealAll));
  TIE_CHECK_OK(os::require_seals(board_fd.get(), os::kSealSize));
  TIE_TRY(const os::Mapping sealed, os::Mapping::read_only(table_fd.get()));
  TIE_TRY(os::Mapping board, os::Mapping::read_write(board_fd.get()));
  TIE_TRY(bones::RankSegment segment, bones::RankSegment::open(std::move(segment_fd)));
  TIE_TRY(const RankOffer offer, receive_offer(lifeline.get()));
  std::vector<os::Fd> peers;
  peers.push_back(std::move(lifeline));
  segment.watch(bones::PeerWatch(std::move(peers)));
  TIE_TRY(const DeviceTable table, table_in(sealed));
  if (table.place.index() != arguments.rank) return fail(Code::kBadRequest, "a rank got the weights of another");
  TIE_TRY(const Bytes kernels, read_gpu_kernels(arguments.flags.kernels));
  const CudaModelOptions limits = with_context(arguments.limits, table.config);
  TIE_TRY(auto rank, GpuRank::attach(table, as_kernels(kernels), offer,
                                     options_of(arguments.gpu, arguments.flags, limits), segment, board.writable()));
  // As its runtime: what the driver and NCCL do while they work is theirs to know.
  TIE_CHECK_OK(os::enter_serving_mode(os::ServingMode::kDaemon));
  return follow_on_gpu(*rank, segment, board.writable());
}

}  // namespace

void settle_nccl() {
  for (const auto& [name, value] :
       {std::pair{"NCCL_SOCKET_IFNAME", "lo"}, {"NCCL_IB_DISABLE", "1"}, {"NCCL_RUNTIME_CONNECT", "0"}})
    ::setenv(name, value, 1);
}

Result<void> GpuRankedModel::start_rank(const AttachedModel& model, const GpuFlags& flags,
                                        const CudaModelOptions& limits, const RankOffer& offer, uint32_t rank,
                                        int segment_fd, std::vector<os::Fd>& peers) {
  TIE_TRY(auto lifeline, os::socket_pair());
  RankArguments told{rank, model.later_gpus[rank - 1].gpu, limits, flags};
  std::vector<std::string> arguments{"afm-runtime", kGpuRankArgument};
  for (const uint32_t* number : told.numbers()) arguments.push_back(std::to_string(*number));
  arguments.insert(arguments.end(), {flags.driver, flags.nccl, flags.kernels});
  TIE_TRY(const pid_t pid, start_rank_process(arguments, {model.later_ranks[rank - 1].get(), segment_fd,
                                                          board_fd_.get(), lifeline.second.get()}));
  TIE_TRY(os::Fd peer, os::pidfd_open(pid));
  peers.push_back(std::move(peer));
  TIE_TRY(os::Fd process, os::pidfd_open(pid));
  processes_.push_back(std::move(process));
  TIE_CHECK_OK(os::send_frame(lifeline.first.get(), {reinterpret_cast<const uint8_t*>(&offer), sizeof offer}, {},
                              Deadline::in_ms(kOfferMs)));
  lifelines_.push_back(std::move(lifeline.first));
  return {};
}

Result<std::unique_ptr<GpuRankedModel>> GpuRankedModel::start(AttachedModel& model, const GpuFlags& flags,
                                                              CudaModelOptions limits) {
  if (!model.gpu || model.later_gpus.size() + 1 != model.grid.count())
    return fail(Code::kFailedPrecondition, "the model's ranks do not all lie on GPUs");
  TIE_TRY(const DeviceTable table, table_in(model.weights));
  limits = with_context(limits, table.config);
  TIE_TRY(const Bytes kernels, read_gpu_kernels(flags.kernels));
  settle_nccl();
  TIE_TRY(const auto nccl, Nccl::load(flags.nccl));
  TIE_TRY(auto offers, offers_for(*nccl, model.grid));
  for (uint32_t rank = 0; rank < offers.size(); ++rank) {
    const GpuShare& share = rank == 0 ? *model.gpu : model.later_gpus[rank - 1];
    std::copy(share.handle.begin(), share.handle.end(), offers[rank].weights.bytes);
    offers[rank].weight_bytes = share.bytes;
  }
  std::unique_ptr<GpuRankedModel> out(new GpuRankedModel);
  TIE_TRY(bones::RankSegment segment, bones::RankSegment::create(team_limits(table, limits)));
  TIE_TRY(out->board_fd_, os::create_memfd("tie-rank-kv", board_bytes(table.config)));
  TIE_CHECK_OK(os::add_seals(out->board_fd_.get(), os::kSealSize));
  TIE_TRY(out->board_, os::Mapping::read_write(out->board_fd_.get()));
  std::vector<os::Fd> peers;
  for (uint32_t rank = 1; rank < offers.size(); ++rank)
    TIE_CHECK_OK(out->start_rank(model, flags, limits, offers[rank], rank, segment.fd(), peers));
  segment.watch(bones::PeerWatch(std::move(peers)));
  TIE_TRY(out->leader_,
          GpuTeamLeader::attach(table, as_kernels(kernels), offers[0], options_of(model.gpu->gpu, flags, limits),
                                std::move(segment), out->board_.writable()));
  out->loan_ = std::move(model.gpu->loan);
  return out;
}

// Our end is theirs (begin_rank_life), so it must not come before they are done.
GpuRankedModel::~GpuRankedModel() {
  const bool told = leader_ && !leader_->lost();
  leader_.reset();
  const Deadline deadline = Deadline::in_ms(told ? kEndMs : 0);
  for (const os::Fd& process : processes_) (void)os::wait_readable(process.get(), deadline);
}

Result<bones::Logits> GpuRankedModel::forward(const bones::Batch& batch, const bones::KvPool& kv) {
  if (kv.n_blocks != leader_->n_blocks())
    return fail(Code::kFailedPrecondition, "the batch is for another KV pool than the GPUs'");
  return leader_->forward(batch);
}

bool GpuRankedModel::lost() {
  return leader_->lost() || (loan_ && os::wait_readable(loan_.get(), Deadline::in_ms(0)));
}

int gpu_rank_main(int argc, char** argv) {
  auto outcome = rank_life(argc, argv);
  if (outcome) return 0;
  std::fprintf(stderr, "afm-runtime, a rank on a GPU: %s\n", outcome.error().message.c_str());
  return 1;
}

}  // namespace tie::runtime_host
