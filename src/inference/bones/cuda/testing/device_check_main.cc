// What `./dev device-check` runs on a GPU machine: whole tiny models of every family and weight format against the
// CPU's result, graphs, KV blocks out and in, IPC between two processes, then speeds. Prints a line of JSON for each
// case when it is over (check_cases.h). With --driver it loads another driver: the emulated one in tests, where --quick
// keeps sizes small; --portable leaves the GPU's own units alone.
//   device_check units|models|graphs|ipc|kernels|speed --kernels FATBIN [--skip CASE,...] [--portable] [--list]
//                [--driver PATH] [--quick]
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <sstream>

#include "inference/bones/cuda/cuda_model.h"
#include "inference/bones/cuda/launcher.h"
#include "inference/bones/cuda/testing/check_cases.h"
#include "inference/bones/cuda/testing/kernel_speed.h"
#include "inference/bones/cuda/testing/synthetic_weights.h"
#include "inference/bones/single_sequence.h"
#include "inference/bones/testing/tiny_model.h"

namespace {

using namespace tie;
using namespace tie::bones;
using namespace tie::bones::cuda;
using model_files::TensorType;
using nlohmann::json;

struct Options {
  std::string command, kernels, driver = "libcuda.so.1";
  std::vector<std::string> skip;
  bool quick = false, list = false, portable = false;
};

struct Gpu {
  std::shared_ptr<Driver> driver;
  std::vector<std::byte> kernels;
  bool portable = false;
};

Result<Gpu> open_gpu(const Options& o) {
  Gpu gpu;
  gpu.portable = o.portable;
  TIE_TRY(gpu.driver, Driver::load(0, o.driver));
  if (o.kernels.empty()) return gpu;
  std::ifstream in(o.kernels, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(in)), {});
  if (bytes.empty()) return fail(Code::kNotFound, "no kernels in " + o.kernels);
  gpu.kernels.resize(bytes.size());
  std::memcpy(gpu.kernels.data(), bytes.data(), bytes.size());
  return gpu;
}

// A model with a KV pool for one sequence at a time, or several in blocks of their own.
struct Rig {
  std::unique_ptr<CudaModel> model;
  DeviceMemory kv_memory;
  DeviceKvPool kv;

  static Result<Rig> make(const Gpu& gpu, const DeviceTable& table, DeviceMemory weights, uint32_t rows,
                          uint32_t sequences, uint32_t blocks, bool graphs = true) {
    Rig rig;
    const CudaModelOptions options{
        .max_batch_rows = rows,
        .max_logit_rows = std::min(rows, 256u),
        .max_sequences = sequences,
        .graphs = graphs,
        .fast_kernels = !gpu.portable,
        .fast_rows = std::min(rows, 64u)};  // so that tiny models meet the GPU's own units, too
    TIE_TRY(CudaModel model, CudaModel::attach(gpu.driver, gpu.kernels, table, std::move(weights), options));
    rig.model = std::make_unique<CudaModel>(std::move(model));
    TIE_TRY(rig.kv.layout, KvLayout::for_model(table.config));
    rig.kv.n_blocks = blocks;
    TIE_TRY(rig.kv_memory, DeviceMemory::allocate(gpu.driver, blocks * rig.kv.layout.block_bytes()));
    TIE_CHECK_OK(fill_now(*gpu.driver, rig.kv_memory.at(), 0, rig.kv_memory.size()));
    rig.kv.base = rig.kv_memory.at();
    return rig;
  }

  // Logits of every position.
  Result<std::vector<float>> evaluate(const std::vector<int32_t>& tokens, uint32_t chunk) {
    std::vector<uint32_t> blocks(kv.n_blocks);
    std::iota(blocks.rbegin(), blocks.rend(), 0);
    std::vector<float> out;
    for (uint32_t at = 0; at < tokens.size(); at += chunk) {
      const auto n = std::min(chunk, static_cast<uint32_t>(tokens.size()) - at);
      const SequenceSpan span{0, n, at, blocks};
      std::vector<uint32_t> rows(n);
      std::iota(rows.begin(), rows.end(), 0);
      TIE_TRY(const Logits logits, model->forward({std::span(tokens).subspan(at, n), {&span, 1}, rows, {}}, kv));
      for (uint32_t i = 0; i < n; ++i) out.insert(out.end(), logits.row(i).begin(), logits.row(i).end());
    }
    return out;
  }
};

