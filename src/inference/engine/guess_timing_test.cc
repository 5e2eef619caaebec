// Can one user find out what another said by timing guesses? A victim asks; an attacker asks the same and something
// else, in random order, and times the first token. The engine keeps what a turn leaves as the product does: whoever
// has the turn key finds it. Measured as the area under the ROC curve over many interleaved pairs: 0.5 is a coin. That
// the measurement can see a leak is shown by a variant that exists in this program alone and finds cached turns by
// their text, for everybody. TIE_LEAK_PAIRS sets the number of pairs (`./dev test leaks`: 1,000 and more).
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <random>

#include "inference/bones/testing/tiny_model.h"
#include "inference/bones/weights_image.h"
#include "inference/engine/engine_core.h"
#include "inference/engine/testing/fake_model.h"
#include "inference/engine/testing/memory_transfer.h"

namespace tie::engine {
namespace {

constexpr uint32_t kTokens = 300;
constexpr uint32_t kPromptTokens = 160, kBlockTokens = 16;
constexpr int kMaxSteps = 10'000;
constexpr double kDeviations = 3.29;  // two-sided 99.9 %: a fair coin fails one run of a thousand

size_t pairs() {
  const char* given = std::getenv("TIE_LEAK_PAIRS");
  return given != nullptr ? std::strtoul(given, nullptr, 10) : 120;
}

using Prompt = std::vector<int32_t>;
using Blocks = std::map<uint32_t, std::vector<std::byte>>;

// What turns left behind, found again by owner and text, or (the leaking variant) by text alone.
class TurnStore {
 public:
  explicit TurnStore(bool shared_by_everybody) : shared_(shared_by_everybody) {}
  void keep(int user, const Prompt& prompt, Blocks blocks) { turns_[{owner(user), prompt}] = std::move(blocks); }
  std::shared_ptr<KvImport> find(int user, const Prompt& prompt) const {
    auto found = turns_.find({owner(user), prompt});
    if (found == turns_.end()) return nullptr;
    return std::make_shared<testing::MemoryImport>(found->second);
  }

 private:
  int owner(int user) const { return shared_ ? 0 : user; }
  bool shared_;
  std::map<std::pair<int, Prompt>, Blocks> turns_;
};

struct Roc {
  double area = 0, error = 0;  // standard error after DeLong
  double low() const { return area - kDeviations * error; }
  double high() const { return area + kDeviations * error; }
};

// Share of `others` below or at each value of `of`, as DeLong's placements need it.
std::vector<double> placements(const std::vector<double>& of, std::vector<double> others) {
  std::sort(others.begin(), others.end());
  std::vector<double> out;
  for (double value : of) {
    auto [from, to] = std::equal_range(others.begin(), others.end(), value);
    out.push_back((double(from - others.begin()) + 0.5 * double(to - from)) / double(others.size()));
  }
  return out;
}

double mean(const std::vector<double>& values) {
  double sum = 0;
  for (double value : values) sum += value;
  return sum / double(values.size());
}

double variance(const std::vector<double>& values) {
  double m = mean(values), sum = 0;
  for (double value : values) sum += (value - m) * (value - m);
  return sum / double(values.size() - 1);
}

// How often a time of `slow` exceeds one of `fast`.
Roc roc(const std::vector<double>& fast, const std::vector<double>& slow) {
  std::vector<double> above = placements(slow, fast), below = placements(fast, slow);
  double error = std::sqrt(variance(above) / double(slow.size()) + variance(below) / double(fast.size()));
  return {.area = mean(above), .error = error};
}

class GuessTiming : public ::testing::Test {
 protected:
  void SetUp() override {
    bones::testing::TinyModelOptions options;
    options.n_layers = 4;
    options.n_embd = 256;
    options.n_ff = 768;
    options.n_heads = 8;
    options.head_dim = 32;
    auto image = bones::OwnedImage::from_gguf(bones::testing::tiny_model(options));
    ASSERT_TRUE(image) << image.error().message;
    image_ = std::move(*image);
    auto model = bones::Model::attach(image_.bytes(), {.pool = &pool_});
    ASSERT_TRUE(model) << model.error().message;
    model_ = std::make_unique<BonesModel>(std::move(*model));
    TokenTable table;
    for (uint32_t i = 0; i < kTokens; ++i) table.add(i < 256 ? std::string(1, static_cast<char>(i)) : std::string("x"));
    core_ = *EngineCore::create(*model_, std::move(table),
                                {.kv_bytes = 8 << 20, .block_tokens = kBlockTokens, .target_step_us = 0});
  }

