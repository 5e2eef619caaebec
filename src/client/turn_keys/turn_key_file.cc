#include "client/turn_keys/turn_key_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "base/random.h"
#include "crypto/aead.h"
#include "crypto/hkdf.h"
#include "os/fd.h"
#include "os/lock_file.h"

namespace tie::client {
namespace {

constexpr std::string_view kMagic = "TIETKEY1";
constexpr std::string_view kLabel = "tie turn keys v1";
constexpr size_t kSaltBytes = 32;
constexpr size_t kHeadBytes = 8 + 12 + kSaltBytes;
constexpr size_t kMaxFileBytes = 16u << 20;
const Bytes kZeroNonce(crypto::kAeadNonceBytes, 0);  // every writing has a key of its own

Result<SecretBytes> sealing_key(const SecretBytes& master, ByteView salt) {
  return crypto::hkdf({}, master.view(), {as_bytes(kLabel), salt}, 32);
}

Bytes new_head(const crypto::PassphraseCost& cost) {
  Bytes head = to_bytes(kMagic);
  for (uint32_t part : {cost.log2_n, cost.r, cost.p}) append_u32_be(head, part);
  Bytes salt(kSaltBytes);
  random_bytes(salt);
  append(head, ByteView(salt));
  return head;
}

Result<SecretBytes> master_of(ByteView head, ByteView passphrase) {
  crypto::PassphraseCost cost{
      .log2_n = load_u32_be(&head[8]), .r = load_u32_be(&head[12]), .p = load_u32_be(&head[16])};
  return crypto::key_from_passphrase(passphrase, head.subspan(20, kSaltBytes), cost, 32);
}

Result<os::Fd> lock_beside(const std::string& path) {
  auto lock = os::lock_file(path + ".lock");
  if (!lock && lock.error().code == Code::kAlreadyExists)
    return fail(Code::kAlreadyExists, "another tie proxy keeps its turn keys in " + path +
                                          "; give this one a file of its own (--turn-keys), or end the other");
  return lock;
}

}  // namespace

Result<TurnKeyFile> TurnKeyFile::open(std::string path, ByteView passphrase, TurnKeyTable& table,
                                      const crypto::PassphraseCost& cost) {
  if (passphrase.empty()) return fail(Code::kBadRequest, "the turn keys' passphrase is empty");
  TurnKeyFile out;
  out.path_ = std::move(path);
  TIE_TRY(out.lock_, lock_beside(out.path_));
  if (::access(out.path_.c_str(), F_OK) != 0) {
    out.head_ = new_head(cost);
    TIE_TRY(out.master_, master_of(out.head_, passphrase));
    TIE_CHECK_OK(out.save(table));  // an unwritable place is told at once
    return out;
  }
  TIE_TRY(Bytes file, os::read_file(out.path_, kMaxFileBytes));
  if (file.size() < kHeadBytes + kSaltBytes + crypto::kAeadTagBytes || as_text(ByteView(file).first(8)) != kMagic)
    return fail(Code::kCorrupt, out.path_ + " is not a file of turn keys");
  ByteView clear = ByteView(file).first(kHeadBytes + kSaltBytes);
  out.head_.assign(file.begin(), file.begin() + kHeadBytes);
  TIE_TRY(out.master_, master_of(out.head_, passphrase));
  TIE_TRY(SecretBytes key, sealing_key(out.master_, clear.subspan(kHeadBytes)));
  auto opened = crypto::aead_open(key.view(), kZeroNonce, clear, ByteView(file).subspan(clear.size()));
  if (!opened)
    return fail(Code::kUnauthenticated, "the passphrase does not open " + out.path_ +
                                            " (or the file was changed). Without it, begin a new file");
  auto parsed = table.parse(*opened);
  secure_zero(*opened);
  TIE_CHECK_OK(parsed);
  return out;
}

Result<void> TurnKeyFile::save(const TurnKeyTable& table) const {
  Bytes file = head_, salt(kSaltBytes);
  random_bytes(salt);
  append(file, ByteView(salt));
  TIE_TRY(SecretBytes key, sealing_key(master_, salt));
  SecretBytes plain = table.serialize();
  TIE_TRY(Bytes sealed, crypto::aead_seal(key.view(), kZeroNonce, file, plain.view()));
  append(file, ByteView(sealed));
  return os::write_file_atomic(path_, file, 0600);
}

}  // namespace tie::client
