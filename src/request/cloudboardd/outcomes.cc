#include "request/cloudboardd/outcomes.h"

namespace tie::request::cloudboard {

Outcome outcome_of(Code code, bool uploaded, bool answering) {
  if (code == Code::kOk) return Outcome::kCompleted;
  if (code == Code::kCancelled) return Outcome::kCancelled;
  if (answering) return Outcome::kCut;
  switch (code) {
    case Code::kOverloaded:
    case Code::kNotReady:
      return Outcome::kRefusedBusy;
    case Code::kKeyUnknownOrExpired:
    case Code::kUnauthenticated:
      return Outcome::kRefusedKey;
    case Code::kReplayed:
      return Outcome::kRefusedReplay;
    case Code::kBadRequest:
    case Code::kContextExceeded:
    case Code::kModelNotFound:
    case Code::kUnsupportedFeature:
    case Code::kFailedPrecondition:
    case Code::kTooLarge:
      return Outcome::kRefusedRequest;
    case Code::kDeadline:
      return uploaded ? Outcome::kFailed : Outcome::kRefusedRequest;
    default:
      return Outcome::kFailed;
  }
}

void OutcomeCounts::fill(v1::RequestOutcomes& out) const {
  out.set_completed(of(Outcome::kCompleted));
  out.set_refused_busy(of(Outcome::kRefusedBusy));
  out.set_refused_key(of(Outcome::kRefusedKey));
  out.set_refused_replay(of(Outcome::kRefusedReplay));
  out.set_refused_request(of(Outcome::kRefusedRequest));
  out.set_failed(of(Outcome::kFailed));
  out.set_cancelled(of(Outcome::kCancelled));
  out.set_cut(of(Outcome::kCut));
}

}  // namespace tie::request::cloudboard
