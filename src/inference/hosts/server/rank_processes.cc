#include "inference/hosts/server/rank_processes.h"

#include <array>
#include <cstdio>
#include <thread>

#include "inference/hosts/server/rank_start.h"
#include "os/process.h"
#include "os/serving_mode.h"
#include "os/unix_socket.h"

namespace tie::runtime_host {
namespace {

// What a rank is told, in the order of its arguments.
struct RankArguments {
  uint32_t rank = 0, threads = 1, max_rows = 0, max_logit_rows = 0, max_sequences = 0;
  std::string kernels;  // empty: the best this CPU has

  static constexpr int kCount = 6;
  std::array<uint32_t*, 5> numbers() { return {&rank, &threads, &max_rows, &max_logit_rows, &max_sequences}; }
};

Result<RankArguments> parse(int argc, char** argv) {
  RankArguments out;
  if (argc != 2 + RankArguments::kCount) return fail(Code::kBadRequest, "a rank is started by its runtime");
  TIE_CHECK_OK(parse_numbers(argv + 2, out.numbers()));
  out.kernels = argv[2 + out.numbers().size()];
  return out;
}

Result<void> rank_life(int argc, char** argv) {
  TIE_CHECK_OK(begin_rank_life());
  TIE_TRY(RankArguments arguments, parse(argc, argv));
  os::Fd weights(kWeightsFd), segment_fd(kSegmentFd), kv_fd(kKvFd);
  std::vector<os::Fd> peers;
  peers.emplace_back(int{kLifelineFd});
  TIE_CHECK_OK(os::require_seals(weights.get(), os::kSealAll));
  TIE_CHECK_OK(os::require_seals(kv_fd.get(), os::kSealSize));
  TIE_TRY(os::Mapping image, os::Mapping::read_only(weights.get()));
  TIE_TRY(os::Mapping kv, os::Mapping::read_write(kv_fd.get()));
  TIE_TRY(bones::RankSegment segment, bones::RankSegment::open(std::move(segment_fd)));
  segment.watch(bones::PeerWatch(std::move(peers)));
  bones::ThreadPool pool(pool_of_rank(arguments.rank, arguments.threads, segment.limits().grid.count()));
  pool.keep_caller_on_its_cpu();
  bones::ModelOptions options{.pool = &pool,
                              .kernels = arguments.kernels,
                              .max_batch_rows = arguments.max_rows,
                              .max_logit_rows = arguments.max_logit_rows,
                              .max_sequences = arguments.max_sequences};
  TIE_CHECK_OK(os::enter_serving_mode(os::ServingMode::kPerRequest));  // it never needs a socket of its own
  return bones::follow({image.bytes(), std::make_unique<bones::RankSegment>(std::move(segment)), kv.writable()},
                       arguments.rank, options);
}

}  // namespace

bones::ThreadPoolOptions pool_of_rank(uint32_t rank, uint32_t threads, uint32_t ranks) {
  const uint64_t all = uint64_t{threads} * ranks;
  return {.n_threads = threads, .own_cpus = all == std::thread::hardware_concurrency(), .first_cpu = rank * threads};
}

Result<void> RankedModel::start_rank(const AttachedModel& model, const bones::ModelOptions& options, uint32_t rank,
                                     int segment_fd, std::vector<os::Fd>& peers) {
  TIE_TRY(auto lifeline, os::socket_pair());
  std::vector<std::string> arguments{"afm-runtime", kRankArgument};
  for (uint32_t number :
       {rank, options.pool->size(), options.max_batch_rows, options.max_logit_rows, options.max_sequences})
    arguments.push_back(std::to_string(number));
  arguments.emplace_back(options.kernels);
  TIE_TRY(const pid_t pid, start_rank_process(arguments, {model.later_ranks[rank - 1].get(), segment_fd, kv_fd_.get(),
                                                          lifeline.second.get()}));
  TIE_TRY(os::Fd peer, os::pidfd_open(pid));
  peers.push_back(std::move(peer));
  lifelines_.push_back(std::move(lifeline.first));
  return {};
}

Result<std::unique_ptr<RankedModel>> RankedModel::start(const AttachedModel& model, const bones::ModelOptions& options,
                                                        size_t kv_bytes) {
  std::unique_ptr<RankedModel> out(new RankedModel);
  TIE_TRY(const bones::WeightsImage first, bones::WeightsImage::attach(model.weights.bytes()));
  TIE_TRY(bones::RankSegment segment,
          bones::RankSegment::create(bones::rank_limits(first.config(), model.grid, options)));
  TIE_TRY(out->kv_fd_, os::create_memfd("tie-rank-kv", kv_bytes));
  TIE_CHECK_OK(os::add_seals(out->kv_fd_.get(), os::kSealSize));
  TIE_TRY(out->kv_memory_, os::Mapping::read_write(out->kv_fd_.get()));
  std::vector<os::Fd> peers;
  for (uint32_t rank = 1; rank < model.grid.count(); ++rank)
    TIE_CHECK_OK(out->start_rank(model, options, rank, segment.fd(), peers));
  segment.watch(bones::PeerWatch(std::move(peers)));
  TIE_TRY(bones::RankLeader leader,
          bones::RankLeader::attach({model.weights.bytes(), std::make_unique<bones::RankSegment>(std::move(segment)),
                                     out->kv_memory_.writable()},
                                    options));
  out->leader_ = std::make_unique<bones::RankLeader>(std::move(leader));
  return out;
}

int rank_main(int argc, char** argv) {
  auto outcome = rank_life(argc, argv);
  if (outcome) return 0;
  std::fprintf(stderr, "afm-runtime, a rank: %s\n", outcome.error().message.c_str());
  return 1;
}

}  // namespace tie::runtime_host
