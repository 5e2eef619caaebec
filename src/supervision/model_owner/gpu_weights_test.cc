// What protects a runtime from the one before it, on the emulated driver.
#include "supervision/model_owner/gpu_weights.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "inference/bones/cuda/testing/fake_driver.h"
#include "inference/bones/testing/tiny_model.h"

namespace tie::owner {
namespace {

using namespace bones::cuda;

constexpr int64_t kPatienceMs = 60'000;

class GpuWeightsTest : public testing::Test {
 protected:
  void SetUp() override {
    driver_ = Driver::load(0, TIE_FAKE_CUDA).value();
    reader_ = FingerprintReader::create(driver_, {}).value();
    auto loaded = load();
    ASSERT_TRUE(loaded) << loaded.error().message;
    weights_ = *loaded;
    at_ = attach();
  }
  // Some parts of 2 MiB and a leaf that is not whole.
  Result<std::shared_ptr<GpuWeights>> load() {
    return GpuWeights::load(
        driver_, reader_,
        tie::bones::testing::tiny_model({.n_vocab = 70'000, .weights = model_files::TensorType::kF16}));
  }
  template <typename Function>
  static Function of_driver(const char* name) {
    return reinterpret_cast<Function>(::dlsym(::dlopen(TIE_FAKE_CUDA, RTLD_NOW | RTLD_LOCAL), name));
  }
  static const FakeCudaCounters& counters() {
    return *of_driver<decltype(&tie_fake_cuda_counters)>("tie_fake_cuda_counters")();
  }
  // Where a runtime of this process would see them: another mapping of the same memory.
  DevicePtr attach() {
    mapping_ = DeviceMemory::attach(driver_, weights_->handle(), lent_bytes()).value();
    return mapping_.at();
  }
  // Whole blocks of the driver's.
  uint64_t lent_bytes() const {
    return (weights_->bytes() + kFingerprintPartBytes - 1) / kFingerprintPartBytes * kFingerprintPartBytes;
  }
  // As a runtime can through its mapping.
  void write(uint64_t offset, uint8_t byte) {
    ASSERT_TRUE(driver_->check(driver_->copy_in(at_ + offset, &byte, 1), "writing"));
  }
  Result<bool> borrow_and_wait(std::shared_ptr<GpuLoan>& loan) {
    TIE_TRY(loan, weights_->borrow());
    return loan->lent(Deadline::in_ms(kPatienceMs));
  }
  std::shared_ptr<Driver> driver_;
  std::shared_ptr<FingerprintReader> reader_;
  DeviceMemory mapping_;
  DevicePtr at_ = 0;
  std::shared_ptr<GpuWeights> weights_;
};

TEST_F(GpuWeightsTest, TheFirstLoanNeedsNoLookAndLaterOnesLookAtAll) {
  auto first = weights_->borrow();
  ASSERT_TRUE(first);
  EXPECT_TRUE((*first)->lent(Deadline::in_ms(0)).value());
  EXPECT_EQ((*first)->looked_at_bytes(), 0u);
  first->reset();
  for (int i = 0; i < 2; ++i) {
    std::shared_ptr<GpuLoan> next;
    EXPECT_TRUE(borrow_and_wait(next).value());
    EXPECT_EQ(next->looked_at_bytes(), weights_->bytes());
  }
}

// Neither loading nor a look reads the weights back: the GPU's hash of them is what the CPU looks at.
TEST_F(GpuWeightsTest, NothingIsCopiedBack) {
  const uint64_t copied_out = counters().copied_out_bytes;  // by other tests
  weights_ = load().value();
  for (int i = 0; i < 2; ++i) {
    std::shared_ptr<GpuLoan> loan;
    const uint64_t launches = counters().launches;
    ASSERT_TRUE(borrow_and_wait(loan).value());
    EXPECT_EQ(counters().launches - launches, static_cast<uint64_t>(i)) << "the second loan follows another";
  }
  EXPECT_EQ(counters().copied_out_bytes, copied_out);
}

// A kernel that does not run, and memory that did not take what was written, are seen before anybody gets a loan.
TEST_F(GpuWeightsTest, WhatDidNotArriveIsNotLent) {
  const auto become = of_driver<decltype(&tie_fake_cuda_become)>("tie_fake_cuda_become");
  become(3, "tie_fingerprint");
  EXPECT_EQ(load().error().code, Code::kCorrupt);
  become(3, "");
  EXPECT_TRUE(load()) << "the control";
}

TEST_F(GpuWeightsTest, AreLentToOneAtATime) {
  auto first = weights_->borrow();
  ASSERT_TRUE(first);
  EXPECT_EQ(weights_->borrow().error().code, Code::kNotReady) << "from the first moment, not from the loan's";
  EXPECT_TRUE((*first)->lent(Deadline::in_ms(0)).value());
  EXPECT_EQ(weights_->borrow().error().code, Code::kNotReady);
  first->reset();
  EXPECT_TRUE(weights_->borrow());
}

// One bit: in the first and the last byte, at the edges of leaves and parts, anywhere, and behind the weights, where
// one runtime could leave something for the next.
TEST_F(GpuWeightsTest, WhatOneRuntimeHasChangedIsNotLentAgain) {
  ASSERT_GT(weights_->bytes(), kFingerprintPartBytes);
  ASSERT_NE(weights_->bytes() % kFingerprintLeafBytes, 0u);
  ASSERT_LT(weights_->bytes(), lent_bytes());
  std::vector<uint64_t> offsets{0,
                                kFingerprintLeafBytes - 1,
                                kFingerprintLeafBytes,
                                kFingerprintPartBytes - 1,
                                kFingerprintPartBytes,
                                weights_->bytes() - 1,
                                weights_->bytes(),
                                lent_bytes() - 1};
  std::mt19937_64 random(20261130);
  for (int i = 0; i < 10; ++i) offsets.push_back(random() % weights_->bytes());
  for (uint64_t offset : offsets) {
    std::shared_ptr<GpuLoan> loan;
    ASSERT_TRUE(borrow_and_wait(loan).value());
    uint8_t was = 0;
    ASSERT_TRUE(driver_->check(driver_->copy_out_async(&was, at_ + offset, 1, nullptr), "reading"));
    write(offset, was ^ 1);
    loan.reset();
    EXPECT_EQ(borrow_and_wait(loan).error().code, Code::kCorrupt) << offset;
    loan.reset();
    write(offset, was);  // the control: as they were they are lent
    EXPECT_TRUE(borrow_and_wait(loan).value());
    loan.reset();
  }
}

// A runtime that asks, waits for the end of the look, and writes then without having taken the loan: its successor's
// look is its own.
TEST_F(GpuWeightsTest, ALookCountsForTheOneThatAskedForIt) {
  std::shared_ptr<GpuLoan> loan;
  ASSERT_TRUE(borrow_and_wait(loan).value());
  loan.reset();
  loan = weights_->borrow().value();
  Deadline patience = Deadline::in_ms(kPatienceMs);
  while (loan->looked_at_bytes() != weights_->bytes() && !patience.passed()) std::this_thread::yield();
  loan.reset();
  write(weights_->bytes() / 3, 0x5a);
  write(weights_->bytes() / 3 + 1, 0xa5);
  EXPECT_EQ(borrow_and_wait(loan).error().code, Code::kCorrupt);
}

TEST_F(GpuWeightsTest, ALookThatNobodyWaitsForEnds) {
  std::shared_ptr<GpuLoan> loan;
  ASSERT_TRUE(borrow_and_wait(loan).value());
  for (int i = 0; i < 20; ++i) {
    loan.reset();
    loan = weights_->borrow().value();
  }
  EXPECT_TRUE(loan->lent(Deadline::in_ms(kPatienceMs)).value());
}

}  // namespace
}  // namespace tie::owner
