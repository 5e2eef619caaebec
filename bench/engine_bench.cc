// Speed of bones alone: decode at several batch sizes and depths, prefill of several lengths. Prints a table and, with
// --json, one line a figure. Medians of --repeat runs. A figure is printed with the bytes it must read, so that it can
// be compared with limits_bench's read bandwidth.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <fstream>
#include <numeric>
#include <optional>
#include <sstream>

#include "inference/bones/model.h"
#include "inference/engine/kv_pool.h"
#include "os/memfd.h"

namespace {

using namespace tie;
using namespace tie::bones;
using Clock = std::chrono::steady_clock;

struct Options {
  std::string gguf, kernels, kv, only, exactly, json;
  uint32_t threads = 2, repeat = 5, chunk = 512;
  bool own_cpus = false;
  double seconds = 0.4;
};

// Share of all cores that others used, and that the hypervisor took, since the object was made; from /proc/stat.
class MachineLoad {
 public:
  MachineLoad() { read(start_); }
  struct Percent {
    double foreign, steal;
  };
  Percent percent(double own_cpu_seconds) const {
    double now[2];
    read(now);
    const double hz = static_cast<double>(sysconf(_SC_CLK_TCK)),
                 cores = static_cast<double>(sysconf(_SC_NPROCESSORS_ONLN));
    const double wall = std::chrono::duration<double>(Clock::now() - began_).count();
    return {100.0 * std::max(0.0, (now[0] - start_[0]) / hz - own_cpu_seconds) / (wall * cores),
            100.0 * (now[1] - start_[1]) / hz / (wall * cores)};
  }

