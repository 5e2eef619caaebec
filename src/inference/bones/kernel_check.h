// Whether this CPU runs a kernel set that an operator names, before anything is started with it. Pure; any thread.
// Called by whoever takes the name from a person: `tie up`, `tie doctor`, tie-model-owner.
#pragma once
#include <string_view>

#include "base/result.h"

namespace tie::bones {

// Empty: the fastest one, which there always is. kUnsupportedFeature: the name, the reason where one is known, and the
// sets that run here.
Result<void> check_kernel_set(std::string_view name);

}  // namespace tie::bones
