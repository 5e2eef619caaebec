// What a conversation's cache costs on one core: the kvxfer copies against memcpy over the same kind of memory, sealing
// and opening against libcrypto's bare AES-256-GCM at the same block size, and cache_stored's answer times at the sizes
// that it must hold. One JSON object per line on standard output; `./dev bench cache` makes the table and adds
// `openssl speed`.
#include <fmt/format.h>
#include <openssl/evp.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstring>
#include <functional>
#include <optional>
#include <tuple>

#include "base/random.h"
#include "cache/ensemble_warden/ensemble_warden.h"
#include "cache/kvxfer/kv_buffer.h"
#include "cache/store/store_server.h"
#include "os/framed_message.h"
#include "os/unix_socket.h"
#include "store.pb.h"

namespace {

using namespace tie;

// SmolLM2-135M: 16 tokens in a block, 23 kB of KV a token; 64 blocks are the thousand tokens of a long conversation.
constexpr uint64_t kBlockBytes = 368'640;
constexpr uint32_t kBlocks = 64;
constexpr uint64_t kSegmentBytes = kBlockBytes * kBlocks;

template <typename T>
T must(Result<T> result) {
  if (result) return std::move(*result);
  fmt::print(stderr, "cache_bench: {}\n", result.error().message);
  std::exit(1);
}
void must(const Result<void>& result) {
  if (result) return;
  fmt::print(stderr, "cache_bench: {}\n", result.error().message);
  std::exit(1);
}

// The best of many runs, interleaved by the caller: bytes a second.
double rate(size_t bytes, const std::function<void()>& work, const std::function<void()>& before = [] {}) {
  before();
  int64_t began = monotonic_us();
  work();
  return double(bytes) / double(std::max<int64_t>(monotonic_us() - began, 1)) * 1e6;
}

struct Best {
  double value = 0;
  void take(double one) { value = std::max(value, one); }
};

void print(const char* name, std::initializer_list<std::pair<const char*, double>> figures) {
  fmt::print("{{\"name\":\"{}\"", name);
  for (auto [key, value] : figures) fmt::print(",\"{}\":{:.4g}", key, value);
  fmt::print("}}\n");
  std::fflush(stdout);
}

void bench_kvxfer(int repeat) {
  std::vector<std::byte> source(kSegmentBytes, std::byte{3}), target(kSegmentBytes, std::byte{4});
  cache::KvDescription shape{.block_count = kBlocks, .block_tokens = 16, .block_bytes = kBlockBytes};
  std::optional<cache::KvProducer> producer;
  std::optional<cache::KvConsumer> consumer;
  os::Fd plain;
  std::optional<os::Mapping> shared;
  Best copy_in, write, copy_out, read;
  for (int i = 0; i < repeat; ++i) {
    // Both sides of the comparison touch fresh shared memory, whose pages the kernel has to zero first.
    copy_in.take(rate(
        kSegmentBytes,
        [&] {
          for (uint32_t b = 0; b < kBlocks; ++b)
            std::memcpy(shared->writable().data() + b * kBlockBytes, source.data() + b * kBlockBytes, kBlockBytes);
        },
        [&] {
          shared.reset();
          plain = must(os::create_memfd("plain", kSegmentBytes));
          shared = must(os::Mapping::read_write(plain.get()));
        }));
    write.take(rate(
        kSegmentBytes,
        [&] {
          for (uint32_t b = 0; b < kBlocks; ++b)
            must(producer->write_block(b, std::span(source).subspan(b * kBlockBytes, kBlockBytes)));
        },
        [&] {
          consumer.reset();
          producer.reset();
          producer = must(cache::KvProducer::create(shape));
        }));
    producer->finish(kBlocks * 16);
    consumer = must(cache::KvConsumer::attach(must(os::Fd(dup(producer->fd())).duplicate())));
    os::Mapping fresh = must(os::Mapping::read_only(plain.get()));
    copy_out.take(rate(kSegmentBytes, [&] { std::memcpy(target.data(), fresh.bytes().data(), kSegmentBytes); }));
    read.take(rate(kSegmentBytes, [&] {
      for (uint32_t b = 0; b < kBlocks; ++b) {
        must(consumer->wait_block(b, Deadline::in_ms(1000)));
        must(consumer->read_block(b, std::span(target).subspan(b * kBlockBytes, kBlockBytes)));
      }
    }));
  }
  print("kvxfer write", {{"gb_per_s", write.value / 1e9},
                         {"memcpy_gb_per_s", copy_in.value / 1e9},
                         {"ratio", write.value / copy_in.value}});
  print("kvxfer read", {{"gb_per_s", read.value / 1e9},
                        {"memcpy_gb_per_s", copy_out.value / 1e9},
                        {"ratio", read.value / copy_out.value}});
}

// libcrypto and nothing else, in one direction: one context, a nonce for each block, no additional data.
class BareCipher {
 public:
  explicit BareCipher(bool seals) : seals_(seals), context_(EVP_CIPHER_CTX_new()) {
    uint8_t key[32] = {7};
    EVP_CipherInit_ex(context_, EVP_aes_256_gcm(), nullptr, key, nullptr, seals);
  }
  ~BareCipher() { EVP_CIPHER_CTX_free(context_); }
  void run(ByteView in, size_t in_stride, std::span<uint8_t> out, size_t out_stride, uint32_t blocks) {
    uint8_t nonce[12] = {}, tag[16] = {};
    int written = 0;
    for (uint32_t b = 0; b < blocks; ++b) {
      nonce[11] = static_cast<uint8_t>(b);
      EVP_CipherInit_ex(context_, nullptr, nullptr, nullptr, nonce, seals_);
      EVP_CipherUpdate(context_, out.data() + b * out_stride, &written, in.data() + b * in_stride, int(kBlockBytes));
      if (!seals_) EVP_CIPHER_CTX_ctrl(context_, EVP_CTRL_AEAD_SET_TAG, 16, tag);
      EVP_CipherFinal_ex(context_, tag, &written);
      if (seals_) EVP_CIPHER_CTX_ctrl(context_, EVP_CTRL_AEAD_GET_TAG, 16, tag);
    }
  }

