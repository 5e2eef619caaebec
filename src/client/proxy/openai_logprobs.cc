#include "client/proxy/openai_logprobs.h"

#include <cmath>

#include "client/proxy/json_text.h"

namespace tie::client {
namespace {

void append_bytes(std::string& out, const std::string& bytes) {
  out += '[';
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (i > 0) out += ',';
    out += std::to_string(static_cast<uint8_t>(bytes[i]));
  }
  out += ']';
}

template <typename Entry>
void append_token(std::string& out, const Entry& entry) {
  out += R"({"token":)";
  append_json_string(out, entry.token_bytes());
  out += R"(,"logprob":)";
  append_json_number(out, entry.logprob());
  out += R"(,"bytes":)";
  append_bytes(out, entry.token_bytes());
}

// The legacy form has no byte lists: a part of a character is spelled out, so that keys stay distinct.
void append_legacy_token(std::string& out, const std::string& bytes) {
  if (is_utf8(bytes)) return append_json_string(out, bytes);
  static constexpr char kHex[] = "0123456789abcdef";
  std::string spelled = "bytes:";
  for (char c : bytes) {
    auto b = static_cast<uint8_t>(c);
    spelled += "\\x";
    spelled += kHex[b >> 4];
    spelled += kHex[b & 15];
  }
  append_json_string(out, spelled);
}

// The first token of an echoed prompt has no probability.
void append_legacy_logprob(std::string& out, float logprob) {
  if (std::isnan(logprob)) {
    out += "null";
  } else {
    append_json_number(out, logprob);
  }
}

uint64_t characters_begun(const std::string& bytes) {
  uint64_t count = 0;
  for (char c : bytes) count += (static_cast<uint8_t>(c) & 0xc0) != 0x80;
  return count;
}

// The likeliest tokens, and the one that stands there when it is not among them, as OpenAI has it.
void append_legacy_top(std::string& out, const v1::TokenLogprob& entry) {
  if (entry.top_size() == 0) {
    out += "null";
    return;
  }
  out += '{';
  bool itself = false;
  for (const auto& other : entry.top()) {
    append_legacy_token(out, other.token_bytes());
    out += ':';
    append_json_number(out, other.logprob());
    out += ',';
    itself = itself || other.token_bytes() == entry.token_bytes();
  }
  if (itself) {
    out.back() = '}';
    return;
  }
  append_legacy_token(out, entry.token_bytes());
  out += ':';
  append_legacy_logprob(out, entry.logprob());
  out += '}';
}

template <typename Range, typename Append>
void append_list(std::string& out, const char* name, const Range& entries, Append append) {
  out += '"';
  out += name;
  out += "\":[";
  bool first = true;
  for (const auto& entry : entries) {
    if (!first) out += ',';
    first = false;
    append(entry);
  }
  out += ']';
}

}  // namespace

template <typename Range>
void append_chat_logprobs(std::string& out, const Range& entries) {
  out += '{';
  append_list(out, "content", entries, [&](const v1::TokenLogprob& entry) {
    append_token(out, entry);
    out += ',';
    append_list(out, "top_logprobs", entry.top(), [&](const v1::TokenLogprob::Alternative& other) {
      append_token(out, other);
      out += '}';
    });
    out += '}';
  });
  out += R"(,"refusal":null})";
}

template <typename Range>
void append_text_logprobs(std::string& out, const Range& entries, uint64_t& offset) {
  out += '{';
  append_list(out, "tokens", entries,
              [&](const v1::TokenLogprob& entry) { append_legacy_token(out, entry.token_bytes()); });
  out += ',';
  append_list(out, "token_logprobs", entries,
              [&](const v1::TokenLogprob& entry) { append_legacy_logprob(out, entry.logprob()); });
  bool any_top = false;
  for (const auto& entry : entries) any_top |= entry.top_size() > 0;
  if (any_top) {
    out += ',';
    append_list(out, "top_logprobs", entries, [&](const v1::TokenLogprob& entry) { append_legacy_top(out, entry); });
  }
  out += ',';
  append_list(out, "text_offset", entries, [&](const v1::TokenLogprob& entry) {
    out += std::to_string(offset);
    offset += characters_begun(entry.token_bytes());
  });
  out += '}';
}

template void append_chat_logprobs(std::string&, const std::vector<v1::TokenLogprob>&);
template void append_chat_logprobs(std::string&, const google::protobuf::RepeatedPtrField<v1::TokenLogprob>&);
template void append_text_logprobs(std::string&, const std::vector<v1::TokenLogprob>&, uint64_t&);
template void append_text_logprobs(std::string&, const google::protobuf::RepeatedPtrField<v1::TokenLogprob>&,
                                   uint64_t&);

}  // namespace tie::client
