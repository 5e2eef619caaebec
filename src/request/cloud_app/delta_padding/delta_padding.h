// The form in which every message of the user's payload leaves a process: 4-byte big-endian size, the serialized
// message, and a filler field (number 1000) so that all of it is exactly one size bucket (base/byte_buckets.h).
// tie-cloud-app pads every event with it, cb_jobhelper the final summary. Pure functions. Source: spec, "padding each
// streamed text delta".
#pragma once
#include <string_view>

#include "base/bytes.h"

namespace tie::request {

// `serialized`: a protobuf message that declares `bytes filler = 1000` and does not set it. Cost: one copy.
Bytes pad_message(std::string_view serialized);

}  // namespace tie::request