  Prompt random_prompt() {
    Prompt out;
    for (uint32_t i = 0; i < kPromptTokens; ++i) out.push_back(static_cast<int32_t>(rng_() % kTokens));
    return out;
  }

  // One request of `user`; microseconds to its first (and last) token.
  double ask(TurnStore& store, int user, const Prompt& prompt, bool keep) {
    RequestSpec spec{.prompt = prompt, .sampling = {.temperature = 0, .max_tokens = 1, .ignore_eos = true}};
    auto sink = std::make_shared<testing::CollectingSink>();
    auto kept = std::make_shared<testing::MemoryExport>();
    spec.sink = sink;
    spec.kv_import = store.find(user, prompt);
    if (keep) spec.kv_export = kept;
    int steps = 0;
    auto began = std::chrono::steady_clock::now();
    auto request = core_->prepare(std::move(spec));
    EXPECT_TRUE(request && core_->add(std::move(*request)));
    while (!sink->ended && ++steps < kMaxSteps) {
      core_->transfer(1 << 20);
      core_->step(0);
    }
    double us = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - began).count();
    EXPECT_TRUE(sink->ended && testing::run_to_end(*core_));  // what is exported is copied afterwards
    if (keep) store.keep(user, prompt, kept->blocks);
    return us;
  }

  // The attacker's two guesses for each of many prompts of the victim.
  Roc attack(bool shared_by_everybody) {
    TurnStore store(shared_by_everybody);
    std::vector<double> right, wrong;
    for (size_t i = 0; i < pairs(); ++i) {
      Prompt said = random_prompt(), other = random_prompt();
      ask(store, kVictim, said, true);
      bool right_first = rng_() % 2 == 0;
      for (bool right_now : {right_first, !right_first})
        (right_now ? right : wrong).push_back(ask(store, kAttacker, right_now ? said : other, false));
    }
    return roc(right, wrong);
  }

  static constexpr int kVictim = 1, kAttacker = 2;
  std::mt19937 rng_{20261130};
  bones::ThreadPool pool_{{.n_threads = 1}};
  bones::OwnedImage image_;
  std::unique_ptr<BonesModel> model_;
  std::unique_ptr<EngineCore> core_;
};

void print(const char* what, const Roc& roc) {
  std::printf("[ measured ] %s: AUC %.4f, 99.9 %% interval %.4f to %.4f, %zu pairs\n", what, roc.area, roc.low(),
              roc.high(), pairs());
}

TEST_F(GuessTiming, AGuessOfAnothersTextIsNotMeasurablyFaster) {
  Roc measured = attack(false);
  print("another user's text", measured);
  EXPECT_LE(measured.low(), 0.5);
  EXPECT_GE(measured.high(), 0.5);
}

TEST_F(GuessTiming, ACacheSharedByEverybodyWouldBeSeen) {
  Roc measured = attack(true);
  print("a cache that everybody shares", measured);
  EXPECT_GT(measured.area, 0.9);
}

TEST_F(GuessTiming, TheSameUsersNextTurnIsMeasurablyFaster) {
  TurnStore store(false);
  std::vector<double> first, again;
  for (size_t i = 0; i < pairs(); ++i) {
    Prompt said = random_prompt();
    first.push_back(ask(store, kVictim, said, true));
    again.push_back(ask(store, kVictim, said, false));
  }
  Roc measured = roc(again, first);
  print("the same user's own text", measured);
  EXPECT_GT(measured.area, 0.9);
}

TEST(RocCurve, IsHalfForTheSameAndOneForTheSeparate) {
  std::vector<double> low, high, mixed;
  std::mt19937 rng(1);
  for (int i = 0; i < 500; ++i) {
    low.push_back(double(rng() % 1000));
    mixed.push_back(double(rng() % 1000));
    high.push_back(2000 + i);
  }
  EXPECT_EQ(roc(low, high).area, 1.0);
  Roc same = roc(low, mixed);
  EXPECT_LT(same.low(), 0.5);
  EXPECT_GT(same.high(), 0.5);
  EXPECT_NEAR(same.error, 0.0183, 0.002);  // sqrt((n1 + n2 + 1) / (12 n1 n2)) for a coin
}

}  // namespace
}  // namespace tie::engine
