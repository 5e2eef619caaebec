// The whole way of a conversation's KV: a real store, real sealing, and a runtime whose blocks are a function of the
// tokens before them, so that a block in the wrong place is noticed. Then the same with everything that can be wrong.
// This file is over 500 lines because the runtime and the writer of the store that it stands in for serve it alone.
#include "request/cloud_app/conversation_cache.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "base/random.h"
#include "cache/store/store_server.h"
#include "crypto/library_start.h"
#include "kvxfer.pb.h"
#include "os/framed_message.h"
#include "request/cloud_app/limits.h"
#include "store.pb.h"

namespace tie::request::app {
namespace {

// As the program does first: sealing must work without what this leaves out.
[[maybe_unused]] const bool kStarted = (crypto::start_library_for_one_request(), true);

constexpr uint32_t kBlockTokens = 16;
constexpr size_t kBlockBytes = 160 << 10;  // a segment travels as a descriptor

using Tokens = std::vector<int32_t>;

Tokens words(size_t n, int32_t salt) {
  Tokens out(n);
  for (size_t i = 0; i < n; ++i) out[i] = static_cast<int32_t>(i * 31 + static_cast<size_t>(salt) * 1009);
  return out;
}
Tokens join(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

std::vector<std::byte> block_of(std::span<const int32_t> tokens, uint32_t index) {
  auto before = tokens.first((index + 1) * kBlockTokens);
  auto digest = crypto::sha256({reinterpret_cast<const uint8_t*>(before.data()), before.size_bytes()});
  std::vector<std::byte> out(kBlockBytes);
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<std::byte>(digest[i % digest.size()] + i / 256);
  return out;
}

// Serves kvxfer.sock on one connection.
class FakeRuntime {
 public:
  FakeRuntime(os::Fd socket, uint8_t release, uint8_t layout)
      : release_(release), layout_(layout), socket_(std::move(socket)) {
    thread_ = std::thread([this] { serve(); });
  }
  ~FakeRuntime() { thread_.join(); }

  // What the engine would do: takes the import, gives the whole blocks of `tokens` that were asked for. Returns how
  // many tokens it took over.
  uint32_t run(const ConversationCache::Handles& handles, std::span<const int32_t> tokens, size_t n_prompt) {
    uint32_t taken = 0;
    if (!handles.kv_import.empty()) {
      taken = *import_->wait_finished(Deadline::in_ms(0));
      EXPECT_LT(taken, n_prompt);
      for (uint32_t i = 0; i < taken / kBlockTokens; ++i) {
        auto block = *import_->committed_block(i);
        auto wanted = block_of(tokens, i);
        EXPECT_TRUE(std::ranges::equal(block, wanted)) << "block " << i << " is not that of these tokens";
      }
    }
    exported_ = 0;
    if (handles.kv_export.empty()) return taken;
    if (abort_export) {
      export_->abort();
      return taken;
    }
    auto whole = static_cast<uint32_t>((tokens.size() - 1) / kBlockTokens);
    uint32_t n = whole > first_ ? std::min(whole - first_, export_->description().block_count) : 0;
    for (uint32_t i = 0; i < n; ++i) EXPECT_TRUE(export_->write_block(i, block_of(tokens, first_ + i)));
    export_->finish(n * kBlockTokens);
    exported_ = n * kBlockTokens;
    return taken;
  }
  uint32_t exported() const { return exported_; }
  bool abort_export = false;

 private:
  void serve() {
    for (;;) {
      auto got = os::receive_message<v1::KvxferRequest>(socket_.get(), 4096, Deadline::in_ms(20'000), 1);
      if (!got) return;
      v1::KvxferReply reply;
      reply.set_model_id(std::string(32, 'm'));
      reply.set_release_id(std::string(32, static_cast<char>(release_)));
      reply.set_layout_id(std::string(32, static_cast<char>(layout_)));
      reply.set_block_tokens(kBlockTokens);
      reply.set_block_bytes(kBlockBytes);
      int fd = -1;
      if (got->message.has_offer_import()) import_ = std::move(*cache::KvConsumer::attach(std::move(got->fds.at(0))));
      if (got->message.has_request_export()) {
        const auto& wanted = got->message.request_export();
        cache::KvDescription d{.block_count = wanted.max_tokens() / kBlockTokens,
                               .block_tokens = kBlockTokens,
                               .block_bytes = kBlockBytes};
        d.model_id.fill('m');
        d.release_id.fill(release_);
        d.layout_id.fill(layout_);
        first_ = wanted.first_token() / kBlockTokens;
        export_ = std::move(*cache::KvProducer::create(d));
        fd = export_->fd();
      }
      auto fds = fd >= 0 ? std::span<const int>(&fd, 1) : std::span<const int>();
      if (!os::send_message(socket_.get(), reply, Deadline::in_ms(1000), fds)) return;
    }
  }
  const uint8_t release_, layout_;
  os::Fd socket_;
  std::optional<cache::KvConsumer> import_;
  std::optional<cache::KvProducer> export_;
  uint32_t first_ = 0, exported_ = 0;
  std::thread thread_;
};

TurnKeys keys(int read, int write, uint32_t awaited_tokens = 0) {
  auto key = [](int fill) {
    return fill == 0 ? SecretBytes() : SecretBytes::copy_of(Bytes(32, static_cast<uint8_t>(fill)));
  };
  return {key(read), key(write), awaited_tokens, read == 0 && write == 0};
}

class ConversationTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = (std::filesystem::temp_directory_path() / ("conversation-" + random_hex(6))).string();
    std::filesystem::create_directory(folder_);
    start_store();
  }
  void TearDown() override {
    stop_store();
    std::filesystem::remove_all(folder_);
  }
  void start_store() {
    stop_ = os::Fd(::eventfd(0, EFD_CLOEXEC));
    store_ = std::make_unique<cache::Store>(store_limits);
    listener_ = *os::listen_unix(folder_ + "/cache.sock");
    server_ = std::thread([this] { (void)cache::serve_store(*store_, listener_.get(), stop_.get()); });
  }
  void stop_store() {
    if (!server_.joinable()) return;
    uint64_t one = 1;
    (void)!::write(stop_.get(), &one, sizeof one);
    server_.join();
    listener_.close();
    store_.reset();  // it loses everything, as it should
  }
  // As cloudboardd opens it.
  os::Fd connect_store() {
    auto fd = os::connect_unix(folder_ + "/cache.sock", Deadline::in_ms(1000));
    if (!fd) return os::Fd();
    v1::StoreRequest bind;
    bind.mutable_bind()->set_principal(std::string(32, 'p'));
    (void)os::send_message(fd->get(), bind, Deadline::in_ms(1000));
    return std::move(*fd);
  }

  // One turn in pieces, so that two can overlap.
  struct Turn {
    std::unique_ptr<FakeRuntime> runtime;
    std::unique_ptr<ConversationCache> cache;
    ConversationCache::Handles handles;
    Tokens tokens;
    uint32_t cached = 0;
    ~Turn() { cache.reset(); }  // hangs up on the runtime, which ends its thread
  };
  std::unique_ptr<Turn> begin(const Tokens& prompt, const Tokens& answer, TurnKeys turn_keys, uint8_t release = 'r',
                              uint8_t layout = 'l') {
    auto turn = std::make_unique<Turn>();
    // KvLink connects by path.
    std::string path = folder_ + "/" + random_hex(4);
    auto listener = *os::listen_unix(path);
    auto link = *KvLink::connect(path);
    turn->runtime =
        std::make_unique<FakeRuntime>(*os::accept_unix(listener.get(), Deadline::in_ms(1000)), release, layout);
    turn->tokens = join(prompt, answer);
    turn->cache = std::make_unique<ConversationCache>(std::move(link), connect_store(), std::move(turn_keys));
    turn->handles = turn->cache->begin(prompt, prompt.size() + answer.size() + 40);
    turn->runtime->abort_export = abort_exports;
    turn->cached = turn->runtime->run(turn->handles, turn->tokens, prompt.size());
    turn->cache->imported();
    if (turn->cache->wants_ephemeral_key() && derived_key != 0)
      turn->cache->set_ephemeral_key(SecretBytes::copy_of(Bytes(32, derived_key)));
    return turn;
  }
  void finish(Turn& turn) { turn.cache->finish(turn.tokens, turn.runtime->exported()); }
  uint32_t run(const Tokens& prompt, const Tokens& answer, TurnKeys turn_keys, uint8_t release = 'r',
               uint8_t layout = 'l') {
    auto turn = begin(prompt, answer, std::move(turn_keys), release, layout);
    finish(*turn);
    return turn->cached;
  }

  // ---- someone who can write the store ----
  cache::CacheIdentity identity(uint8_t release = 'r') {
    cache::CacheIdentity out;
    out.model_id.fill('m');
    out.release_id.fill(release);
    out.layout_id.fill('l');
    return out;
  }
  struct Stored {
    crypto::Digest manifest_id;
    Bytes manifest;
    std::vector<crypto::Digest> segment_ids;
    std::vector<Bytes> segments;
  };
  Stored stored(int key) {
    Stored out;
    cache::EnsembleWarden warden(identity());
    EXPECT_TRUE(warden.set_key(SecretBytes::copy_of(Bytes(32, static_cast<uint8_t>(key)))));
    cache::StoreClient client(connect_store());
    out.manifest_id = *warden.manifest_id();
    auto manifest = client.get(out.manifest_id, Deadline::in_ms(1000));
    EXPECT_TRUE(manifest) << manifest.error().message;
    if (!manifest) return out;
    out.manifest = Bytes(manifest->bytes().begin(), manifest->bytes().end());
    auto opened = warden.open_manifest(out.manifest);
    EXPECT_TRUE(opened);
    for (auto& segment : opened->segments) {
      out.segment_ids.push_back(*warden.segment_id(segment));
      auto entry = client.get(out.segment_ids.back(), Deadline::in_ms(1000));
      EXPECT_TRUE(entry);
      out.segments.emplace_back(entry->bytes().begin(), entry->bytes().end());
    }
    return out;
  }
  void overwrite(const crypto::Digest& id, const Bytes& bytes) {
    cache::StoreClient client(connect_store());
    EXPECT_TRUE(client.remove(id, Deadline::in_ms(1000)));
    if (bytes.empty()) return;
    auto memory = *os::create_memfd("tampered", bytes.size());
    {
      auto place = *os::Mapping::read_write(memory.get());
      std::memcpy(place.writable().data(), bytes.data(), bytes.size());
    }
    EXPECT_TRUE(os::add_seals(memory.get(), os::kSealAll));
    EXPECT_TRUE(client.put(id, memory, bytes.size(), 0, Deadline::in_ms(1000)));
  }
  void overwrite_manifest(const crypto::Digest& id, const Bytes& bytes) {
    cache::StoreClient client(connect_store());
    EXPECT_TRUE(client.remove(id, Deadline::in_ms(1000)));
    EXPECT_TRUE(client.swap(id, {}, bytes, 0, Deadline::in_ms(1000)));
  }
  cache::StoreCounters counters() {
    stop_settled();
    return store_->counters();
  }
  // The server handles messages in order: an answered question means that what came before is done.
  void stop_settled() {
    cache::StoreClient client(connect_store());
    (void)client.remove(cache::EntryId{}, Deadline::in_ms(1000));
  }

  uint64_t looks() {
    auto now = counters();
    return now.hits + now.misses;
  }

  bool abort_exports = false;
  uint8_t derived_key = 9;
  cache::StoreLimits store_limits;
  std::string folder_;
  os::Fd stop_, listener_;
  std::unique_ptr<cache::Store> store_;
  std::thread server_;
};

const Tokens kFirst = words(100, 1), kAnswer = words(30, 2), kSecond = words(20, 3);

TEST_F(ConversationTest, EachTurnFindsWhatTheOnesBeforeLeft) {
  EXPECT_EQ(run(kFirst, kAnswer, keys(0, 1)), 0u);
  Tokens prompt = join(join(kFirst, kAnswer), kSecond);
  EXPECT_EQ(run(prompt, words(40, 4), keys(1, 1)), 128u);
  EXPECT_EQ(stored(1).segments.size(), 2u) << "a turn appends";
  Tokens third = join(join(prompt, words(40, 4)), words(5, 5));
  EXPECT_EQ(run(third, words(3, 6), keys(1, 1)), 176u);
}

// As when the next turn is typed before the last one is sealed. The turns are long because that bounds the wait.
TEST_F(ConversationTest, ATurnThatIsStillBeingWrittenIsWaitedFor) {
  const Tokens long_answer = words(2000, 2), prompt = join(join(kFirst, long_answer), kSecond);
  auto finish_late = [&](Turn& turn) {
    return std::thread([this, &turn] {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      finish(turn);
    });
  };
  auto first = begin(kFirst, long_answer, keys(0, 1));
  std::thread writer = finish_late(*first);
  auto second = begin(prompt, words(400, 4), keys(1, 1, 2100));
  writer.join();
  EXPECT_EQ(second->cached, 2096u);
  writer = finish_late(*second);
  Tokens third = join(second->tokens, words(5, 5));
  EXPECT_EQ(run(third, words(3, 6), keys(1, 1, 2520)), 2512u) << "there was a manifest, but not the awaited one";
  writer.join();
}

TEST_F(ConversationTest, ATurnThatNeverCameIsNotWaitedForLong) {
  int64_t start_ms = monotonic_ms();
  EXPECT_EQ(run(kFirst, kAnswer, keys(1, 1, UINT32_MAX)), 0u);
  EXPECT_GE(monotonic_ms() - start_ms, kCacheAwaitMs);
  EXPECT_LT(monotonic_ms() - start_ms, 10 * kCacheAwaitMs);
}

struct RefusingStoreTest : ConversationTest {
  RefusingStoreTest() { store_limits.max_entry_bytes = 2 << 20; }
  const Tokens refused_answer = words(2000, 2);
};

// How often it looks tells whether it waits: once at each entry that it wants.
TEST_F(RefusingStoreTest, ATurnThatTheStoreRefusedIsNotWaitedFor) {
  run(kFirst, refused_answer, keys(0, 1));
  EXPECT_EQ(stored(1).segments.size(), 0u);
  auto before = looks();
  Tokens prompt = join(join(kFirst, refused_answer), kSecond);
  EXPECT_EQ(run(prompt, kAnswer, keys(1, 0, 2100)), 0u);
  EXPECT_EQ(looks() - before, 1u);
}

TEST_F(RefusingStoreTest, ATurnThatTheStoreRefusedLosesNothingOfTheOneBefore) {
  run(kFirst, kAnswer, keys(0, 1));
  Tokens prompt = join(join(kFirst, kAnswer), kSecond);
  EXPECT_EQ(run(prompt, refused_answer, keys(1, 1)), 128u);
  auto before = looks();
  prompt = join(join(prompt, refused_answer), kSecond);
  EXPECT_EQ(run(prompt, kAnswer, keys(1, 0, 2150)), 128u);
  EXPECT_EQ(looks() - before, 2u) << "the manifest and the segment that there is";
}

TEST_F(ConversationTest, ATurnWhoseExportFailedIsNotWaitedForAndLosesNothing) {
  run(kFirst, kAnswer, keys(0, 1));
  const Tokens long_answer = words(2000, 2);
  Tokens prompt = join(join(kFirst, kAnswer), kSecond);
  abort_exports = true;
  EXPECT_EQ(run(prompt, long_answer, keys(1, 1)), 128u);
  abort_exports = false;
  auto before = looks();
  prompt = join(join(prompt, long_answer), kSecond);
  EXPECT_EQ(run(prompt, kAnswer, keys(1, 1, 2150)), 128u);
  EXPECT_EQ(looks() - before, 2u);
  EXPECT_EQ(run(join(prompt, kAnswer), kAnswer, keys(1, 1)), 2192u) << "the next one made good for it";
}

TEST_F(ConversationTest, AnEarlierTurnThatCouldNotBeReadIsNotLostToOneThatKeepsNothing) {
  run(kFirst, kAnswer, keys(0, 1));
  Tokens asked_again = join(kFirst, kAnswer);
  abort_exports = true;
  run(asked_again, words(100, 3), keys(0, 1));  // reads nothing
  abort_exports = false;
  EXPECT_EQ(run(join(asked_again, kSecond), kAnswer, keys(1, 0)), 128u);
}

TEST_F(ConversationTest, AShortTurnWritesNothingNewAndLosesNothing) {
  run(kFirst, kAnswer, keys(0, 1));
  Tokens prompt = join(join(kFirst, kAnswer), words(3, 3));
  EXPECT_EQ(run(prompt, words(2, 4), keys(1, 1)), 128u);
  EXPECT_EQ(run(join(prompt, words(30, 5)), words(2, 4), keys(1, 1)), 128u);
}

TEST_F(ConversationTest, AnEditedHistoryKeepsTheCommonPrefix) {
  run(kFirst, kAnswer, keys(0, 1));
  Tokens edited(kFirst.begin(), kFirst.begin() + 70);
  edited = join(edited, words(60, 8));
  EXPECT_EQ(run(edited, words(30, 9), keys(1, 1)), 64u);
  EXPECT_EQ(run(join(edited, words(30, 9)), words(4, 9), keys(1, 1)), 144u) << "and the edited one is found next";
  EXPECT_EQ(counters().entries, stored(1).segments.size() + 1) << "what nothing names any more is gone";
}

TEST_F(ConversationTest, ABranchReadsTheOldKeyAndWritesItsOwn) {
  run(kFirst, kAnswer, keys(0, 1));
  Tokens branch = join(kFirst, words(50, 7));
  EXPECT_EQ(run(branch, words(30, 8), keys(1, 2)), 96u);
  EXPECT_EQ(run(join(branch, words(30, 8)), words(4, 9), keys(2, 2)), 176u);
  EXPECT_EQ(run(join(join(kFirst, kAnswer), kSecond), words(4, 9), keys(1, 1)), 128u)
      << "the other branch is untouched";
}

TEST_F(ConversationTest, TwoTurnsAtOnceCannotMix) {
  run(kFirst, kAnswer, keys(0, 1));
  Tokens base = join(kFirst, kAnswer);
  auto a = begin(join(base, words(40, 5)), words(30, 6), keys(1, 1));
  auto b = begin(join(base, words(40, 7)), words(30, 8), keys(1, 1));
  EXPECT_EQ(a->cached, 128u);
  EXPECT_EQ(b->cached, 128u);
  finish(*a);
  finish(*b);  // the manifest is another by now
  EXPECT_EQ(counters().conflicts, 1u);
  EXPECT_EQ(counters().entries, 3u) << "what the second wrote is deleted again";
  EXPECT_EQ(run(join(join(base, words(40, 5)), words(30, 6)), words(4, 9), keys(1, 1)), 192u);
}

TEST_F(ConversationTest, ARequestAskedAgainReplacesItsOwn) {
  run(kFirst, kAnswer, keys(0, 1));
  run(kFirst, words(60, 9), keys(0, 1));
  EXPECT_EQ(counters().entries, 2u);
  EXPECT_EQ(run(join(kFirst, words(60, 9)), words(4, 9), keys(1, 1)), 144u);
}

// ---- nothing of this may show in the text: less reuse, or none ----

TEST_F(ConversationTest, AWrongKeyFindsNothing) {
  run(kFirst, kAnswer, keys(0, 1));
  EXPECT_EQ(run(join(kFirst, kSecond), kAnswer, keys(2, 2)), 0u);
}

TEST_F(ConversationTest, AnotherReleaseOpensNothingAndWritesAnew) {
  run(kFirst, kAnswer, keys(0, 1));
  Tokens prompt = join(join(kFirst, kAnswer), kSecond);
  EXPECT_EQ(run(prompt, words(30, 4), keys(1, 1), 'x'), 0u);
  EXPECT_EQ(run(join(prompt, words(30, 4)), words(4, 5), keys(1, 1), 'x'), 176u);
}

// As when a release or model.toml changes the type of the KV cache.
TEST_F(ConversationTest, AnotherLayoutOfTheCacheOpensNothingAndWritesAnew) {
  run(kFirst, kAnswer, keys(0, 1));
  Tokens prompt = join(join(kFirst, kAnswer), kSecond);
  EXPECT_EQ(run(prompt, words(30, 4), keys(1, 1), 'r', 'q'), 0u);
  EXPECT_EQ(run(join(prompt, words(30, 4)), words(4, 5), keys(1, 1), 'r', 'q'), 176u);
}

TEST_F(ConversationTest, ATamperedFirstSegmentIsAColdEvaluation) {
  run(kFirst, kAnswer, keys(0, 1));
  Stored s = stored(1);
  s.segments[0][5000] ^= 1;
  overwrite(s.segment_ids[0], s.segments[0]);
  Tokens prompt = join(join(kFirst, kAnswer), kSecond);
  EXPECT_EQ(run(prompt, words(30, 4), keys(1, 1)), 0u);
  EXPECT_EQ(run(join(prompt, words(30, 4)), words(4, 5), keys(1, 1)), 176u) << "that turn wrote it all anew";
}

TEST_F(ConversationTest, ATamperedLaterSegmentLeavesThePrefix) {
  Tokens prompt = join(join(kFirst, kAnswer), kSecond), later = join(prompt, words(40, 4));
  for (int how = 0; how < 4; ++how) {
    int key = 10 + how;
    run(kFirst, kAnswer, keys(0, key));
    run(prompt, words(40, 4), keys(key, key));
    Stored s = stored(key);
    ASSERT_EQ(s.segments.size(), 2u);
    Bytes changed = s.segments[1];
    if (how == 0) changed.back() ^= 1;                 // a tag
    if (how == 1) changed.resize(changed.size() - 1);  // truncated
    if (how == 2) changed = s.segments[0];             // swapped
    if (how == 3) changed.clear();                     // evicted
    overwrite(s.segment_ids[1], changed);
    EXPECT_EQ(run(join(later, words(5, 5)), words(3, 6), keys(key, key)), 128u) << how;
  }
}

TEST_F(ConversationTest, AReplayedManifestIsAnOlderPrefix) {
  run(kFirst, kAnswer, keys(0, 1));
  Stored old = stored(1);
  Tokens prompt = join(join(kFirst, kAnswer), kSecond);
  run(prompt, words(40, 4), keys(1, 1));
  overwrite_manifest(old.manifest_id, old.manifest);
  EXPECT_EQ(run(join(prompt, words(40, 4)), words(3, 6), keys(1, 1)), 128u);
}

TEST_F(ConversationTest, SegmentsOfAnotherConversationDoNotMixIn) {
  run(kFirst, kAnswer, keys(0, 1));
  run(words(100, 50), words(30, 51), keys(0, 2));
  Stored mine = stored(1), other = stored(2);
  overwrite(mine.segment_ids[0], other.segments[0]);
  EXPECT_EQ(run(join(join(kFirst, kAnswer), kSecond), kAnswer, keys(1, 1)), 0u);
  overwrite_manifest(mine.manifest_id, other.manifest);
  EXPECT_EQ(run(join(join(kFirst, kAnswer), kSecond), kAnswer, keys(1, 1)), 0u);
}

TEST_F(ConversationTest, AnAbortedExportKeepsNothing) {
  abort_exports = true;
  run(kFirst, kAnswer, keys(0, 1));
  EXPECT_EQ(counters().puts, 1u) << "that there is nothing";
  EXPECT_EQ(stored(1).segments.size(), 0u);
}

TEST_F(ConversationTest, AStoreThatIsGoneHarmsNothing) {
  run(kFirst, kAnswer, keys(0, 1));
  auto turn = begin(join(join(kFirst, kAnswer), kSecond), kAnswer, keys(1, 1));
  EXPECT_EQ(turn->cached, 128u);
  stop_store();
  finish(*turn);
  EXPECT_EQ(run(kFirst, kAnswer, keys(1, 1)), 0u) << "none to connect to";
  start_store();
  EXPECT_EQ(run(kFirst, kAnswer, keys(1, 1)), 0u) << "it begins empty";
  EXPECT_EQ(run(join(kFirst, kAnswer), kAnswer, keys(1, 1)), 128u);
}

TEST_F(ConversationTest, AStoreThatHangsCostsAMomentAndNoMore) {
  stop_store();
  listener_ = *os::listen_unix(folder_ + "/cache.sock");  // takes connections, never answers
  int64_t start_ms = monotonic_ms();
  auto turn = begin(kFirst, kAnswer, keys(1, 1));
  EXPECT_LT(monotonic_ms() - start_ms, 5 * kCacheLookupMs);
  EXPECT_EQ(turn->cached, 0u);
  finish(*turn);
  EXPECT_LT(monotonic_ms() - start_ms, 10'000);
}

TEST_F(ConversationTest, WithoutATurnKeyTheEntryIsDeletedAtTheEnd) {
  auto turn = begin(kFirst, kAnswer, keys(0, 0));
  EXPECT_EQ(turn->runtime->exported(), kMaxEphemeralBlocks * kBlockTokens) << "nothing can ever use more of it";
  finish(*turn);
  EXPECT_EQ(counters().puts, 2u) << "a segment and a manifest were there";
  EXPECT_EQ(counters().entries, 0u);
}

TEST_F(ConversationTest, WithoutAnyKeyNothingIsWritten) {
  derived_key = 0;
  run(kFirst, kAnswer, keys(0, 0));
  EXPECT_EQ(counters().puts, 0u);
}

TEST_F(ConversationTest, AReadKeyAloneWritesNothing) {
  run(kFirst, kAnswer, keys(0, 1));
  auto puts = counters().puts;
  EXPECT_EQ(run(join(join(kFirst, kAnswer), kSecond), kAnswer, keys(1, 0)), 128u);
  EXPECT_EQ(counters().puts, puts);
}

}  // namespace
}  // namespace tie::request::app