std::vector<int32_t> random_tokens(uint32_t n) {
  std::mt19937 random(31);
  std::vector<int32_t> out(n);
  for (int32_t& t : out) t = static_cast<int32_t>(random() % 300);
  return out;
}

Result<std::vector<float>> on_the_cpu(const Bytes& file, const std::vector<int32_t>& tokens) {
  TIE_TRY(auto model, SingleSequence::from_gguf(file, {.n_threads = 2, .max_tokens = 256}));
  std::vector<float> out;
  auto visit = [](void* context, uint32_t, std::span<float> logits) {
    auto& all = *static_cast<std::vector<float>*>(context);
    all.insert(all.end(), logits.begin(), logits.end());
  };
  TIE_CHECK_OK(model.append_each(tokens, 0, visit, &out));
  return out;
}

// Mean difference as a fraction of the logits' spread.
double relative_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, square = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += std::fabs(double{a[i]} - b[i]);
    square += double{a[i]} * a[i];
  }
  const double n = static_cast<double>(a.size());
  return a.size() != b.size() ? 1e9 : difference / n / std::sqrt(square / n);
}

bones::testing::TinyModelOptions tiny(const std::string& family, TensorType type) {
  bones::testing::TinyModelOptions o;
  o.architecture = family;
  o.weights = type;
  o.embedding = type;
  o.n_embd = 256, o.n_ff = 256, o.n_heads = 4, o.head_dim = 64;
  return o;
}

struct FileFormat {
  const char* name;
  TensorType type;
  double tolerance;  // floats: what bf16 products lose; codes: the CPU rounds activations to 8 bits
};
constexpr FileFormat kFileFormats[] = {{"f32", TensorType::kF32, 0.02},   {"f16", TensorType::kF16, 0.02},
                                       {"bf16", TensorType::kBF16, 0.02}, {"q8_0", TensorType::kQ8_0, 0.06},
                                       {"q4_k", TensorType::kQ4_K, 0.06}, {"q5_k", TensorType::kQ5_K, 0.06},
                                       {"q6_k", TensorType::kQ6_K, 0.06}};

// Decode (a token at a time) and a whole prompt.
Result<void> check_model(const Options& o, const bones::testing::TinyModelOptions& model, double tolerance,
                         json& found) {
  TIE_TRY(const Gpu gpu, open_gpu(o));
  const Bytes file = bones::testing::tiny_model(model);
  const auto tokens = random_tokens(o.quick ? 6 : 70);
  TIE_TRY(const auto expected, on_the_cpu(file, tokens));
  TIE_TRY(LoadedWeights weights, load_weights(gpu.driver, file));
  TIE_TRY(Rig rig, Rig::make(gpu, weights.table, std::move(weights.memory), 70, 4, 8));
  found["report"] = rig.model->kernels();
  bool all = true;
  for (uint32_t chunk : {1u, 70u}) {
    TIE_TRY(const auto logits, rig.evaluate(tokens, chunk));
    const double difference = relative_difference(expected, logits);
    found[chunk == 1 ? "decode_difference" : "prompt_difference"] = difference;
    all = all && difference < tolerance;
  }
  found["ok"] = all;
  return {};
}

