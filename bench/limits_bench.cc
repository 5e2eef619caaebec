// The limits of this machine that engine figures are compared with: read bandwidth of a memfd of a given size by one
// and by all threads, and the arithmetic peaks of each instruction set. Run it in the same minute as engine_bench.
#include <cpuid.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "bench/limits.h"
#include "inference/bones/kernels/amx/amx_state.h"
#include "inference/bones/thread_pool.h"
#include "os/memfd.h"

namespace {

using namespace tie;
volatile uint64_t sink;

bool tiles_multiply_bf16() {
  uint32_t a = 0, b = 0, c = 0, d = 0;
  return bones::amx::state() == bones::amx::State::kReady && __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 &&
         (d & (1u << 22)) != 0;
}

// One peak: its key in the JSON, how a person reads it, and the loop that reaches it.
struct Peak {
  const char *key, *name, *unit;
  bool present;
  void (*loop)(uint64_t n);
  double multiply_adds;  // of an iteration
  uint64_t iterations;
};

std::vector<Peak> peaks() {
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"),
             avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw"),
             vnni = avx512 && __builtin_cpu_supports("avx512vnni"),
             bf16 = avx512 && __builtin_cpu_supports("avx512bf16"),
             tiles = bones::amx::state() == bones::amx::State::kReady;
  return {{"avx2_int8_gops", "AVX2 int8", "GOP/s", avx2, bench::avx2_int8, 8.0 * 32, 4'000'000},
          {"avx2_fp32_gflops", "AVX2 fp32", "GFLOP/s", avx2, bench::avx2_fp32, 12.0 * 8, 8'000'000},
          {"avx512_int8_gops", "AVX-512 VNNI int8", "GOP/s", vnni, bench::avx512_int8, 12.0 * 64, 8'000'000},
          {"avx512_bf16_gflops", "AVX512-BF16", "GFLOP/s", bf16, bench::avx512_bf16, 12.0 * 32, 4'000'000},
          {"avx512_fp32_gflops", "AVX-512 fp32", "GFLOP/s", avx512, bench::avx512_fp32, 12.0 * 16, 8'000'000},
          {"amx_int8_gops", "AMX int8", "GOP/s", tiles, bench::amx_int8, 4.0 * 16 * 16 * 64, 4'000'000},
          {"amx_bf16_gflops", "AMX bf16", "GFLOP/s", tiles_multiply_bf16(), bench::amx_bf16, 4.0 * 16 * 16 * 32,
           4'000'000}};
}

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

double read_gb_s(bones::ThreadPool& pool, uint32_t threads, const os::Mapping& memory) {
  const auto read = __builtin_cpu_supports("avx512f") ? bench::avx512_read : bench::avx2_read;
  const uint64_t share = memory.size() / threads / 4096 * 4096,
                 rounds = std::max<uint64_t>(1, uint64_t{400'000'000} / memory.size());
  const double seconds = best_seconds(pool, [&](uint32_t t) {
    for (uint64_t r = 0; r < rounds; ++r) sink = read(memory.bytes().data() + t * share, share);
  });
  return static_cast<double>(share * threads * rounds) / seconds * 1e-9;
}

void measure(uint32_t threads, const os::Mapping& memory, double mb, bool json) {
  bones::ThreadPool pool({threads});
  const double read = read_gb_s(pool, threads, memory);
  std::string lines, fields;
  for (const Peak& peak : peaks()) {
    std::optional<double> found;
    if (peak.present) {
      const double seconds = best_seconds(pool, [&](uint32_t) { peak.loop(peak.iterations); });
      found = 2 * peak.multiply_adds * static_cast<double>(peak.iterations) * threads / seconds * 1e-9;
    }
    const std::string value = found ? fmt::format("{:.0f}", *found) : "";
    lines += fmt::format("  {:<18} {}\n", peak.name, found ? value + " " + peak.unit : "not on this CPU");
    fields += fmt::format(", \"{}\": {}", peak.key, found ? value : "null");
  }
  if (json)
    fmt::print("{{\"threads\": {}, \"mb\": {:.0f}, \"read_gb_s\": {:.1f}{}}}\n", threads, mb, read, fields);
  else
    fmt::print("{} thread(s): read {:.1f} GB/s of a {:.0f} MB memfd\n{}", threads, read, mb, lines);
}

}  // namespace

int main(int argc, char** argv) {
  uint32_t threads = 2;
  double mb = 96;
  bool json = false;
  CLI::App app("measures this machine");
  app.add_option("--threads", threads);
  app.add_option("--mb", mb, "size of the memory that is read");
  app.add_flag("--json", json, "one line for each number of threads; null: not on this CPU");
  CLI11_PARSE(app, argc, argv);
  if (!__builtin_cpu_supports("avx2")) {
    fmt::print(stderr, "this machine has no AVX2; its limits are not measured\n");
    return 1;
  }
  const auto bytes = static_cast<size_t>(mb * 1e6) / 4096 * 4096;
  auto fd = os::create_memfd("limits", bytes);
  if (!fd) return 1;
  auto memory = os::Mapping::read_write(fd->get());
  if (!memory) return 1;
  std::memset(memory->writable().data(), 1, bytes);
  (void)memory->use_huge_pages();  // as the weights are
  measure(1, *memory, mb, json);
  if (threads > 1) measure(threads, *memory, mb, json);
  return 0;
}
