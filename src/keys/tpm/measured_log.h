// The log of what this node measured into PCR 14, in a file of its tmpfs, one line each: KIND HEX. A line is written
// before the PCR is extended; a process that dies in between finds at its next start that the last line is missing in
// the PCR and extends it then. The TPM outlives restarts of the node: what is in the PCR and not in the log cannot be
// explained, and every client refuses the evidence. One thread. Source: docs/wire-format.md, "TPM quotes".
#pragma once
#include <string>
#include <vector>

#include "keys/attestation/tpm_quote.h"
#include "keys/tpm/tpm_commands.h"

namespace tie::tpm {

class MeasuredLog {
 public:
  // Reads the log and brings the PCR up to it. `path` may not exist yet. Errors: those of the TPM, kCorrupt for a file
  // that is no log.
  static Result<MeasuredLog> open(const std::string& path, TpmLink& link);
  // Measures what was not measured before.
  Result<void> measure(const attestation::Measurement& measurement, TpmLink& link);
  const std::vector<attestation::Measurement>& entries() const { return entries_; }

 private:
  explicit MeasuredLog(std::string path) : path_(std::move(path)) {}
  Result<void> read();
  std::string path_;
  std::vector<attestation::Measurement> entries_;
};

}  // namespace tie::tpm
