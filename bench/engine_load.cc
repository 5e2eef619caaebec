// The engine alone under the load that path_load puts on the whole private path: the same closed loop of clients, the
// same prompt and answer lengths, through the runtime's own scheduler with the runtime's defaults, but results are only
// counted. What path_load reaches is printed as a fraction of this.
#include <CLI/CLI.hpp>
#include <condition_variable>

#include "bench/load_report.h"
#include "inference/engine/engine.h"
#include "os/memfd.h"

namespace {

using namespace tie;
using bench::Clock;

struct Options {
  std::string gguf, kernels;
  uint32_t threads = 2;
  bench::LoadOptions load;
};

// Counts on the engine's thread, tells the feeder when a request has ended.
class Feeder {
 public:
  Feeder(const bench::LoadOptions& load, bench::LoadReport& report) : load_(load), report_(report) {}

  Result<void> run(engine::Engine& engine) {
    report_.begin();
    for (uint32_t i = 0; i < std::min(load_.clients, load_.requests); ++i) TIE_CHECK_OK(submit(engine));
    std::unique_lock lock(mutex_);
    while (ended_ < load_.requests) {
      one_ended_.wait(lock, [&] { return ended_ > seen_; });
      for (; seen_ < ended_; ++seen_) {
        if (submitted_ >= load_.requests) continue;
        lock.unlock();
        std::this_thread::sleep_for(std::chrono::milliseconds(load_.pause_ms));
        TIE_CHECK_OK(submit(engine));
        lock.lock();
      }
    }
    return {};
  }

  void ended(const bench::RequestTimes& times) {
    report_.add(times);
    std::lock_guard lock(mutex_);
    ++ended_;
    one_ended_.notify_one();
  }

 private:
  class Sink final : public engine::OutputSink {
   public:
    explicit Sink(Feeder& feeder) : feeder_(feeder) {}
    void on_output(const engine::Output& output) override {
      if (output.tokens.empty()) return;
      if (times_.events++ == 0) times_.first_ms = bench::ms_since(began_);
      times_.tokens += static_cast<uint32_t>(output.tokens.size());
    }
    void on_end(const engine::Usage&, const Error*) override {
      times_.total_ms = bench::ms_since(began_);
      feeder_.ended(times_);
    }

   private:
    Feeder& feeder_;
    Clock::time_point began_ = Clock::now();
    bench::RequestTimes times_;
  };

  Result<void> submit(engine::Engine& engine) {
    engine::RequestSpec spec;
    for (uint32_t i = 0; i < load_.prompt_tokens; ++i)
      spec.prompt.push_back(static_cast<int32_t>(100 + (i + 37 * submitted_) % 1000));
    spec.sampling.temperature = 0;
    spec.sampling.max_tokens = load_.tokens;
    spec.sampling.ignore_eos = true;
    spec.sink = std::make_shared<Sink>(*this);
    ++submitted_;
    TIE_TRY(auto handle, engine.submit(std::move(spec)));
    return {};
  }

  const bench::LoadOptions load_;
  bench::LoadReport& report_;
  std::mutex mutex_;
  std::condition_variable one_ended_;
  uint32_t submitted_ = 0, seen_ = 0, ended_ = 0;
};

Result<void> run(const Options& o) {
  bones::ThreadPool pool({.n_threads = o.threads, .own_cpus = o.threads == std::thread::hardware_concurrency()});
  TIE_TRY(const os::Mapping file, os::Mapping::file_read_only(o.gguf));
  TIE_TRY(const bones::PackPlan plan,
          bones::PackPlan::from_gguf({reinterpret_cast<const uint8_t*>(file.bytes().data()), file.size()}));
  TIE_TRY(const os::Fd fd, os::create_memfd("weights", plan.image_bytes()));  // as the owner shares them
  TIE_TRY(os::Mapping image, os::Mapping::read_write(fd.get()));
  TIE_CHECK_OK(plan.write(image.writable().first(plan.image_bytes()), &pool));
  engine::EngineOptions options;
  options.pool = &pool;
  bones::ModelOptions model_options{.pool = &pool,
                                    .kernels = o.kernels,
                                    .max_batch_rows = options.limits.max_rows,
                                    .max_logit_rows = options.limits.max_sequences + engine::kMaxDraftTokens,
                                    .max_sequences = options.limits.max_sequences};
  TIE_TRY(auto attached, bones::Model::attach(image.bytes().first(plan.image_bytes()), model_options));
  engine::BonesModel model(std::move(attached));
  options.kv_type = bones::usual_kv_type(model.config());
  engine::TokenTable table;
  for (uint32_t id = 0; id < model.config().n_vocab; ++id) table.add("x");
  TIE_TRY(auto core, engine::EngineCore::create(model, std::move(table), std::move(options)));
  engine::Engine engine(std::move(core), nullptr);
  bench::LoadReport warm, report;
  TIE_CHECK_OK(Feeder({1, 1, 16, 4}, warm).run(engine));
  TIE_CHECK_OK(Feeder(o.load, report).run(engine));
  report.print();
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  CLI::App app("the engine alone under the path's load");
  app.add_option("--gguf", o.gguf)->required();
  app.add_option("--threads", o.threads);
  app.add_option("--kernels", o.kernels);
  app.add_option("--clients", o.load.clients);
  app.add_option("--requests", o.load.requests);
  app.add_option("--prompt-tokens", o.load.prompt_tokens);
  app.add_option("--tokens", o.load.tokens);
  app.add_option("--pause-ms", o.load.pause_ms);
  CLI11_PARSE(app, argc, argv);
  if (auto done = run(o); !done) {
    fmt::print(stderr, "{}\n", done.error().message);
    return 1;
  }
  return 0;
}
