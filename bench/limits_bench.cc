// The limits of this machine that engine figures are compared with: read bandwidth of a memfd of a given size by one
// and by all threads, and the arithmetic peaks. Run it in the same minute as engine_bench.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <vector>

#include "inference/bones/kernels/amx/amx_state.h"
#include "inference/bones/thread_pool.h"
#include "os/memfd.h"

namespace tie::bench {
int avx512_int8(uint64_t n);
float avx512_fp32(uint64_t n);
uint64_t avx512_read(const void* memory, uint64_t bytes);
void amx_int8(uint64_t n);
}  // namespace tie::bench

namespace {

using namespace tie;
volatile uint64_t sink;

// Best of five, in seconds: a limit is what the machine can do undisturbed.
template <typename F>
double best_seconds(bones::ThreadPool& pool, F f) {
  double best = 1e30;
  for (int r = 0; r < 5; ++r) {
    auto body = [&](uint32_t thread) { f(thread); };
    const auto start = std::chrono::steady_clock::now();
    pool.run(body);
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

// ", amx int8 N GOP/s" where there are tiles.
std::string amx(bones::ThreadPool& pool, uint32_t threads) {
  if (bones::amx::state() != bones::amx::State::kReady) return "";
  constexpr uint64_t kLoops = 4'000'000;
  const double seconds = best_seconds(pool, [](uint32_t) { bench::amx_int8(kLoops); });
  return fmt::format(", amx int8 {:.0f} GOP/s", kLoops * 4.0 * 2 * 16 * 16 * 64 * threads / seconds * 1e-9);
}

void measure(uint32_t threads, const os::Mapping& memory, double mb) {
  bones::ThreadPool pool({threads});
  const uint64_t share = memory.size() / threads / 4096 * 4096,
                 rounds = std::max<uint64_t>(1, uint64_t{400'000'000} / memory.size());
  const double read = best_seconds(pool, [&](uint32_t t) {
    for (uint64_t r = 0; r < rounds; ++r) sink = bench::avx512_read(memory.bytes().data() + t * share, share);
  });
  constexpr uint64_t kLoops = 8'000'000;
  const double int8 = best_seconds(pool, [&](uint32_t) { sink = static_cast<uint64_t>(bench::avx512_int8(kLoops)); });
  const double fp32 = best_seconds(pool, [&](uint32_t) { sink = static_cast<uint64_t>(bench::avx512_fp32(kLoops)); });
  fmt::print("{} thread(s): read {:.1f} GB/s of a {:.0f} MB memfd, int8 {:.0f} GOP/s, fp32 {:.0f} GFLOP/s{}\n", threads,
             static_cast<double>(share * threads * rounds) / read * 1e-9, mb,
             kLoops * 12.0 * 128 * threads / int8 * 1e-9, kLoops * 12.0 * 32 * threads / fp32 * 1e-9,
             amx(pool, threads));
}

}  // namespace

int main(int argc, char** argv) {
  uint32_t threads = 2;
  double mb = 96;
  CLI::App app("measures this machine");
  app.add_option("--threads", threads);
  app.add_option("--mb", mb, "size of the memory that is read");
  CLI11_PARSE(app, argc, argv);
  if (!__builtin_cpu_supports("avx512vnni")) {
    fmt::print("this machine has no AVX-512 VNNI; its limits are not measured\n");
    return 0;
  }
  const auto bytes = static_cast<size_t>(mb * 1e6) / 4096 * 4096;
  auto fd = os::create_memfd("limits", bytes);
  if (!fd) return 1;
  auto memory = os::Mapping::read_write(fd->get());
  if (!memory) return 1;
  std::memset(memory->writable().data(), 1, bytes);
  (void)memory->use_huge_pages();  // as the weights are
  measure(1, *memory, mb);
  if (threads > 1) measure(threads, *memory, mb);
  return 0;
}
