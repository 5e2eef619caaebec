#include "cache/prefix/prefix_trie.h"

#include <gtest/gtest.h>

#include <numeric>

#include "owner.pb.h"

namespace tie::prefix {
namespace {

std::vector<int32_t> run(int32_t first, size_t n) {
  std::vector<int32_t> out(n);
  std::iota(out.begin(), out.end(), first);
  return out;
}

std::vector<int32_t> operator+(std::vector<int32_t> a, const std::vector<int32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Two prompts that share two blocks of four tokens.
TrieMetadata sample() {
  auto planned = plan_blocks({{"a", run(0, 8) + run(100, 6), {}}, {"b", run(0, 8) + run(200, 4), {}}}, 4, 64);
  EXPECT_TRUE(planned) << planned.error().message;
  return *planned;
}

TEST(PlanBlocks, SharedBeginningsShareBlocksAndPartialOnesAreNotStored) {
  TrieMetadata m = sample();
  EXPECT_EQ(m.block_count(), 4u);
  EXPECT_EQ(m.prompts[0].blocks, (std::vector<uint32_t>{0, 1, 2}));
  EXPECT_EQ(m.prompts[1].blocks, (std::vector<uint32_t>{0, 1, 3}));
  EXPECT_TRUE(check(m));
}

TEST(PlanBlocks, TheSameTokensAfterAnotherBeginningAreAnotherBlock) {
  auto m = plan_blocks({{"a", run(0, 4) + run(50, 4), {}}, {"b", run(9, 4) + run(50, 4), {}}}, 4, 64);
  ASSERT_TRUE(m);
  EXPECT_EQ(m->block_count(), 4u);
}

TEST(PlanBlocks, RefusesWhatItCannotStore) {
  EXPECT_FALSE(plan_blocks({}, 4, 64));
  EXPECT_FALSE(plan_blocks({{"a", run(0, 3), {}}}, 4, 64)) << "shorter than a block: nothing to store";
  EXPECT_FALSE(plan_blocks({{"a", run(0, 4), {}}, {"a", run(5, 4), {}}}, 4, 64));
  EXPECT_FALSE(plan_blocks({{"", run(0, 4), {}}}, 4, 64));
  EXPECT_FALSE(plan_blocks({{"a", run(0, 4), {}}}, 0, 64));
  EXPECT_FALSE(plan_blocks({{"a", run(0, 4), {}}}, 4, kMaxBlockBytes + 1));
}

TEST(Trie, MatchesTheLongestBeginningAndLeavesATokenToCompute) {
  PrefixTrie trie(sample());
  EXPECT_EQ(trie.match(run(0, 8) + run(100, 6)), (std::vector<uint32_t>{0, 1, 2}));
  EXPECT_EQ(trie.match(run(0, 8) + run(200, 4) + run(7, 1)), (std::vector<uint32_t>{0, 1, 3}));
  EXPECT_EQ(trie.match(run(0, 8) + run(200, 4)), (std::vector<uint32_t>{0, 1}))
      << "the last token's logits must be computed";
  EXPECT_EQ(trie.match(run(0, 8) + run(999, 9)), (std::vector<uint32_t>{0, 1}));
  EXPECT_EQ(trie.match(run(0, 7)), (std::vector<uint32_t>{0}));
  EXPECT_TRUE(trie.match(run(1, 20)).empty());
  EXPECT_TRUE(trie.match({}).empty());
  auto almost = run(0, 12);
  almost[3] = -1;
  EXPECT_TRUE(trie.match(almost).empty());
}

TEST(Check, EveryRuleRefusesItsViolation) {
  struct Case {
    const char* word;
    void (*breaks)(TrieMetadata&);
  };
  const Case cases[] = {
      {"tokens per block", [](TrieMetadata& m) { m.block_tokens = 0; }},
      {"tokens per block", [](TrieMetadata& m) { m.block_tokens = kMaxBlockTokens + 1; }},
      {"bytes per block", [](TrieMetadata& m) { m.block_bytes = 0; }},
      {"number of blocks", [](TrieMetadata& m) { m.block_sha256.clear(); }},
      {"too large",
       [](TrieMetadata& m) {
         m.block_bytes = kMaxBlockBytes, m.block_sha256.resize(kMaxPoolBytes / kMaxBlockBytes + 1);
       }},
      {"number of prompts", [](TrieMetadata& m) { m.prompts.clear(); }},
      {"number of prompts", [](TrieMetadata& m) { m.prompts.resize(kMaxPrompts + 1); }},
      {"prompt id", [](TrieMetadata& m) { m.prompts[1].id = "a"; }},
      {"prompt id", [](TrieMetadata& m) { m.prompts[1].id.clear(); }},
      {"too long", [](TrieMetadata& m) { m.prompts[0].tokens.resize(kMaxPromptTokens + 1); }},
      {"one block for each", [](TrieMetadata& m) { m.prompts[0].blocks.pop_back(); }},
      {"one block for each", [](TrieMetadata& m) { m.prompts[0].blocks.push_back(3); }},
      {"out of range", [](TrieMetadata& m) { m.prompts[0].blocks[2] = 4; }},
      {"same tokens", [](TrieMetadata& m) { m.prompts[1].blocks[1] = 3, m.prompts[1].blocks[2] = 1; }},
      {"different tokens", [](TrieMetadata& m) { m.prompts[1].blocks[2] = 2; }},
      {"no prompt", [](TrieMetadata& m) { m.block_sha256.emplace_back(); }},
  };
  for (const Case& c : cases) {
    TrieMetadata m = sample();
    c.breaks(m);
    auto checked = check(m);
    ASSERT_FALSE(checked) << c.word;
    EXPECT_EQ(checked.error().code, Code::kCorrupt);
    EXPECT_NE(checked.error().message.find(c.word), std::string::npos) << checked.error().message;
  }
}

TEST(TrieDigest, CoversEverythingTheRanksMustAgreeOnAndNotTheContents) {
  TrieMetadata base = sample();
  const crypto::Digest digest = trie_digest(base);
  void (*const changes[])(TrieMetadata&) = {
      [](TrieMetadata& m) { m.model_id[0] ^= 1; },
      [](TrieMetadata& m) { m.release_id[31] ^= 1; },
      [](TrieMetadata& m) { m.layout_id[5] ^= 1; },
      [](TrieMetadata& m) { m.block_tokens ^= 1; },
      [](TrieMetadata& m) { m.block_bytes ^= 1; },
      [](TrieMetadata& m) { m.block_sha256.emplace_back(); },
      [](TrieMetadata& m) { m.prompts[0].id += "x"; },
      [](TrieMetadata& m) { m.prompts[0].tokens[3] ^= 1; },
      [](TrieMetadata& m) { m.prompts[1].blocks[0] ^= 1; },
      [](TrieMetadata& m) { m.prompts.pop_back(); },
      // A token moved over the border between two prompts.
      [](TrieMetadata& m) {
        m.prompts[1].tokens.insert(m.prompts[1].tokens.begin(), m.prompts[0].tokens.back()),
            m.prompts[0].tokens.pop_back();
      },
  };
  for (auto change : changes) {
    TrieMetadata m = base;
    change(m);
    EXPECT_NE(trie_digest(m), digest);
  }
  TrieMetadata other_rank = base;
  other_rank.block_sha256[0][0] ^= 1;
  EXPECT_EQ(trie_digest(other_rank), digest);
}

TEST(TrieProto, GoesThereAndBack) {
  TrieMetadata m = sample();
  m.model_id[1] = 9;
  m.block_sha256[2][3] = 7;
  v1::PrefixTrie message;
  to_proto(m, message);
  auto back = from_proto(message);
  ASSERT_TRUE(back);
  EXPECT_EQ(trie_digest(*back), trie_digest(m));
  EXPECT_EQ(back->block_sha256, m.block_sha256);
  message.set_model_id("short");
  EXPECT_FALSE(from_proto(message));
}

}  // namespace
}  // namespace tie::prefix
