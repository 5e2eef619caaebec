#include "keys/replay_guard/replay_guard.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "crypto/sha256.h"
#include "os/lock_file.h"

namespace tie::keys {
namespace {

constexpr std::string_view kMagic = "tie replay 1\n";
constexpr size_t kCheckBytes = 8;
constexpr size_t kRecordBytes = 32 + kCheckBytes;

using Check = std::array<uint8_t, kCheckBytes>;

Check check_of(ByteView before, ByteView what) {
  crypto::Digest digest = crypto::sha256({before, what});
  Check out;
  std::memcpy(out.data(), digest.data(), out.size());
  return out;
}

Bytes header_for(ByteView key_id) {
  Bytes out = to_bytes(kMagic);
  append(out, key_id);
  append(out, ByteView(check_of({}, out)));
  return out;
}

Check first_check(ByteView key_id) {
  Bytes header = header_for(key_id);
  Check out;
  std::memcpy(out.data(), header.data() + header.size() - out.size(), out.size());
  return out;
}

}  // namespace

Result<ReplayGuard> ReplayGuard::open(const std::string& state_dir, size_t max_records_per_key) {
  if (::mkdir(state_dir.c_str(), 0700) != 0 && errno != EEXIST) return fail_errno("making " + state_dir, errno);
  TIE_TRY(os::Fd lock, os::lock_file(state_dir + "/lock"));
  return ReplayGuard(state_dir, std::move(lock), max_records_per_key);
}

std::string ReplayGuard::path_of(ByteView key_id) const {
  return dir_ + "/replay-" + to_hex(key_id);
}

Result<void> ReplayGuard::open_key(ByteView key_id, bool may_begin) {
  std::string id = to_string(key_id);
  if (auto known = keys_.find(id); known != keys_.end()) {
    if (known->second.lost) return fail(Code::kCorrupt, "the replay record of this key was lost");
    return {};
  }
  struct stat st{};
  bool exists = ::stat(path_of(key_id).c_str(), &st) == 0;
  if (!exists && !may_begin) return fail(Code::kCorrupt, "the key was in use but its replay record is gone");
  TIE_TRY(Key key, exists ? restore(key_id) : begin(key_id));
  keys_.emplace(std::move(id), std::move(key));
  return {};
}

Result<ReplayGuard::Key> ReplayGuard::begin(ByteView key_id) const {
  // Written beside and renamed: a record exists whole or not at all.
  TIE_CHECK_OK(os::write_file_atomic(path_of(key_id), header_for(key_id)));
  return restore(key_id);
}

Result<ReplayGuard::Key> ReplayGuard::restore(ByteView key_id) const {
  std::string path = path_of(key_id);
  Bytes header = header_for(key_id);
  TIE_TRY(Bytes bytes, os::read_file(path, header.size() + (max_records_ + 1) * kRecordBytes));
  if (bytes.size() < header.size() || !std::equal(header.begin(), header.end(), bytes.begin()))
    return fail(Code::kCorrupt, "the replay record of this key has no valid beginning");
  Key key;
  key.check = first_check(key_id);
  size_t at = header.size();
  for (; at + kRecordBytes <= bytes.size(); at += kRecordBytes) {
    Fingerprint fingerprint;
    std::memcpy(fingerprint.data(), bytes.data() + at, fingerprint.size());
    Check check = check_of(key.check, fingerprint);
    if (std::memcmp(check.data(), bytes.data() + at + fingerprint.size(), check.size()) != 0)
      return fail(Code::kCorrupt, "the replay record of this key fails its check");
    key.check = check;
    key.seen.insert(fingerprint);
  }
  key.file = os::Fd(::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!key.file) return fail_errno("opening a replay record", errno);
  if (at != bytes.size() && ::ftruncate(key.file.get(), static_cast<off_t>(at)) != 0)
    return fail_errno("cutting a torn record", errno);
  if (::lseek(key.file.get(), static_cast<off_t>(at), SEEK_SET) < 0)
    return fail_errno("seeking in a replay record", errno);
  return key;
}

void ReplayGuard::close_key(ByteView key_id) {
  keys_.erase(to_string(key_id));
  ::unlink(path_of(key_id).c_str());
}

Result<void> ReplayGuard::record(ByteView key_id, ByteView encapsulated_key) {
  auto found = keys_.find(to_string(key_id));
  if (found == keys_.end() || found->second.lost)
    return fail(Code::kKeyUnknownOrExpired, error_info(Code::kKeyUnknownOrExpired).sentence);
  Key& key = found->second;
  Fingerprint fingerprint = crypto::sha256(encapsulated_key);
  if (key.seen.contains(fingerprint)) return fail(Code::kReplayed, error_info(Code::kReplayed).sentence);
  Check check = check_of(key.check, fingerprint);
  std::array<uint8_t, kRecordBytes> record;
  std::memcpy(record.data(), fingerprint.data(), fingerprint.size());
  std::memcpy(record.data() + fingerprint.size(), check.data(), check.size());
  bool full = key.seen.size() >= max_records_;
  if (full || ::write(key.file.get(), record.data(), record.size()) != static_cast<ssize_t>(record.size())) {
    key.lost = true;
    return fail(Code::kKeyUnknownOrExpired, error_info(Code::kKeyUnknownOrExpired).sentence);
  }
  key.check = check;
  key.seen.insert(fingerprint);
  return {};
}

size_t ReplayGuard::size(ByteView key_id) const {
  auto found = keys_.find(to_string(key_id));
  return found == keys_.end() ? 0 : found->second.seen.size();
}

bool ReplayGuard::lost(ByteView key_id) const {
  auto found = keys_.find(to_string(key_id));
  return found != keys_.end() && found->second.lost;
}

}  // namespace tie::keys
