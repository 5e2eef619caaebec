// The pieces of the translation, each in a file of its own. Private to this folder.
#pragma once
#include "client/proxy/field_reader.h"
#include "client/proxy/openai_request.h"

namespace tie::client {

// "messages" into the conversation (openai_messages.cc).
void read_messages(FieldReader& body, v1::Conversation& out);
// temperature, penalties, stop, seed, … which both endpoints share, and the extensions named as vLLM names them
// (openai_sampling.cc).
void read_sampling(FieldReader& body, v1::SamplingParams& out);
// tools, tool_choice, parallel_tool_calls (openai_tools.cc).
void read_tools(FieldReader& body, v1::InferenceRequest& out);
// response_format and the guided_* extensions (openai_tools.cc).
void read_response_format(FieldReader& body, v1::InferenceRequest& out, bool chat);

}  // namespace tie::client
