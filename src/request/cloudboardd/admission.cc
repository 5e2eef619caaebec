#include "request/cloudboardd/admission.h"

namespace tie::request::cloudboard {

void Admission::set_limit(uint32_t limit) {
  Load now;
  {
    std::lock_guard lock(mutex_);
    load_.limit = limit;
    now = load_;
  }
  tell(now);
}

Admission::Load Admission::load() const {
  std::lock_guard lock(mutex_);
  return load_;
}

Result<Admission::Slot> Admission::enter() {
  Load now;
  {
    std::lock_guard lock(mutex_);
    if (load_.limit == 0) return fail(Code::kNotReady, error_info(Code::kNotReady).sentence);
    if (load_.in_flight >= load_.limit) return fail(Code::kOverloaded, error_info(Code::kOverloaded).sentence);
    ++load_.in_flight;
    now = load_;
  }
  tell(now);
  return Slot(this);
}

void Admission::leave() {
  Load now;
  {
    std::lock_guard lock(mutex_);
    tie_check(load_.in_flight > 0, "a request leaves once");
    --load_.in_flight;
    now = load_;
  }
  tell(now);
}

}  // namespace tie::request::cloudboard
