#include "crypto/sha256.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace tie::crypto {
namespace {

template <typename Out>
void hash_into(const EVP_MD* md, std::initializer_list<ByteView> parts, Out& out) {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  tie_check(context != nullptr && EVP_DigestInit_ex(context, md, nullptr) == 1, "libcrypto has the hash");
  for (ByteView part : parts) tie_check(EVP_DigestUpdate(context, part.data(), part.size()) == 1, "hashing goes on");
  tie_check(EVP_DigestFinal_ex(context, out.data(), nullptr) == 1, "hashing ends");
  EVP_MD_CTX_free(context);
}

}  // namespace

Digest sha256(ByteView bytes) {
  return sha256({bytes});
}

Digest sha256(std::initializer_list<ByteView> parts) {
  Digest out;
  hash_into(EVP_sha256(), parts, out);
  return out;
}

Digest512 sha512(std::initializer_list<ByteView> parts) {
  Digest512 out;
  hash_into(EVP_sha512(), parts, out);
  return out;
}

Digest sha3_256(std::initializer_list<ByteView> parts) {
  Digest out;
  hash_into(EVP_sha3_256(), parts, out);
  return out;
}

SecretBytes shake256(std::initializer_list<ByteView> parts, size_t output_bytes) {
  SecretBytes out(output_bytes);
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  tie_check(context != nullptr && EVP_DigestInit_ex(context, EVP_shake256(), nullptr) == 1, "libcrypto has SHAKE256");
  for (ByteView part : parts) tie_check(EVP_DigestUpdate(context, part.data(), part.size()) == 1, "hashing goes on");
  tie_check(EVP_DigestFinalXOF(context, out.data(), output_bytes) == 1, "hashing ends");
  EVP_MD_CTX_free(context);
  return out;
}

Result<Digest> digest_from(ByteView bytes, const char* what) {
  if (bytes.size() != kSha256Bytes)
    return fail(Code::kBadRequest, std::string(what) + " has " + std::to_string(bytes.size()) + " bytes, not 32");
  Digest out;
  std::memcpy(out.data(), bytes.data(), out.size());
  return out;
}

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  tie_check(context_ != nullptr && EVP_DigestInit_ex(context_, EVP_sha256(), nullptr) == 1, "libcrypto has SHA-256");
}

Sha256::~Sha256() {
  EVP_MD_CTX_free(context_);
}

Sha256::Sha256(Sha256&& other) noexcept : context_(std::exchange(other.context_, nullptr)) {}

void Sha256::update(ByteView bytes) {
  tie_check(EVP_DigestUpdate(context_, bytes.data(), bytes.size()) == 1, "hashing goes on");
}

Digest Sha256::finish() {
  Digest out;
  tie_check(EVP_DigestFinal_ex(context_, out.data(), nullptr) == 1, "hashing ends");
  return out;
}

Result<Digest> sha256_file(const std::string& path) {
  int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0 && errno == ENOENT) return fail(Code::kNotFound, path + " does not exist");
  if (fd < 0) return fail_errno("opening " + path, errno);
  posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
  Sha256 hash;
  Bytes piece(1 << 18);
  for (;;) {
    ssize_t got = read(fd, piece.data(), piece.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      int error = errno;
      close(fd);
      return fail_errno("reading " + path, error);
    }
    if (got == 0) break;
    hash.update({piece.data(), static_cast<size_t>(got)});
  }
  close(fd);
  return hash.finish();
}

}  // namespace tie::crypto
