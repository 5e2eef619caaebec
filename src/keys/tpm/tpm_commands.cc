#include "keys/tpm/tpm_commands.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/byte_reader.h"

namespace tie::tpm {
namespace {

constexpr uint16_t kNoSessions = 0x8001, kSessions = 0x8002;
constexpr uint32_t kCreatePrimary = 0x131, kQuote = 0x158, kFlushContext = 0x165, kPcrRead = 0x17e, kPcrExtend = 0x182;
constexpr uint32_t kOwner = 0x40000001, kPasswordSession = 0x40000009;
constexpr uint16_t kAlgSha256 = 0x000b, kAlgNull = 0x0010, kAlgEcdsa = 0x0018, kAlgEcc = 0x0023, kCurveP256 = 0x0003;
// fixedTPM, fixedParent, sensitiveDataOrigin, userWithAuth, restricted, sign.
constexpr uint32_t kKeyAttributes = 0x00050072;
constexpr uint32_t kRetry = 0x922, kYielded = 0x908, kTesting = 0x90a;
constexpr int kAttempts = 100;
constexpr int64_t kAgainMs = 20;
constexpr size_t kBitmapBytes = 3;
constexpr size_t kNumberBytes = 32;

void u16(Bytes& out, uint16_t value) {
  out.push_back(static_cast<uint8_t>(value >> 8));
  out.push_back(static_cast<uint8_t>(value));
}

// The empty password, for one handle.
Bytes password_session() {
  Bytes out;
  append_u32_be(out, 9);
  append_u32_be(out, kPasswordSession);
  out.insert(out.end(), {0, 0, 0, 0, 0});
  return out;
}

Bytes selection(const std::vector<uint8_t>& pcrs) {
  Bytes out;
  append_u32_be(out, 1);
  u16(out, kAlgSha256);
  out.push_back(kBitmapBytes);
  Bytes bitmap(kBitmapBytes, 0);
  for (const uint8_t pcr : pcrs) bitmap[pcr / 8] |= static_cast<uint8_t>(1 << pcr % 8);
  append(out, bitmap);
  return out;
}

bool wants_again(uint32_t code) {
  return code == kRetry || code == kYielded || code == kTesting;
}

// What follows the header of a successful response.
Result<Bytes> run(TpmLink& link, uint16_t tag, uint32_t code, const Bytes& body) {
  Bytes command;
  u16(command, tag);
  append_u32_be(command, static_cast<uint32_t>(kHeaderBytes + body.size()));
  append_u32_be(command, code);
  append(command, body);
  TIE_TRY(Bytes response, link.transact(command));
  // A TPM that is busy with itself (its self-test, say) asks to be asked again.
  for (int attempt = 1; attempt < kAttempts && wants_again(load_u32_be(response.data() + 6)); ++attempt) {
    std::this_thread::sleep_for(std::chrono::milliseconds(kAgainMs));
    TIE_TRY(response, link.transact(command));
  }
  if (const uint32_t said = load_u32_be(response.data() + 6); said != 0) {
    Bytes number;
    append_u32_be(number, said);
    return fail(Code::kIo, "the TPM refuses with code " + to_hex(number));
  }
  return Bytes(response.begin() + kHeaderBytes, response.end());
}

std::unexpected<Error> not_understood() {
  return fail(Code::kCorrupt, "the TPM's response cannot be understood");
}

// TPMs leave out leading zeros.
bool append_fixed(Bytes& out, ByteView number) {
  if (number.size() > kNumberBytes) return false;
  out.insert(out.end(), kNumberBytes - number.size(), 0);
  append(out, number);
  return true;
}

Bytes key_template() {
  Bytes out;
  u16(out, kAlgEcc);
  u16(out, kAlgSha256);
  append_u32_be(out, kKeyAttributes);
  u16(out, 0);         // no policy
  u16(out, kAlgNull);  // not a storage key
  u16(out, kAlgEcdsa);
  u16(out, kAlgSha256);
  u16(out, kCurveP256);
  u16(out, kAlgNull);  // no key derivation
  u16(out, 0);         // unique: x
  u16(out, 0);         // unique: y
  return out;
}

}  // namespace

Result<AttestationKey> create_attestation_key(TpmLink& link) {
  Bytes body;
  append_u32_be(body, kOwner);
  append(body, password_session());
  u16(body, 4);  // sensitive part: no password, no data
  u16(body, 0);
  u16(body, 0);
  const Bytes wanted = key_template();
  u16(body, static_cast<uint16_t>(wanted.size()));
  append(body, wanted);
  u16(body, 0);            // outside info
  append_u32_be(body, 0);  // creation PCRs
  TIE_TRY(const Bytes response, run(link, kSessions, kCreatePrimary, body));
  ByteReader in(response);
  AttestationKey out;
  out.handle = static_cast<uint32_t>(in.number(4));
  in.number(4);
  ByteReader made(in.sized(2));
  // The template again, with the point in place of the two empty numbers.
  const ByteView head = made.take(wanted.size() - 4);
  const bool as_wanted = std::equal(head.begin(), head.end(), wanted.begin(), wanted.end() - 4);
  const ByteView x = made.sized(2), y = made.sized(2);
  if (!made.ok() || !as_wanted || !append_fixed(out.point, x) || !append_fixed(out.point, y)) return not_understood();
  return out;
}

Result<void> flush(TpmLink& link, uint32_t handle) {
  Bytes body;
  append_u32_be(body, handle);
  TIE_TRY(const Bytes done, run(link, kNoSessions, kFlushContext, body));
  return {};
}

Result<SignedQuote> quote(TpmLink& link, uint32_t handle, const crypto::Digest& nonce,
                          const std::vector<uint8_t>& pcrs) {
  Bytes body;
  append_u32_be(body, handle);
  append(body, password_session());
  u16(body, static_cast<uint16_t>(nonce.size()));
  append(body, ByteView(nonce));
  u16(body, kAlgNull);  // the key's own scheme
  append(body, selection(pcrs));
  TIE_TRY(const Bytes response, run(link, kSessions, kQuote, body));
  ByteReader in(response);
  in.number(4);
  const ByteView attest = in.sized(2);
  const bool ours = in.number(2) == kAlgEcdsa && in.number(2) == kAlgSha256;
  const ByteView r = in.sized(2), s = in.sized(2);
  SignedQuote out{Bytes(attest.begin(), attest.end()), {}};
  if (!in.ok() || !ours || !append_fixed(out.signature, r) || !append_fixed(out.signature, s)) return not_understood();
  return out;
}

// The TPM answers with as many as fit, so it is asked for one after the other.
Result<Pcrs> read_pcrs(TpmLink& link, const std::vector<uint8_t>& pcrs) {
  Pcrs out;
  for (const uint8_t pcr : pcrs) {
    TIE_TRY(const Bytes response, run(link, kNoSessions, kPcrRead, selection({pcr})));
    ByteReader in(response);
    in.number(4);  // update counter
    const Bytes asked = selection({pcr});
    const ByteView given = in.take(asked.size());
    const bool same = std::equal(given.begin(), given.end(), asked.begin(), asked.end()) && in.number(4) == 1;
    const ByteView value = in.sized(2);
    auto digest = crypto::digest_from(value, "a PCR");
    if (!in.ok() || !same || !digest) return not_understood();
    out.emplace_back(pcr, *digest);
  }
  return out;
}

Result<void> extend_pcr(TpmLink& link, uint8_t pcr, const crypto::Digest& digest) {
  Bytes body;
  append_u32_be(body, pcr);
  append(body, password_session());
  append_u32_be(body, 1);
  u16(body, kAlgSha256);
  append(body, ByteView(digest));
  TIE_TRY(const Bytes done, run(link, kSessions, kPcrExtend, body));
  return {};
}

}  // namespace tie::tpm
