// What protects a runtime from the one before it, on the emulated driver.
#include "supervision/model_owner/gpu_weights.h"

#include <gtest/gtest.h>

#include "inference/bones/testing/tiny_model.h"

namespace tie::owner {
namespace {

using namespace bones::cuda;

constexpr int64_t kPatienceMs = 60'000;

class GpuWeightsTest : public testing::Test {
 protected:
  void SetUp() override {
    driver_ = Driver::load(0, TIE_FAKE_CUDA).value();
    auto loaded = load_weights(
        driver_, tie::bones::testing::tiny_model({.n_vocab = 2000, .weights = model_files::TensorType::kF16}));
    ASSERT_TRUE(loaded) << loaded.error().message;
    at_ = loaded->memory.at();
    weights_ = GpuWeights::create(driver_, std::move(*loaded)).value();
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

TEST_F(GpuWeightsTest, AreLentToOneAtATime) {
  auto first = weights_->borrow();
  ASSERT_TRUE(first);
  EXPECT_EQ(weights_->borrow().error().code, Code::kNotReady) << "from the first moment, not from the loan's";
  EXPECT_TRUE((*first)->lent(Deadline::in_ms(0)).value());
  EXPECT_EQ(weights_->borrow().error().code, Code::kNotReady);
  first->reset();
  EXPECT_TRUE(weights_->borrow());
}

// One bit in the first, a middle and the last byte.
TEST_F(GpuWeightsTest, WhatOneRuntimeHasChangedIsNotLentAgain) {
  for (uint64_t offset : {uint64_t{0}, weights_->bytes() / 2, weights_->bytes() - 1}) {
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
