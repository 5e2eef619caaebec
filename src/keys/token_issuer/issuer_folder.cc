#include "keys/token_issuer/issuer_folder.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "base/random.h"
#include "os/fd.h"

namespace tie::issuer {
namespace {

namespace fs = std::filesystem;

std::string key_path(const std::string& folder, const crypto::Digest& id) {
  return folder + "/keys/" + to_hex(id) + ".pem";
}

Result<void> write_public(const std::string& folder, const tokens::IssuerFile& file) {
  return os::write_file_atomic(folder + "/issuer", as_bytes(tokens::render(file)), 0644);
}

// A key whose last byte, by which requests name it, is its own.
Result<tokens::BlindRsaPrivateKey> distinct_key(const tokens::IssuerFile& file) {
  for (;;) {
    TIE_TRY(auto key, tokens::BlindRsaPrivateKey::generate());
    const uint8_t last = key.public_key().key_id().back();
    if (std::none_of(file.keys.begin(), file.keys.end(), [&](const auto& k) { return k.id.back() == last; }))
      return key;
  }
}

Result<void> enter_key(const std::string& folder, tokens::IssuerFile& file, int64_t begin_s, int64_t end_s) {
  TIE_TRY(tokens::BlindRsaPrivateKey key, distinct_key(file));
  const crypto::Digest id = key.public_key().key_id();
  TIE_TRY(auto half, tokens::BlindRsaPublicKey::from_spki(key.public_key().spki()));
  file.keys.push_back({std::move(half), id, begin_s, end_s});
  TIE_CHECK_OK(tokens::parse_issuer_file(tokens::render(file)));  // nodes must be able to take it
  TIE_CHECK_OK(os::write_file_atomic(key_path(folder, id), key.pem().view(), 0600));
  return write_public(folder, file);
}

}  // namespace

Result<void> create_folder(const std::string& folder, const std::string& name, int64_t now_s, int64_t key_seconds) {
  if (!tokens::is_issuer_name(name))
    return fail(Code::kBadRequest, "an issuer's name is the HOST or HOST:PORT under which clients reach it");
  std::error_code error;
  if (fs::exists(folder + "/issuer", error))
    return fail(Code::kAlreadyExists, folder + " is an issuer's folder already");
  fs::create_directories(folder, error);
  for (const std::string& path : {folder, folder + "/keys"})
    if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return fail_errno("making " + path, errno);
  if (::chmod((folder + "/keys").c_str(), 0700) != 0) return fail_errno("closing " + folder + "/keys", errno);
  TIE_CHECK_OK(os::write_file_atomic(folder + "/credentials", {}, 0600));
  tokens::IssuerFile file{name, {}};
  return enter_key(folder, file, now_s, now_s + key_seconds);
}

Result<tokens::IssuerFile> add_key(const std::string& folder, int64_t now_s, int64_t key_seconds) {
  TIE_TRY(tokens::IssuerFile file, load_public(folder));
  std::erase_if(file.keys, [&](const auto& key) {
    if (now_s < key.not_after_s) return false;
    std::error_code ignored;
    fs::remove(key_path(folder, key.id), ignored);
    return true;
  });
  int64_t begin_s = now_s;
  for (const auto& key : file.keys) begin_s = std::max(begin_s, key.not_after_s - kKeyOverlapS);
  TIE_CHECK_OK(enter_key(folder, file, begin_s, begin_s + key_seconds));
  return file;
}

Result<std::string> add_credential(const std::string& folder, const std::string& name, uint32_t tokens_per_hour) {
  if (!is_credential_name(name)) return fail(Code::kBadRequest, "'" + name + "' cannot be a credential's name");
  if (tokens_per_hour == 0 || tokens_per_hour > kMaxTokensPerHour)
    return fail(Code::kBadRequest, "tokens an hour: 1 to " + std::to_string(kMaxTokensPerHour));
  TIE_TRY(std::vector<Credential> known, load_credentials(folder));
  if (std::any_of(known.begin(), known.end(), [&](const Credential& c) { return c.name == name; }))
    return fail(Code::kAlreadyExists, "there is a credential named " + name);
  std::string api_key = "tie-" + random_hex(24);
  known.push_back({name, crypto::sha256(as_bytes(api_key)), tokens_per_hour});
  std::string text;
  for (const Credential& credential : known) text += render(credential);
  TIE_CHECK_OK(os::write_file_atomic(folder + "/credentials", as_bytes(text), 0600));
  return api_key;
}

Result<tokens::IssuerFile> load_public(const std::string& folder) {
  TIE_TRY(Bytes text, os::read_file(folder + "/issuer", tokens::kMaxIssuerFileBytes));
  return tokens::parse_issuer_file(as_text(text));
}

Result<std::vector<SigningKey>> load_keys(const std::string& folder) {
  TIE_TRY(tokens::IssuerFile file, load_public(folder));
  std::vector<SigningKey> out;
  for (const auto& half : file.keys) {
    TIE_TRY(Bytes pem, os::read_file(key_path(folder, half.id), tokens::kMaxPemBytes));
    auto key = tokens::BlindRsaPrivateKey::from_pem(as_text(pem));
    secure_zero(pem);
    if (!key) return std::unexpected(std::move(key.error()).context(key_path(folder, half.id)));
    if (key->public_key().key_id() != half.id)
      return fail(Code::kCorrupt, key_path(folder, half.id) + " is another key's private half");
    out.push_back({std::move(*key), half.not_before_s, half.not_after_s});
  }
  return out;
}

Result<std::vector<Credential>> load_credentials(const std::string& folder) {
  TIE_TRY(Bytes text, os::read_file(folder + "/credentials", kMaxCredentialsBytes));
  return parse_credentials(as_text(text));
}

}  // namespace tie::issuer