// Every family with every format, and heads of every size: each kernel has its part in some of them.
std::vector<CheckCase> model_cases(const Options& o) {
  std::vector<CheckCase> cases;
  auto add = [&](const std::string& family, const FileFormat& format, uint32_t head_dim) {
    bones::testing::TinyModelOptions model = tiny(family, format.type);
    model.head_dim = head_dim;
    if (head_dim > 64) model.n_heads = 2, model.n_kv_heads = 1;
    cases.push_back({family + "-" + std::to_string(head_dim) + "-" + format.name,
                     [o, model, format](json& found) { return check_model(o, model, format.tolerance, found); }});
  };
  if (o.quick) {
    add("gemma3", kFileFormats[4], 64);
    add("phi3", kFileFormats[2], 96);
    return cases;
  }
  for (const char* family : {"llama", "qwen2", "qwen3", "qwen3moe", "gemma2", "gemma3", "phi3"})
    for (const FileFormat& format : kFileFormats) add(family, format, 64);
  for (auto [family, head_dim] :
       {std::pair{"llama", 128u}, {"qwen3", 128u}, {"phi3", 96u}, {"gemma2", 256u}, {"gemma3", 256u}, {"llama", 32u}})
    for (uint32_t i : {2u, 3u}) add(family, kFileFormats[i], head_dim);  // K quantisations want other widths
  return cases;
}

Result<void> check_graphs(const Options& o, json& found) {
  TIE_TRY(const Gpu gpu, open_gpu(o));
  const Bytes file = bones::testing::tiny_model(tiny("qwen3", TensorType::kQ4_0));
  const auto tokens = random_tokens(o.quick ? 4 : 64);
  std::vector<float> results[2];
  uint32_t captured = 0;
  for (bool graphs : {false, true}) {
    TIE_TRY(LoadedWeights weights, load_weights(gpu.driver, file));
    TIE_TRY(Rig rig, Rig::make(gpu, weights.table, std::move(weights.memory), 64, 4, 8, graphs));
    TIE_TRY(results[graphs], rig.evaluate(tokens, 1));
    captured = rig.model->captured_graphs();
    if (!graphs) continue;
    TIE_TRY(const PinnedMemory records, PinnedMemory::allocate(gpu.driver, rig.kv.layout.block_bytes()));
    const uint32_t from = 7, to = 0;
    TIE_CHECK_OK(rig.model->copy_blocks(rig.kv, {&from, 1}, records, false));
    TIE_CHECK_OK(rig.model->copy_blocks(rig.kv, {&to, 1}, records, true));
  }
  found["captured"] = captured;
  found["ok"] = results[0] == results[1] && captured == 1;
  return {};
}

// The child is there before the driver is: a driver does not survive a fork.
Result<void> check_ipc(const Options& o, json& found) {
  int to_child[2], to_parent[2];
  if (::pipe(to_child) != 0 || ::pipe(to_parent) != 0) return fail_errno("pipe", errno);
  const Bytes file = bones::testing::tiny_model(tiny("llama", TensorType::kQ8_0));
  const auto tokens = random_tokens(o.quick ? 2 : 20);
  struct Message {
    IpcHandle handle;
    uint64_t table_bytes;
  };
  auto attach_and_run = [&](int from, int to) -> Result<void> {
    Message message;
    if (::read(from, &message, sizeof message) != sizeof message || message.table_bytes > 1 << 20)
      return fail(Code::kIo, "no handle");
    Bytes table_bytes(message.table_bytes);
    if (::read(from, table_bytes.data(), table_bytes.size()) != static_cast<ssize_t>(table_bytes.size()))
      return fail(Code::kIo, "no table");
    TIE_TRY(const Gpu gpu, open_gpu(o));
    TIE_TRY(const DeviceTable table, DeviceTable::parse(table_bytes));
    TIE_TRY(DeviceMemory memory, DeviceMemory::attach(gpu.driver, message.handle, table.bytes));
    TIE_TRY(Rig rig, Rig::make(gpu, table, std::move(memory), 32, 4, 8));
    TIE_TRY(const auto logits, rig.evaluate(tokens, 32));
    const auto bytes = static_cast<ssize_t>(logits.size() * 4);
    return ::write(to, logits.data(), logits.size() * 4) == bytes ? Result<void>{} : fail(Code::kIo, "no reader");
  };
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(to_child[1]);  // so that it ends when this process does
    ::close(to_parent[0]);
    auto ran = attach_and_run(to_child[0], to_parent[1]);
    if (!ran) std::fprintf(stderr, "the attaching process: %s\n", ran.error().message.c_str());
    ::_exit(ran ? 0 : 1);
  }
  ::close(to_parent[1]);
  ::close(to_child[0]);
  TIE_TRY(const Gpu gpu, open_gpu(o));
  TIE_TRY(LoadedWeights owner, load_weights(gpu.driver, file));
  TIE_TRY(const IpcHandle handle, owner.memory.share());
  const Bytes table = owner.table.serialize();
  const Message message{handle, table.size()};
  if (::write(to_child[1], &message, sizeof message) < 0 || ::write(to_child[1], table.data(), table.size()) < 0)
    return fail_errno("writing to the attaching process", errno);
  std::vector<float> theirs(tokens.size() * owner.table.config.n_vocab);
  size_t got = 0;
  for (ssize_t n; got < theirs.size() * 4; got += static_cast<size_t>(n))
    if ((n = ::read(to_parent[0], reinterpret_cast<char*>(theirs.data()) + got, theirs.size() * 4 - got)) <= 0) break;
  int status = 1;
  ::waitpid(child, &status, 0);
  TIE_TRY(Rig rig, Rig::make(gpu, owner.table, std::move(owner.memory), 32, 4, 8));
  TIE_TRY(const auto mine, rig.evaluate(tokens, 32));
  found["bytes"] = owner.table.bytes;
  found["ok"] = status == 0 && mine == theirs;
  return {};
}

