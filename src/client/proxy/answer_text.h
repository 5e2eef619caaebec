// What whole and streamed answers write alike. Private to this folder.
#pragma once
#include <string>

#include "client/proxy/openai_answer.h"

namespace tie::client {

// `"id":…,"object":…,"created":…,"model":…,"system_fingerprint":…`
void append_head(std::string& out, const AnswerHead& head, const char* object);
void append_usage(std::string& out, const UsageSum& usage);
// The sample's choice, checked; and that a finish is one that a client may see.
Result<size_t> choice_of(const v1::InferenceEvent& event, size_t payload_index, int samples, size_t choices);

}  // namespace tie::client
