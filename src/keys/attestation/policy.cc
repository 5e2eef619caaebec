#include "keys/attestation/policy.h"

#include <toml++/toml.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <sstream>

namespace tie::attestation {
namespace {

using Digests = std::vector<crypto::Digest>;
constexpr unsigned kPcrs = 24;

Result<std::vector<std::string>> strings_of(const toml::node& node, const std::string& key) {
  const toml::array* list = node.as_array();
  if (list == nullptr) return fail(Code::kBadRequest, "policy: " + key + " is a list of strings");
  std::vector<std::string> out;
  for (const toml::node& item : *list) {
    const auto text = item.value_exact<std::string>();
    if (!text) return fail(Code::kBadRequest, "policy: " + key + " is a list of strings");
    out.push_back(*text);
  }
  return out;
}

Result<Digests> digests_of(const toml::node& node, const std::string& key) {
  TIE_TRY(const auto texts, strings_of(node, key));
  Digests out;
  for (const std::string& text : texts) {
    auto bytes = from_hex(text);
    if (!bytes || bytes->size() != crypto::kSha256Bytes)
      return fail(Code::kBadRequest, "policy: " + key + " holds 64 hex digits each, not '" + text + "'");
    TIE_TRY(const crypto::Digest digest, crypto::digest_from(*bytes, "a digest"));
    out.push_back(digest);
  }
  return out;
}

Result<std::vector<std::pair<uint8_t, crypto::Digest>>> pcrs_of(const toml::node& node, const std::string& key) {
  TIE_TRY(const auto texts, strings_of(node, key));
  std::vector<std::pair<uint8_t, crypto::Digest>> out;
  for (const std::string& text : texts) {
    const size_t colon = text.find(':');
    unsigned index = kPcrs;
    const auto read = std::from_chars(text.data(), text.data() + std::min(colon, text.size()), index);
    auto bytes = from_hex(colon == std::string::npos ? std::string_view() : std::string_view(text).substr(colon + 1));
    if (read.ec != std::errc() || read.ptr != text.data() + colon || index >= kPcrs || !bytes ||
        bytes->size() != crypto::kSha256Bytes)
      return fail(Code::kBadRequest, "policy: " + key + " holds INDEX:64 hex digits each, not '" + text + "'");
    TIE_TRY(const crypto::Digest value, crypto::digest_from(*bytes, "a PCR"));
    out.emplace_back(static_cast<uint8_t>(index), value);
  }
  return out;
}

Result<void> take(const std::string& key, const toml::node& node, Policy& out) {
  if (key == "release_ids") {
    TIE_TRY(out.release_ids, digests_of(node, key));
  } else if (key == "accepted_kinds") {
    TIE_TRY(out.accepted_kinds, strings_of(node, key));
  } else if (key == "model_ids") {
    TIE_TRY(out.model_ids, digests_of(node, key));
  } else if (key == "prompt_digests") {
    TIE_TRY(out.prompt_digests, digests_of(node, key));
  } else if (key == "tpm_keys") {
    TIE_TRY(out.tpm_keys, digests_of(node, key));
  } else if (key == "tpm_pcrs") {
    TIE_TRY(out.tpm_pcrs, pcrs_of(node, key));
  } else {
    return fail(Code::kBadRequest, "policy: unknown key '" + key + "'");
  }
  return {};
}

void render_list(std::string& out, const char* key, const Digests& digests) {
  out += std::string(key) + " = [";
  for (const crypto::Digest& digest : digests) out += "\n  \"" + to_hex(digest) + "\",";
  out += digests.empty() ? "]\n" : "\n]\n";
}

}  // namespace

Result<Policy> parse_policy(std::string_view toml) {
  if (toml.size() > kMaxPolicyBytes) return fail(Code::kTooLarge, "policy: the file is larger than 256 KiB");
  Policy out;
  try {
    const toml::table table = toml::parse(toml);
    for (const auto& [key, node] : table) TIE_CHECK_OK(take(std::string(key.str()), node, out));
  } catch (const toml::parse_error& error) {
    std::ostringstream where;
    where << error.source().begin;
    return fail(Code::kBadRequest, "policy: " + std::string(error.description()) + " at " + where.str());
  }
  if (out.release_ids.empty())
    return fail(Code::kBadRequest, "policy: release_ids is empty, so every node would be refused");
  if (out.accepted_kinds.empty())
    return fail(Code::kBadRequest, "policy: accepted_kinds is empty, so every node would be refused");
  return out;
}

Result<Policy> load_policy(const std::string& path) {
  std::FILE* file = std::fopen(path.c_str(), "rbe");
  if (file == nullptr) return fail(Code::kNotFound, "policy: cannot open " + path);
  std::string text(kMaxPolicyBytes + 1, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file));
  const bool broken = std::ferror(file) != 0;
  std::fclose(file);
  if (broken) return fail(Code::kIo, "policy: cannot read " + path);
  return parse_policy(text);
}

std::string render_policy(const Policy& policy) {
  std::string out;
  render_list(out, "release_ids", policy.release_ids);
  out += "accepted_kinds = [";
  for (size_t i = 0; i < policy.accepted_kinds.size(); ++i)
    out += (i ? ", \"" : "\"") + policy.accepted_kinds[i] + "\"";
  out += "]\n";
  if (policy.model_ids) render_list(out, "model_ids", *policy.model_ids);
  if (policy.prompt_digests) render_list(out, "prompt_digests", *policy.prompt_digests);
  if (!policy.tpm_keys.empty()) render_list(out, "tpm_keys", policy.tpm_keys);
  if (!policy.tpm_pcrs.empty()) {
    out += "tpm_pcrs = [";
    for (const auto& [index, value] : policy.tpm_pcrs)
      out += "\n  \"" + std::to_string(index) + ":" + to_hex(value) + "\",";
    out += "\n]\n";
  }
  return out;
}

}  // namespace tie::attestation