 private:
  static void read(double (&out)[2]) {
    std::ifstream in("/proc/stat");
    std::string word;
    double v[8] = {};
    in >> word;
    for (double& x : v) in >> x;
    out[0] = v[0] + v[1] + v[2] + v[5] + v[6];
    out[1] = v[7];
  }
  double start_[2];
  Clock::time_point began_ = Clock::now();
};

double process_cpu_seconds() {
  timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

struct Bench {
  Options o;
  ThreadPool pool;
  os::Mapping image_memory;
  std::unique_ptr<Model> model;
  std::optional<engine::KvBlockPool> kv_pool;
  KvPool kv;
  std::string json;

  explicit Bench(const Options& options)
      : o(options), pool({.n_threads = options.threads, .own_cpus = options.own_cpus}) {
    pool.keep_caller_on_its_cpu();
  }

  Result<void> open(uint32_t kv_tokens) {
    TIE_TRY(const os::Mapping file, os::Mapping::file_read_only(o.gguf));
    TIE_TRY(const PackPlan plan,
            PackPlan::from_gguf({reinterpret_cast<const uint8_t*>(file.bytes().data()), file.size()}));
    TIE_TRY(const os::Fd fd, os::create_memfd("weights", plan.image_bytes()));  // as the owner shares them
    TIE_TRY(image_memory, os::Mapping::read_write(fd.get()));
    TIE_CHECK_OK(plan.write(image_memory.writable().first(plan.image_bytes()), &pool));
    (void)image_memory.use_huge_pages();
    ModelOptions options;
    options.pool = &pool, options.kernels = o.kernels, options.max_batch_rows = std::max(o.chunk, 64u);
    TIE_TRY(Model attached, Model::attach(image_memory.bytes().first(plan.image_bytes()), options));
    model = std::make_unique<Model>(std::move(attached));
    KvType type = usual_kv_type(model->config());
    if (!o.kv.empty()) {
      TIE_TRY(type, kv_type_named(o.kv));
    }
    TIE_TRY(kv.layout, KvLayout::for_model(model->config(), type));
    TIE_TRY(engine::KvBlockPool pool_memory,
            engine::KvBlockPool::create(kv.layout, kv.layout.blocks_for(kv_tokens) + 64));
    kv_pool.emplace(std::move(pool_memory));
    kv = kv_pool->view();
    return {};
  }

  // Bytes of all matrices that a step reads; the embedding counts only as the output head.
  uint64_t weight_bytes() const {
    const auto image = WeightsImage::attach(
        image_memory.bytes().first(reinterpret_cast<const ImageHeader*>(image_memory.bytes().data())->image_bytes));
    uint64_t bytes = 0;
    for (const TensorEntry& entry : image->tensors())
      if (entry.role != Role::kEmbedding || image->config().tied_embeddings) bytes += entry.bytes;
    return bytes;
  }

  // Median over the repeats of the seconds of one call of f, after a warm-up; `best` is the fastest single call.
  template <typename F>
  double median(F f, MachineLoad::Percent& load) {
    best_ = 1e30;
    f();
    std::vector<double> times;
    const MachineLoad machine;
    const double cpu = process_cpu_seconds();
    for (uint32_t r = 0; r < o.repeat; ++r) {
      const auto start = Clock::now();
      uint32_t calls = 0;
      do {
        const auto call = Clock::now();
        f();
        best_ = std::min(best_, std::chrono::duration<double>(Clock::now() - call).count());
        ++calls;
      } while (std::chrono::duration<double>(Clock::now() - start).count() < o.seconds / o.repeat);
      times.push_back(std::chrono::duration<double>(Clock::now() - start).count() / calls);
    }
    load = machine.percent(process_cpu_seconds() - cpu);
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
  }

  double best_ = 0;

  // Operations of the products for one row: two for each weight. Attention is not counted.
  double layer_ops() const {
    return ops([](Role role) { return role >= Role::kQ && role <= Role::kDown; });
  }
  double head_ops() const {
    const bool tied = model->config().tied_embeddings != 0;
    return ops([tied](Role role) { return role == (tied ? Role::kEmbedding : Role::kOutput); });
  }

  template <typename Wanted>
  double ops(Wanted wanted_role) const {
    const auto image = WeightsImage::attach(
        image_memory.bytes().first(reinterpret_cast<const ImageHeader*>(image_memory.bytes().data())->image_bytes));
    double total = 0;
    for (const TensorEntry& entry : image->tensors())
      if (entry.k > 1 && wanted_role(entry.role)) total += 2.0 * entry.n * entry.k;
    return total;
  }

  void report(const std::string& name, double tokens, double seconds, double bytes, double ops,
              MachineLoad::Percent load) {
    fmt::print(
        "{:<28} {:>9.1f} tok/s {:>9.3f} ms {:>7.1f} GB/s {:>6.0f} GOP/s   best {:>9.1f} tok/s   foreign {:.0f} steal "
        "{:.0f} %\n",
        name, tokens / seconds, seconds * 1e3, bytes / seconds * 1e-9, ops / seconds * 1e-9, tokens / best_,
        load.foreign, load.steal);
    std::fflush(stdout);
    json += fmt::format(
        "{{\"name\": \"{}\", \"tokens_per_s\": {:.2f}, \"step_ms\": {:.4f}, \"gb_per_s\": {:.3f}, \"gop_per_s\": "
        "{:.1f}, "
        "\"best_tokens_per_s\": {:.2f}, \"foreign_percent\": {:.1f}, \"steal_percent\": {:.1f}, \"threads\": {}, "
        "\"kernels\": \"{}\", \"weight_mb\": {:.1f}}}\n",
        name, tokens / seconds, seconds * 1e3, bytes / seconds * 1e-9, ops / seconds * 1e-9, tokens / best_,
        load.foreign, load.steal, o.threads, model->kernels(), static_cast<double>(weight_bytes()) * 1e-6);
  }

  bool wanted(const std::string& name) const {
    return o.exactly.empty() ? name.find(o.only) != std::string::npos : name == o.exactly;
  }

  void decode(uint32_t batch, uint32_t depth) {
    const std::string name = fmt::format("decode batch {} depth {}", batch, depth);
    if (!wanted(name)) return;
    const uint32_t per_sequence = kv.layout.blocks_for(depth + 1);
    std::vector<std::vector<uint32_t>> tables(batch, std::vector<uint32_t>(per_sequence));
    std::vector<SequenceSpan> spans;
    std::vector<int32_t> tokens(batch, 100);
    std::vector<uint32_t> rows(batch);
    for (uint32_t i = 0; i < batch; ++i) {
      std::iota(tables[i].begin(), tables[i].end(), i * per_sequence);
      rows[i] = i;
    }
    for (uint32_t i = 0; i < batch; ++i) spans.push_back({i, 1, depth, tables[i]});
    MachineLoad::Percent load{};
    const double seconds = median(
        [&] {
          if (!model->forward({tokens, spans, rows, {}}, kv)) std::abort();
        },
        load);
    report(name, batch, seconds,
           static_cast<double>(weight_bytes() + uint64_t{batch} * depth * kv.layout.token_bytes()),
           batch * (layer_ops() + head_ops()), load);
  }

  void prefill(uint32_t length) {
    const std::string name = fmt::format("prefill {}", length);
    if (!wanted(name)) return;
    std::vector<uint32_t> table(kv.layout.blocks_for(length));
    std::iota(table.begin(), table.end(), 0u);
    std::vector<int32_t> tokens(length);
    for (uint32_t i = 0; i < length; ++i) tokens[i] = static_cast<int32_t>(i * 37 % 1000);
    MachineLoad::Percent load{};
    const double seconds = median(
        [&] {
          for (uint32_t at = 0; at < length; at += o.chunk) {
            const uint32_t n = std::min(o.chunk, length - at), last = n - 1;
            const SequenceSpan span{0, n, at, table};
            const bool final = at + n == length;
            if (!model->forward({std::span(tokens).subspan(at, n), {&span, 1}, {&last, final ? 1u : 0u}, {}}, kv))
              std::abort();
          }
        },
        load);
    report(name, length, seconds, static_cast<double>(weight_bytes()), length * layer_ops(), load);
  }
};

Result<void> run(const Options& o) {
  Bench bench(o);
  TIE_CHECK_OK(bench.open(8 * 2080));
  fmt::print("{} on {} threads, kernels {}, {:.1f} MB read per decode step\n", o.gguf, o.threads,
             bench.model->kernels(), static_cast<double>(bench.weight_bytes()) * 1e-6);
  for (uint32_t batch : {1, 4, 8, 16, 32}) bench.decode(batch, 0);
  for (uint32_t batch : {1, 8}) bench.decode(batch, 2048);
  for (uint32_t length : {32, 128, 512, 2048, 8000})
    if (length <= bench.model->config().context_length) bench.prefill(length);
  if (!o.json.empty()) std::ofstream(o.json) << bench.json;
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  CLI::App app("measures bones");
  app.add_option("--gguf", o.gguf)->required();
  app.add_option("--threads", o.threads);
  app.add_flag("--own-cpus", o.own_cpus, "each thread stays on one CPU, as in a node's runtime");
  app.add_option("--kernels", o.kernels);
  app.add_option("--kv", o.kv, "KV cache: f16, bf16 or q8 (default: the model's usual)");
  app.add_option("--only", o.only, "measure figures whose name contains this");
  app.add_option("--exactly", o.exactly, "measure the figure of this name");
  app.add_option("--repeat", o.repeat);
  app.add_option("--seconds", o.seconds, "for each figure");
  app.add_option("--chunk", o.chunk, "prefill rows of one forward pass");
  app.add_option("--json", o.json, "file for JSON lines");
  CLI11_PARSE(app, argc, argv);
  if (auto done = run(o); !done) {
    fmt::print(stderr, "{}\n", done.error().message);
    return 1;
  }
  return 0;
}
