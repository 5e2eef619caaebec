// One model on rank processes against the same number of threads in one process: decode and prefill in short turns that
// alternate between them, because the machine changes by the second. Prints one JSON line for each: medians, the median
// of the ratios to the threads within a round, and the ratio of the best rounds, which foreign load disturbs least.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>
#include <memory>
#include <numeric>

#include "base/clock.h"
#include "inference/bones/communicator/testing/forked_ranks.h"

namespace {

using namespace tie;
using namespace tie::bones;

struct Options {
  std::string gguf, kernels;
  uint32_t ranks = 2, repeat = 15, decode_steps = 32, prefill = 256;
  bool own_cpus = true;
};

using Forward = std::function<Result<Logits>(const Batch&, const KvPool&)>;

struct Speed {
  double decode = 0, prefill = 0;  // tokens a second
};

// One way to run the model, and what it has shown.
struct Contender {
  std::string name;
  Forward forward;
  KvPool kv;
  std::vector<Speed> speeds;
};

Result<Speed> measure(const Options& o, const Contender& c) {
  std::vector<int32_t> tokens(o.prefill);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(100 + i % 1000);
  std::vector<uint32_t> table(c.kv.n_blocks);
  std::iota(table.begin(), table.end(), 0);
  auto step = [&](uint32_t first, uint32_t n) -> Result<void> {
    const SequenceSpan span{0, n, first, table};
    const uint32_t last = n - 1;
    const BestOf greedy{.k = 1};  // as the engine's sampler asks
    TIE_TRY([[maybe_unused]] Logits logits,
            c.forward({std::span(tokens).first(n), {&span, 1}, {&last, 1}, {}, {&greedy, 1}}, c.kv));
    return {};
  };
  Speed out;
  const int64_t began = monotonic_us();
  TIE_CHECK_OK(step(0, o.prefill));
  const int64_t prefilled = monotonic_us();
  for (uint32_t i = 0; i < o.decode_steps; ++i) TIE_CHECK_OK(step(o.prefill + i, 1));
  const int64_t decoded = monotonic_us();
  out.prefill = o.prefill * 1e6 / static_cast<double>(prefilled - began);
  out.decode = o.decode_steps * 1e6 / static_cast<double>(decoded - prefilled);
  return out;
}

// The same model in this process.
struct Threads {
  OwnedImage image;
  std::unique_ptr<ThreadPool> pool;
  std::unique_ptr<Model> model;
  os::Fd memory;
  os::Mapping kv;

  static Result<Threads> start(const Options& o, ByteView gguf) {
    Threads out;
    TIE_TRY(out.image, OwnedImage::from_gguf(gguf));
    out.pool = std::make_unique<ThreadPool>(ThreadPoolOptions{.n_threads = o.ranks, .own_cpus = o.own_cpus});
    TIE_TRY(Model model, Model::attach(out.image.bytes(),
                                       {.pool = out.pool.get(), .kernels = o.kernels, .max_batch_rows = o.prefill}));
    out.model = std::make_unique<Model>(std::move(model));
    return out;
  }
  Result<KvPool> kv_pool(uint32_t tokens) {
    TIE_TRY(const KvLayout layout, KvLayout::for_model(model->config()));
    const uint32_t blocks = layout.blocks_for(tokens);
    TIE_TRY(memory, os::create_memfd("bench-kv", blocks * layout.block_bytes()));
    TIE_TRY(kv, os::Mapping::read_write(memory.get()));
    return KvPool{kv.writable().data(), blocks, layout};
  }
};

Result<testing::ForkedRanks> team(const Options& o, ByteView gguf, RankPlace grid) {
  return testing::ForkedRanks::start(gguf, {.grid = grid,
                                            .kernels = o.kernels,
                                            .max_batch_rows = o.prefill,
                                            .kv_tokens = o.prefill + o.decode_steps,
                                            .own_cpus = o.own_cpus});
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double best(const std::vector<double>& values) {
  return *std::max_element(values.begin(), values.end());
}

void print(const Options& o, const Contender& c, const Contender& threads) {
  auto figures = [&](const char* name, double Speed::* what) {
    std::vector<double> own, base, ratio;
    for (size_t i = 0; i < c.speeds.size(); ++i) {
      own.push_back(c.speeds[i].*what);
      base.push_back(threads.speeds[i].*what);
      ratio.push_back(own.back() / base.back());
    }
    return fmt::format("\"{0}_tok_s\": {1:.1f}, \"{0}_of_threads\": {2:.3f}, \"{0}_of_threads_best\": {3:.3f}", name,
                       median(own), median(ratio), best(own) / best(base));
  };
  fmt::print("{{\"grid\": \"{}\", \"n\": {}, {}, {}}}\n", c.name, o.ranks, figures("decode", &Speed::decode),
             figures("prefill", &Speed::prefill));
}

Result<void> run(const Options& o) {
  TIE_TRY(const os::Mapping file, os::Mapping::file_read_only(o.gguf));
  const ByteView gguf{reinterpret_cast<const uint8_t*>(file.bytes().data()), file.size()};
  // The teams fork: before this process has threads.
  TIE_TRY(testing::ForkedRanks tensor, team(o, gguf, {0, o.ranks, 0, 1}));
  TIE_TRY(testing::ForkedRanks stages, team(o, gguf, {0, 1, 0, o.ranks}));
  TIE_TRY(Threads threads, Threads::start(o, gguf));
  TIE_TRY(const KvPool kv, threads.kv_pool(o.prefill + o.decode_steps));
  threads.pool->keep_caller_on_its_cpu();
  std::vector<Contender> contenders{
      {"threads", [&](const Batch& batch, const KvPool& pool) { return threads.model->forward(batch, pool); }, kv, {}},
      {"tensor",
       [&](const Batch& batch, const KvPool& pool) { return tensor.leader().forward(batch, pool); },
       tensor.kv(),
       {}},
      {"stages",
       [&](const Batch& batch, const KvPool& pool) { return stages.leader().forward(batch, pool); },
       stages.kv(),
       {}}};
  for (uint32_t i = 0; i <= o.repeat; ++i)
    for (Contender& c : contenders) {
      TIE_TRY(const Speed speed, measure(o, c));
      if (i > 0) c.speeds.push_back(speed);  // the first touches memory
    }
  for (const Contender& c : contenders) print(o, c, contenders[0]);
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app{"Ranks against threads."};
  app.add_option("--gguf", options.gguf)->required();
  app.add_option("--kernels", options.kernels);
  app.add_option("--ranks", options.ranks)->check(CLI::Range(2, 16));
  app.add_option("--repeat", options.repeat)->check(CLI::Range(1, 99));
  app.add_option("--decode-steps", options.decode_steps)->check(CLI::Range(1, 1024));
  app.add_flag("!--free-cpus", options.own_cpus, "let the kernel place the threads");
  app.add_option("--prefill", options.prefill)->check(CLI::Range(1, 2048));
  CLI11_PARSE(app, argc, argv);
  auto done = run(options);
  if (!done) std::fprintf(stderr, "ranks_bench: %s\n", done.error().message.c_str());
  return done ? 0 : 1;
}