double seconds_of(const std::function<Result<void>()>& work, int times, Result<void>& outcome) {
  const auto began = std::chrono::steady_clock::now();
  for (int i = 0; i < times && outcome; ++i) outcome = work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count() / times;
}

// One size of model: decode at several batches, prefill.
Result<void> model_speed(const Options& o, const ModelConfig& config, cuda::Format format, json& found) {
  TIE_TRY(const Gpu gpu, open_gpu(o));
  TIE_TRY(LoadedWeights weights, synthetic_weights(gpu.driver, config, format));
  const uint64_t bytes = weights.table.bytes;
  const uint32_t depth = o.quick ? 16 : 512, most = o.quick ? 2 : 256, prompt = o.quick ? 8 : 2048;
  const uint32_t blocks_each = (depth + 32) / 32 + 1;
  const uint32_t blocks = std::max(most * blocks_each, prompt / 32);
  TIE_TRY(Rig rig, Rig::make(gpu, weights.table, std::move(weights.memory), std::max(prompt, most), most, blocks));
  std::vector<uint32_t> table(blocks);
  std::iota(table.begin(), table.end(), 0);
  const std::vector<int32_t> tokens(std::max(prompt, most), 7);
  found["weight_bytes"] = bytes;
  found["report"] = rig.model->kernels();
  json& decode = found["decode"] = json::array();
  for (uint32_t batch = 1; batch <= most; batch *= o.quick ? 2 : 4) {
    std::vector<SequenceSpan> spans;
    std::vector<uint32_t> rows(batch);
    std::iota(rows.begin(), rows.end(), 0);
    for (uint32_t i = 0; i < batch; ++i)
      spans.push_back({i, 1, depth, std::span(table).subspan(size_t{i} * blocks_each, blocks_each)});
    const std::vector<BestOf> wants(batch, BestOf{.k = 1});
    auto step = [&]() -> Result<void> {
      TIE_TRY([[maybe_unused]] auto best,
              rig.model->forward({std::span(tokens).first(batch), spans, rows, {}, wants}, rig.kv));
      return {};
    };
    Result<void> outcome = step();
    if (outcome) outcome = step();  // the second captures the graph
    const double seconds = seconds_of(step, o.quick ? 1 : 50, outcome);
    if (!outcome) return std::unexpected(std::move(outcome.error()));
    decode.push_back(
        {{"batch", batch}, {"tok_s", batch / seconds}, {"weights_gb_s", static_cast<double>(bytes) / seconds / 1e9}});
  }
  const SequenceSpan span{0, prompt, 0, table};
  const uint32_t last = prompt - 1;
  const BestOf want{.k = 1};
  auto prefill = [&]() -> Result<void> {
    TIE_TRY([[maybe_unused]] auto best,
            rig.model->forward({std::span(tokens).first(prompt), {&span, 1}, {&last, 1}, {}, {&want, 1}}, rig.kv));
    return {};
  };
  Result<void> outcome = prefill();
  const double seconds = seconds_of(prefill, o.quick ? 1 : 5, outcome);
  if (!outcome) return std::unexpected(std::move(outcome.error()));
  const double nq = config.n_heads * config.head_dim, nkv = config.n_kv_heads * config.head_dim;
  const double weights_each = config.n_layers * config.n_embd * (2 * nq + 2 * nkv + 3.0 * config.n_ff);
  const double attention = 2.0 * config.n_layers * prompt * prompt * nq;  // causal: half of four products
  found["prefill"] = {{"tokens", prompt},
                      {"tok_s", prompt / seconds},
                      {"tflop_s", (2 * weights_each * prompt + attention) / seconds / 1e12}};
  found["ok"] = true;
  return {};
}

