#include "keys/tpm/measured_log.h"

#include <sys/stat.h>

#include <algorithm>
#include <sstream>

namespace tie::tpm {
namespace {

using attestation::Measured;
using attestation::Measurement;

constexpr size_t kMaxLogBytes = 128 << 10;

std::string render(const std::vector<Measurement>& entries) {
  std::string out;
  for (const Measurement& entry : entries)
    out += std::to_string(static_cast<int>(entry.what)) + " " + to_hex(entry.digest) + "\n";
  return out;
}

}  // namespace

Result<MeasuredLog> MeasuredLog::open(const std::string& path, TpmLink& link) {
  MeasuredLog out(path);
  TIE_CHECK_OK(out.read());
  if (out.entries_.empty()) return out;
  TIE_TRY(const Pcrs now, read_pcrs(link, {attestation::kMeasuredPcr}));
  const std::vector<Measurement> but_last(out.entries_.begin(), out.entries_.end() - 1);
  if (now.front().second == attestation::replay(but_last))
    TIE_CHECK_OK(extend_pcr(link, attestation::kMeasuredPcr, attestation::extension_of(out.entries_.back())));
  return out;
}

Result<void> MeasuredLog::read() {
  struct stat st{};
  if (::stat(path_.c_str(), &st) != 0) return {};
  TIE_TRY(const Bytes text, os::read_file(path_, kMaxLogBytes));
  std::istringstream lines(to_string(text));
  int kind = 0;
  std::string hex;
  while (lines >> kind >> hex) {
    TIE_TRY(const Bytes bytes, from_hex(hex));
    TIE_TRY(const crypto::Digest digest, crypto::digest_from(bytes, "a measurement"));
    if (kind < 1 || kind > 3) return fail(Code::kCorrupt, path_ + " is not a measurement log");
    entries_.push_back({static_cast<Measured>(kind), digest});
  }
  if (!lines.eof() || entries_.size() > attestation::kMaxMeasurements)
    return fail(Code::kCorrupt, path_ + " is not a measurement log");
  return {};
}

Result<void> MeasuredLog::measure(const Measurement& measurement, TpmLink& link) {
  if (std::find(entries_.begin(), entries_.end(), measurement) != entries_.end()) return {};
  if (entries_.size() >= attestation::kMaxMeasurements)
    return fail(Code::kTooLarge, "more was measured than one evidence can list; restart the machine");
  entries_.push_back(measurement);
  TIE_CHECK_OK(os::write_file_atomic(path_, as_bytes(render(entries_))));
  return extend_pcr(link, attestation::kMeasuredPcr, attestation::extension_of(measurement));
}

}  // namespace tie::tpm
