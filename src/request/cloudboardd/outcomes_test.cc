#include "request/cloudboardd/outcomes.h"

#include <gtest/gtest.h>

namespace tie::request::cloudboard {
namespace {

TEST(Outcomes, EachEndHasItsClass) {
  EXPECT_EQ(outcome_of(Code::kOk, true, true), Outcome::kCompleted);
  EXPECT_EQ(outcome_of(Code::kNotReady, false, false), Outcome::kRefusedBusy);
  EXPECT_EQ(outcome_of(Code::kOverloaded, true, false), Outcome::kRefusedBusy);
  EXPECT_EQ(outcome_of(Code::kKeyUnknownOrExpired, false, false), Outcome::kRefusedKey);
  EXPECT_EQ(outcome_of(Code::kUnauthenticated, true, false), Outcome::kRefusedKey);
  EXPECT_EQ(outcome_of(Code::kReplayed, false, false), Outcome::kRefusedReplay);
  EXPECT_EQ(outcome_of(Code::kTooLarge, false, false), Outcome::kRefusedRequest);
  EXPECT_EQ(outcome_of(Code::kFailedPrecondition, false, false), Outcome::kRefusedRequest);
  EXPECT_EQ(outcome_of(Code::kInternal, true, false), Outcome::kFailed);
  EXPECT_EQ(outcome_of(Code::kCancelled, false, false), Outcome::kCancelled);
  EXPECT_EQ(outcome_of(Code::kCancelled, true, true), Outcome::kCancelled);
  EXPECT_EQ(outcome_of(Code::kInternal, true, true), Outcome::kCut);
  EXPECT_EQ(outcome_of(Code::kDeadline, true, true), Outcome::kCut);
}

TEST(Outcomes, ALateUploadIsTheClientsAndALateAnswerTheNodes) {
  EXPECT_EQ(outcome_of(Code::kDeadline, false, false), Outcome::kRefusedRequest);
  EXPECT_EQ(outcome_of(Code::kDeadline, true, false), Outcome::kFailed);
}

}  // namespace
}  // namespace tie::request::cloudboard
