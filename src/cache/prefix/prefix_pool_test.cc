// A pool's whole life between an owner and runtimes, and every rule with the one thing that violates it.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <numeric>

#include "cache/prefix/pool_owner.h"
#include "cache/prefix/pool_writer.h"
#include "cache/prefix/restored_pool.h"

namespace tie::prefix {
namespace {

constexpr uint32_t kTokens = 4;
constexpr uint64_t kBytes = 4096;

crypto::Digest id(uint8_t fill) {
  crypto::Digest out;
  out.fill(fill);
  return out;
}
std::vector<int32_t> run(int32_t first, size_t n) {
  std::vector<int32_t> out(n);
  std::iota(out.begin(), out.end(), first);
  return out;
}
std::vector<std::byte> block_content(uint32_t index, uint8_t salt = 0) {
  return std::vector<std::byte>(kBytes, std::byte(index * 7 + 1 + salt));
}

class PoolTest : public testing::Test {
 protected:
  std::vector<PromptEntry> prompts_{{"a", run(0, 12), {}}, {"b", run(50, 9), {}}};
  PoolOwner owner_{{id(1), id(2)}, prompts_};
  Expected expected_{id(1), id(2), id(3), kTokens, kBytes};

  TrieMetadata plan() {
    TrieMetadata m = plan_blocks(prompts_, kTokens, kBytes).value();
    m.model_id = id(1);
    m.release_id = id(2);
    m.layout_id = id(3);
    return m;
  }
  // What a warming runtime does, up to the metadata.
  static TrieMetadata warm(os::Fd fd, TrieMetadata plan, uint8_t salt = 0) {
    auto writer = PoolWriter::create(std::move(fd), std::move(plan));
    EXPECT_TRUE(writer) << writer.error().message;
    for (uint32_t i = 0; i < 5; ++i) EXPECT_TRUE(writer->write_block(i, block_content(i, salt)));
    auto metadata = writer->finish();
    EXPECT_TRUE(metadata) << metadata.error().message;
    return *metadata;
  }
  os::Fd prepare(PoolOwner& owner, uint32_t rank = 0) {
    return std::move(owner.prepare(rank, kBytes, 5, id(3)).value());
  }
  TrieMetadata sealed() {
    TrieMetadata m = warm(prepare(owner_), plan());
    EXPECT_TRUE(owner_.seal(0, m));
    return m;
  }
  Result<RestoredPool> restore() {
    TIE_TRY(PoolOwner::Attached attached, owner_.attach(0));
    return RestoredPool::restore(std::move(attached.fd), std::move(attached.metadata), expected_);
  }
};

TEST_F(PoolTest, WarmSealRestoreReadsTheSameBlocksWithoutComputing) {
  EXPECT_EQ(owner_.attach(0).error().code, Code::kNotReady);
  sealed();
  EXPECT_TRUE(owner_.ready());
  for (int recycle = 0; recycle < 3; ++recycle) {
    auto pool = restore();
    ASSERT_TRUE(pool) << pool.error().message;
    auto prompt = run(0, 12);
    prompt.push_back(777);
    auto blocks = pool->trie().match(prompt);
    ASSERT_EQ(blocks.size(), 3u);
    std::vector<std::byte> out(kBytes);
    for (uint32_t block : blocks) {
      ASSERT_TRUE(pool->read_block(block, out));
      EXPECT_EQ(out, block_content(block));
    }
    ASSERT_NE(pool->find_prompt("b"), nullptr);
    EXPECT_EQ(pool->find_prompt("c"), nullptr);
  }
}

TEST_F(PoolTest, NobodyCanTakeAWritableMappingOfASealedPool) {
  sealed();
  auto attached = owner_.attach(0);
  ASSERT_TRUE(attached);
  int fd = attached->fd.get();
  EXPECT_EQ(::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
  void* readable = ::mmap(nullptr, kBytes, PROT_READ, MAP_SHARED, fd, 0);
  ASSERT_NE(readable, MAP_FAILED);
  EXPECT_NE(::mprotect(readable, kBytes, PROT_READ | PROT_WRITE), 0);
  ::munmap(readable, kBytes);
  EXPECT_LT(::pwrite(fd, "x", 1, 0), 0);
  EXPECT_NE(::ftruncate(fd, 0), 0);
  EXPECT_NE(::ftruncate(fd, 1 << 20), 0);
  EXPECT_NE(::fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), 0) << "the set of seals is final";
}

TEST_F(PoolTest, TheOwnerAcceptsNothingThatLacksASeal) {
  const int all[] = {F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_FUTURE_WRITE, F_SEAL_SEAL};
  for (int missing : all) {
    os::Fd fd = prepare(owner_);
    TrieMetadata m = plan();
    {
      auto mapping = os::Mapping::read_write(fd.get());
      ASSERT_TRUE(mapping);
      for (uint32_t i = 0; i < 5; ++i) {
        std::memcpy(mapping->writable().data() + i * kBytes, block_content(i).data(), kBytes);
        m.block_sha256[i] = block_digest(mapping->bytes(), kBytes, i);
      }
    }
    // F_SEAL_SEAL last: it forbids the others.
    int wanted = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;
    ASSERT_TRUE(os::add_seals(fd.get(), wanted & ~missing));
    auto accepted = owner_.seal(0, m);
    ASSERT_FALSE(accepted) << missing;
    EXPECT_EQ(accepted.error().code, Code::kPermissionDenied);
    EXPECT_FALSE(owner_.ready());
  }
}

TEST_F(PoolTest, TheOwnerAcceptsNothingThatDiffersFromWhatItKnows) {
  struct Case {
    const char* word;
    void (*breaks)(TrieMetadata&);
  };
  const Case cases[] = {
      {"another model", [](TrieMetadata& m) { m.model_id = id(9); }},
      {"another release", [](TrieMetadata& m) { m.release_id = id(9); }},
      {"another layout", [](TrieMetadata& m) { m.layout_id = id(9); }},
      {"other blocks", [](TrieMetadata& m) { m.block_bytes = kBytes * 2; }},
      {"other blocks", [](TrieMetadata& m) { m.block_sha256.emplace_back(); }},
      {"another digest", [](TrieMetadata& m) { m.block_sha256[3][0] ^= 1; }},
      {"is not the asset's", [](TrieMetadata& m) { m.prompts[0].tokens[0] = 40; }},  // a poisoned prompt
      {"is not the asset's", [](TrieMetadata& m) { m.prompts[1].id = "z"; }},
      {"one block for each", [](TrieMetadata& m) { m.block_tokens = 3; }},
      {"other prompts", [](TrieMetadata& m) { m.prompts.push_back({"extra", run(900, 3), {}}); }},
  };
  for (const Case& c : cases) {
    TrieMetadata m = warm(prepare(owner_), plan());
    c.breaks(m);
    auto accepted = owner_.seal(0, m);
    ASSERT_FALSE(accepted) << c.word;
    EXPECT_NE(accepted.error().message.find(c.word), std::string::npos) << accepted.error().message;
    EXPECT_FALSE(owner_.ready());
    EXPECT_EQ(owner_.seal(0, plan()).error().code, Code::kFailedPrecondition) << "the pool was dropped";
  }
}

TEST_F(PoolTest, ARuntimeRestoresNothingThatDiffersFromWhatItExpects) {
  struct Case {
    const char* word;
    void (*breaks)(Expected&);
  };
  const Case cases[] = {
      {"another model", [](Expected& e) { e.model_id = id(9); }},
      {"another release", [](Expected& e) { e.release_id = id(9); }},
      {"another layout", [](Expected& e) { e.layout_id = id(9); }},
      {"block size", [](Expected& e) { e.block_bytes = 1; }},
      {"block size", [](Expected& e) { e.block_tokens = kTokens + 1; }},
  };
  sealed();
  for (const Case& c : cases) {
    Expected e = expected_;
    c.breaks(e);
    auto attached = owner_.attach(0);
    ASSERT_TRUE(attached);
    auto pool = RestoredPool::restore(std::move(attached->fd), std::move(attached->metadata), e);
    ASSERT_FALSE(pool) << c.word;
    EXPECT_NE(pool.error().message.find(c.word), std::string::npos) << pool.error().message;
  }
  // An owner that lies: no seals, or another size than it says.
  auto honest = owner_.attach(0);
  ASSERT_TRUE(honest);
  os::Fd unsealed = std::move(os::create_memfd("unsealed", 5 * kBytes).value());
  EXPECT_EQ(RestoredPool::restore(std::move(unsealed), honest->metadata, expected_).error().code,
            Code::kPermissionDenied);
  os::Fd small = std::move(os::create_memfd("small", 4 * kBytes).value());
  ASSERT_TRUE(os::add_seals(small.get(), os::kSealFutureWrite));
  EXPECT_EQ(RestoredPool::restore(std::move(small), honest->metadata, expected_).error().code, Code::kCorrupt);
}

TEST_F(PoolTest, AByteChangedAfterTheSealsIsFoundWhenItsBlockIsRead) {
  os::Fd fd = prepare(owner_);
  // The warming instance keeps a writable mapping of its own: the seals cannot take it away.
  auto kept = os::Mapping::read_write(fd.get());
  ASSERT_TRUE(kept);
  TrieMetadata m = warm(std::move(*fd.duplicate()), plan());
  ASSERT_TRUE(owner_.seal(0, m));
  auto pool = restore();
  ASSERT_TRUE(pool);
  std::vector<std::byte> out(kBytes);
  ASSERT_TRUE(pool->read_block(2, out));
  kept->writable()[2 * kBytes + 17] ^= std::byte{1};
  auto read = pool->read_block(2, out);
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code, Code::kCorrupt);
  EXPECT_EQ(out, std::vector<std::byte>(kBytes)) << "nothing of a bad block is left to be used";
  EXPECT_TRUE(pool->read_block(1, out));
}

TEST_F(PoolTest, TheWriterKeepsNoMappingAndWritesEachBlockOnce) {
  os::Fd fd = prepare(owner_);
  auto writer = PoolWriter::create(std::move(fd), plan());
  ASSERT_TRUE(writer);
  EXPECT_EQ(writer->finish().error().code, Code::kFailedPrecondition);
  EXPECT_TRUE(writer->write_block(0, block_content(0)));
  EXPECT_EQ(writer->write_block(0, block_content(0)).error().code, Code::kAlreadyExists);
  EXPECT_EQ(writer->write_block(5, block_content(0)).error().code, Code::kOutOfRange);
  EXPECT_EQ(writer->write_block(1, std::vector<std::byte>(7)).error().code, Code::kBadRequest);
  os::Fd small = std::move(os::create_memfd("small", kBytes).value());
  EXPECT_EQ(PoolWriter::create(std::move(small), plan()).error().code, Code::kCorrupt);
}

TEST_F(PoolTest, ResetAndANewWarmUpStartOver) {
  sealed();
  owner_.reset();
  EXPECT_EQ(owner_.attach(0).error().code, Code::kNotReady);
  sealed();
  os::Fd again = prepare(owner_);
  EXPECT_FALSE(owner_.ready()) << "a warm-up in progress means that the old pool is gone";
}

TEST_F(PoolTest, LimitsAreChecked) {
  EXPECT_EQ(owner_.prepare(1, kBytes, 5, id(3)).error().code, Code::kOutOfRange);
  EXPECT_EQ(owner_.prepare(0, 0, 5, id(3)).error().code, Code::kBadRequest);
  EXPECT_EQ(owner_.prepare(0, kBytes, kMaxBlocks + 1, id(3)).error().code, Code::kBadRequest);
  EXPECT_EQ(owner_.prepare(0, kMaxBlockBytes, kMaxBlocks, id(3)).error().code, Code::kBadRequest);
  PoolOwner none({id(1), id(2)}, {});
  EXPECT_EQ(none.prepare(0, kBytes, 5, id(3)).error().code, Code::kFailedPrecondition);
}

TEST_F(PoolTest, WithTwoRanksItIsAllOrNothing) {
  PoolOwner owner({id(1), id(2)}, prompts_, 2);
  TrieMetadata first = warm(prepare(owner, 0), plan());
  ASSERT_TRUE(owner.seal(0, first));
  EXPECT_EQ(owner.attach(0).error().code, Code::kNotReady) << "one rank is not enough";
  TrieMetadata second = warm(prepare(owner, 1), plan(), 100);
  ASSERT_TRUE(owner.seal(1, second));
  EXPECT_TRUE(owner.attach(0));
  EXPECT_TRUE(owner.attach(1));
  EXPECT_TRUE(require_agreement(std::vector{trie_digest(first), trie_digest(second)}));

  // The second rank warms with another layout of the same prompts: each pool is sound, together they are not.
  owner.reset();
  ASSERT_TRUE(owner.seal(0, warm(prepare(owner, 0), plan())));
  TrieMetadata other = plan();
  std::swap(other.prompts[0], other.prompts[1]);
  ASSERT_TRUE(owner.seal(1, warm(prepare(owner, 1), other)));
  EXPECT_EQ(owner.attach(0).error().code, Code::kCorrupt);
  EXPECT_EQ(owner.attach(1).error().code, Code::kNotReady) << "dropped on all ranks";
  EXPECT_FALSE(require_agreement(std::vector{trie_digest(first), trie_digest(other)}));
}

}  // namespace
}  // namespace tie::prefix
