// A step of the engine that only decodes allocates nothing and takes no lock: both are counted by standing in front of
// the C library's functions, for the whole program and all its threads.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "inference/bones/testing/tiny_model.h"
#include "inference/bones/weights_image.h"
#include "inference/engine/engine_core.h"

#if !defined(TIE_SANITIZED) && defined(__GLIBC__)

namespace {
std::atomic<bool> counting{false};
std::atomic<uint64_t> allocations{0}, locks{0};

void note(std::atomic<uint64_t>& counter) {
  if (counting.load(std::memory_order_relaxed)) counter.fetch_add(1, std::memory_order_relaxed);
}
}  // namespace

extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);

void* malloc(size_t n) {
  note(allocations);
  return __libc_malloc(n);
}
void* calloc(size_t count, size_t n) {
  note(allocations);
  return __libc_calloc(count, n);
}
void* realloc(void* p, size_t n) {
  note(allocations);
  return __libc_realloc(p, n);
}
void* aligned_alloc(size_t alignment, size_t n) {
  note(allocations);
  return __libc_memalign(alignment, n);
}
int pthread_mutex_lock(pthread_mutex_t* mutex) {
  using Lock = int (*)(pthread_mutex_t*);
  static const auto real = reinterpret_cast<Lock>(dlsym(RTLD_NEXT, "pthread_mutex_lock"));
  note(locks);
  return real(mutex);
}
}

namespace tie::engine {
namespace {

constexpr uint32_t kTokens = 300;

class SilentSink final : public OutputSink {
 public:
  void on_output(const Output& output) override { tokens += output.tokens.size(); }
  void on_end(const Usage&, const Error*) override { ended = true; }
  size_t tokens = 0;
  bool ended = false;
};

TokenTable table() {
  TokenTable out;
  for (uint32_t i = 0; i < kTokens; ++i) out.add(std::string(1, static_cast<char>('a' + i % 26)));
  return out;
}

std::shared_ptr<SilentSink> submit(EngineCore& core, SamplingOptions sampling) {
  auto sink = std::make_shared<SilentSink>();
  RequestSpec spec;
  spec.sink = sink;
  for (int32_t i = 0; i < 20; ++i) spec.prompt.push_back(i * 7 % static_cast<int32_t>(kTokens));
  sampling.max_tokens = 60;
  sampling.ignore_eos = true;
  spec.sampling = sampling;
  auto request = core.prepare(std::move(spec));
  EXPECT_TRUE(request) << request.error().message;
  EXPECT_TRUE(core.add(std::move(*request)));
  return sink;
}

bool sleeps(const std::filesystem::path& thread) {
  std::string line;
  std::getline(std::ifstream(thread / "stat"), line);
  const size_t name_end = line.rfind(')');
  return name_end != line.npos && line.substr(name_end, 3) == ") S";
}

// The mask worker's threads, named by it, take their lock once on the way to their first sleep, however late that is on
// a busy machine; what they hold then belongs to no step.
bool mask_threads_sleep() {
  size_t asleep = 0;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::getline(std::ifstream(thread.path() / "comm"), name);
    asleep += (name == "masks" || name == "grammars") && sleeps(thread.path());
  }
  return asleep == 2;
}

TEST(EngineStep, AllocatesNothingAndLocksNothingWhileItDecodes) {
  const Bytes file = bones::testing::tiny_model({});
  auto image = bones::OwnedImage::from_gguf(file);
  ASSERT_TRUE(image) << image.error().message;
  bones::ThreadPool pool({.n_threads = 2});
  auto model = bones::Model::attach(image->bytes(), {.pool = &pool});
  ASSERT_TRUE(model) << model.error().message;
  BonesModel forward(std::move(*model));
  EngineOptions options{.kv_bytes = size_t{4} << 20};
  options.pool = &pool;
  auto core = EngineCore::create(forward, table(), std::move(options));
  ASSERT_TRUE(core) << core.error().message;
  const std::shared_ptr<SilentSink> sinks[] = {
      submit(**core, {.temperature = 0}),
      submit(**core, {.temperature = 1.0f, .top_p = 0.9f, .seed = 3, .logprobs = true, .top_logprobs = 5}),
      submit(**core, {.temperature = 0.7f, .top_k = 40, .repetition_penalty = 1.2f, .seed = 4}),
      submit(**core, {.temperature = 0.7f, .top_k = 40, .seed = 5, .min_tokens = 50})};
  const auto drawn = [&] {
    size_t sum = 0;
    for (const auto& sink : sinks) sum += sink->tokens;
    return sum;
  };
  for (int i = 0; i < 10; ++i) ASSERT_TRUE((*core)->step(0));
  for (int waited_ms = 0; !mask_threads_sleep(); ++waited_ms) {
    ASSERT_LT(waited_ms, 20'000) << "the mask worker's threads never began to wait";
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const size_t before = drawn();
  counting = true;
  for (int i = 0; i < 30; ++i) (*core)->step(0);
  counting = false;
  EXPECT_GE(drawn(), before + 120);
  EXPECT_EQ(allocations, 0u);
  EXPECT_EQ(locks, 0u);
  while ((*core)->step(0)) continue;
  for (const auto& sink : sinks) EXPECT_TRUE(sink->ended);
}

// The counters count: else the test above could not fail.
TEST(EngineStep, TheCountersSeeAnAllocationAndALock) {
  allocations = locks = 0;
  counting = true;
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  pthread_mutex_lock(&mutex);
  pthread_mutex_unlock(&mutex);
  auto* p = new std::vector<int>(100);
  counting = false;
  delete p;
  EXPECT_GE(allocations, 1u);
  EXPECT_EQ(locks, 1u);
}

}  // namespace
}  // namespace tie::engine

#else
TEST(EngineStep, AllocatesNothingAndLocksNothingWhileItDecodes) {
  GTEST_SKIP() << "a sanitizer stands in front of the allocator itself";
}
#endif