 private:
  bool seals_;
  EVP_CIPHER_CTX* context_;
};

// `blocks` decides whether a segment stays in the core's cache, as in `openssl speed`, or streams through memory.
void bench_warden(int repeat, uint32_t blocks, const std::string& where) {
  constexpr size_t kStride = kBlockBytes + 16;
  Bytes plain(blocks * kBlockBytes, 5), opened(plain.size(), 1), key(32, 7);
  cache::SegmentShape shape{.first_token = 0, .block_count = blocks, .block_tokens = 16, .block_bytes = kBlockBytes};
  Bytes sealed(must(cache::EnsembleWarden::sealed_segment_bytes(shape)), 1), bare(sealed.size(), 1);
  cache::EnsembleWarden warden(cache::CacheIdentity{});
  must(warden.set_key(SecretBytes::copy_of(key)));
  BareCipher sealer(true), opener(false);
  cache::SegmentReference reference;
  Best bare_seal, bare_open, seal, open;
  for (int i = 0; i < repeat; ++i) {
    bare_seal.take(rate(plain.size(), [&] { sealer.run(plain, kBlockBytes, bare, kStride, blocks); }));
    seal.take(rate(plain.size(), [&] {
      reference = must(warden.seal_segment(
          shape, [&](uint32_t b) { return ByteView(plain).subspan(b * kBlockBytes, kBlockBytes); }, sealed));
    }));
    bare_open.take(rate(plain.size(), [&] { opener.run(bare, kStride, opened, kBlockBytes, blocks); }));
    open.take(rate(plain.size(), [&] {
      must(warden.open_segment(reference, shape, sealed,
                               [&](uint32_t b) { return std::span(opened).subspan(b * kBlockBytes, kBlockBytes); }));
    }));
  }
  if (opened != plain) must(Result<void>(fail(Code::kCorrupt, "what was opened is not what was sealed")));
  for (auto [name, best, library] : {std::tuple{"seal ", seal, bare_seal}, {"open ", open, bare_open}})
    print((name + where).c_str(), {{"gb_per_s", best.value / 1e9},
                                   {"libcrypto_gb_per_s", library.value / 1e9},
                                   {"ratio", best.value / library.value},
                                   {"block_bytes", double(kBlockBytes)},
                                   {"ms_per_mb", 1e9 / best.value}});
}

os::Fd sealed_memory(size_t bytes, uint32_t number) {
  os::Fd fd = must(os::create_memfd("entry", bytes));
  {
    os::Mapping mapping = must(os::Mapping::read_write(fd.get()));
    std::memset(mapping.writable().data(), int(number), bytes);
  }
  must(os::add_seals(fd.get(), os::kSealAll));
  return fd;
}

v1::StoreReply ask(int socket, const v1::StoreRequest& request, int fd, std::vector<os::Fd>* got = nullptr) {
  must(os::send_message(socket, request, Deadline::in_ms(5000),
                        fd >= 0 ? std::span<const int>(&fd, 1) : std::span<const int>()));
  auto reply = must(os::receive_message<v1::StoreReply>(socket, 2 << 20, Deadline::in_ms(5000), 1));
  if (reply.message.has_error()) must(Result<void>(fail(Code::kInternal, reply.message.error().message())));
  if (got != nullptr) *got = std::move(reply.fds);
  return reply.message;
}

void set_id(std::string* id, uint32_t number) {
  auto digest = crypto::sha256(ByteView(reinterpret_cast<const uint8_t*>(&number), sizeof number));
  id->assign(reinterpret_cast<const char*>(digest.data()), digest.size());
}

double percentile(std::vector<int64_t>& times_us, double p) {
  std::sort(times_us.begin(), times_us.end());
  return double(times_us[std::min(times_us.size() - 1, size_t(p * double(times_us.size())))]) / 1000;
}

// `count` entries of `bytes`, all of which the store must still hold at the end. The copy is the client's reading of
// what it got.
void bench_store(int socket, const char* name, uint32_t first, uint32_t count, size_t bytes) {
  std::vector<int64_t> puts, gets, copies;
  Bytes target(bytes);
  for (uint32_t i = 0; i < count; ++i) {
    os::Fd memory = sealed_memory(bytes, i);
    v1::StoreRequest request;
    set_id(request.mutable_put()->mutable_entry_id(), first + i);
    request.mutable_put()->set_bytes(bytes);
    int64_t began = monotonic_us();
    ask(socket, request, memory.get());
    puts.push_back(monotonic_us() - began);
  }
  uint32_t held = 0;
  for (uint32_t i = 0; i < count; ++i) {
    v1::StoreRequest request;
    set_id(request.mutable_get()->mutable_entry_id(), first + i * 7919 % count);
    std::vector<os::Fd> fds;
    int64_t began = monotonic_us();
    v1::StoreReply reply = ask(socket, request, -1, &fds);
    gets.push_back(monotonic_us() - began);
    began = monotonic_us();
    if (fds.empty()) {
      std::memcpy(target.data(), reply.value().data(), reply.value().size());
    } else {
      os::Mapping mapping = must(os::Mapping::read_only(fds[0].get()));
      std::memcpy(target.data(), mapping.bytes().data(), bytes);
    }
    copies.push_back(monotonic_us() - began);
    held += reply.bytes() == bytes;
  }
  print(name, {{"entries", double(count)},
               {"held", double(held)},
               {"put_p50_ms", percentile(puts, 0.5)},
               {"put_p99_ms", percentile(puts, 0.99)},
               {"get_p50_ms", percentile(gets, 0.5)},
               {"get_p99_ms", percentile(gets, 0.99)},
               {"copy_p50_ms", percentile(copies, 0.5)}});
}

// The daemon's own loop in a process of its own.
void bench_stores() {
  std::string path = "/tmp/tie-cache-bench-" + std::to_string(getpid()) + ".sock";
  os::Fd listener = must(os::listen_unix(path));
  auto [stop, ours] = must(os::socket_pair());
  pid_t child = fork();
  if (child == 0) {
    ours.close();
    cache::Store store({.capacity_bytes = 3ull << 30});
    _exit(cache::serve_store(store, listener.get(), stop.get()) ? 0 : 1);
  }
  stop.close();
  os::Fd socket = must(os::connect_unix(path, Deadline::in_ms(2000)));
  v1::StoreRequest bind;
  bind.mutable_bind()->set_principal(std::string(32, 'p'));
  ask(socket.get(), bind, -1);
  bench_store(socket.get(), "store 64 KB", 0, 10'000, 64 << 10);
  bench_store(socket.get(), "store 25 MB", 100'000, 60, 25u << 20);
  ours.close();
  waitpid(child, nullptr, 0);
  unlink(path.c_str());
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("What a conversation's cache costs on one core.");
  int repeat = 15;
  std::string only;
  app.add_option("--repeat", repeat, "runs; the best of each counts")->check(CLI::Range(1, 1000));
  app.add_option("--only", only, "kvxfer, warden or store");
  CLI11_PARSE(app, argc, argv);
  if (only.empty() || only == "kvxfer") bench_kvxfer(repeat);
  if (only.empty() || only == "warden") {
    bench_warden(20 * repeat, 2, "in cache");
    bench_warden(repeat, kBlocks, "through memory");
  }
  if (only.empty() || only == "store") bench_stores();
  return 0;
}