std::vector<CheckCase> speed_cases(const Options& o) {
  std::vector<CheckCase> cases;
  const ModelConfig one = o.quick ? llama_config(1, 256, 256, 8, 2, 32, 320)
                                  : llama_config(16, 2048, 8192, 32, 8, 64, 128256),
                    eight = llama_config(32, 4096, 14336, 32, 8, 128, 128256);
  auto add = [&](const char* name, const ModelConfig& config, cuda::Format format) {
    cases.push_back({name, [=](json& found) { return model_speed(o, config, format, found); }});
  };
  add("1b-bf16", one, cuda::Format::kBf16);
  add("1b-q4", one, cuda::Format::kQ4);
  if (o.quick) return cases;
  add("8b-bf16", eight, cuda::Format::kBf16);
  add("8b-q4", eight, cuda::Format::kQ4);
  return cases;
}

Result<std::vector<CheckCase>> cases_of(const Options& o) {
  if (o.command == "models") return model_cases(o);
  if (o.command == "speed") return speed_cases(o);
  if (o.command == "graphs")
    return std::vector<CheckCase>{{"graphs", [o](json& found) { return check_graphs(o, found); }}};
  if (o.command == "ipc") return std::vector<CheckCase>{{"ipc", [o](json& found) { return check_ipc(o, found); }}};
  if (o.command != "units" && o.command != "kernels")
    return fail(Code::kBadRequest, "units, models, graphs, ipc, kernels or speed?");
  Gpu gpu;  // --list asks no GPU
  if (!o.list) {
    TIE_TRY(gpu, open_gpu(o));
  }
  static std::vector<std::byte> kernels;
  kernels = std::move(gpu.kernels);
  return o.command == "units" ? units_of_gpu(gpu.driver, kernels) : speed_of_kernels(gpu.driver, kernels, o.quick);
}

std::vector<std::string> words_of(const std::string& list) {
  std::vector<std::string> out;
  std::istringstream in(list);
  for (std::string word; std::getline(in, word, ',');) out.push_back(word);
  return out;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--quick")
      options.quick = true;
    else if (word == "--list")
      options.list = true;
    else if (word == "--portable")
      options.portable = true;
    else if (word == "--skip" && i + 1 < argc)
      options.skip = words_of(argv[++i]);
    else if (word == "--kernels" && i + 1 < argc)
      options.kernels = argv[++i];
    else if (word == "--driver" && i + 1 < argc)
      options.driver = argv[++i];
    else
      options.command = word;
  }
  const auto cases = cases_of(options);
  if (!cases) {
    std::printf("%s\n", json{{"error", cases.error().message}}.dump().c_str());
    return 1;
  }
  if (options.list) {
    list_cases(*cases);
    return 0;
  }
  return run_cases(*cases, options.skip) ? 0 : 1;
}
