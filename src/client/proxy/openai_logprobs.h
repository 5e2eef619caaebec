// Log-probabilities in OpenAI's two forms. Private to this folder. Pure functions.
#pragma once
#include <google/protobuf/repeated_ptr_field.h>

#include <string>
#include <vector>

#include "inference.pb.h"

namespace tie::client {

// {"content":[…],"refusal":null}: the token's text is lossy where it is a part of a character, `bytes` is exact.
template <typename Range>
void append_chat_logprobs(std::string& out, const Range& entries);

// {"tokens":[…],"token_logprobs":[…],"top_logprobs":[…],"text_offset":[…]}; `offset` counts characters and moves on.
template <typename Range>
void append_text_logprobs(std::string& out, const Range& entries, uint64_t& offset);

extern template void append_chat_logprobs(std::string&, const std::vector<v1::TokenLogprob>&);
extern template void append_chat_logprobs(std::string&, const google::protobuf::RepeatedPtrField<v1::TokenLogprob>&);
extern template void append_text_logprobs(std::string&, const std::vector<v1::TokenLogprob>&, uint64_t&);
extern template void append_text_logprobs(std::string&, const google::protobuf::RepeatedPtrField<v1::TokenLogprob>&,
                                          uint64_t&);

}  // namespace tie::client
