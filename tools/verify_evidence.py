#!/usr/bin/env python3
"""Verifies a node's attestation bundle without any code of the product: written from docs/wire-format.md and proto/attestation.proto.

  verify_evidence.py --policy policy.toml --bundle FILE [--challenge HEX]     a serialized AttestationBundle
  verify_evidence.py --policy policy.toml --claims-socket PATH                asks workload_servicesd itself, with a fresh challenge

Prints each check; exit status 0 when the policy accepts the node, 1 when not. Needs Python 3.11 and the `cryptography` package.
"""
import argparse
import hashlib
import os
import socket
import struct
import sys
import time
import tomllib

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

XWING, X25519 = 0x647A, 0x0020
PUBLIC_KEY_BYTES = {XWING: 1216, X25519: 32}
MAX_BUNDLE_BYTES = 1 << 20


def sha256(data):
    return hashlib.sha256(data).digest()


def sha512(data):
    return hashlib.sha512(data).digest()


class Malformed(Exception):
    pass


# --- protobuf, as far as a bundle needs it ------------------------------------------------------------------------------------------

def varint(data, at):
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise Malformed("a varint runs over the end")
        value |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 0x80:
            return value, at


def fields(data):
    """{number: [values]} of a message; only varints and length-delimited fields occur in a bundle."""
    out, at = {}, 0
    while at < len(data):
        tag, at = varint(data, at)
        if tag & 7 == 0:
            value, at = varint(data, at)
        elif tag & 7 == 2:
            size, at = varint(data, at)
            if at + size > len(data):
                raise Malformed("a field runs over the end")
            value, at = data[at:at + size], at + size
        else:
            raise Malformed("an unexpected wire type")
        out.setdefault(tag >> 3, []).append(value)
    return out


def one(message, number, default=b""):
    return message.get(number, [default])[-1]


# --- claims -------------------------------------------------------------------------------------------------------------------------

def claims_fields(data, label, count):
    parts, at = [], 0
    while at < len(data):
        if at + 4 > len(data):
            raise Malformed("claims are not in their canonical form")
        size = struct.unpack_from(">I", data, at)[0]
        if at + 4 + size > len(data):
            raise Malformed("claims are not in their canonical form")
        parts.append(data[at + 4:at + 4 + size])
        at += 4 + size
    if len(parts) != count + 1 or parts[0] != label:
        raise Malformed("claims are not in their canonical form")
    return parts[1:]


def digest_list(data):
    items = [data[i:i + 32] for i in range(0, len(data), 32)]
    if len(data) % 32 or any(a >= b for a, b in zip(items, items[1:])):
        raise Malformed("a list of digests is not in its canonical form")
    return items


def encode(*parts):
    return b"".join(struct.pack(">I", len(p)) + p for p in parts)


# --- TPM quotes ---------------------------------------------------------------------------------------------------------------------

MEASURED_PCR = 14
RELEASE, MODEL, PROMPT = 1, 2, 3


def rows(data):
    """[(number, 32 bytes)] of a list of one-byte numbers with a digest each."""
    if len(data) % 33:
        raise Malformed("a list in the TPM quote is not in its canonical form")
    return [(data[i], data[i + 1:i + 33]) for i in range(0, len(data), 33)]


class Quote:
    """A TPMS_ATTEST over one selection of the SHA-256 bank, its signature, the PCR values and the measurement log."""

    def __init__(self, raw):
        self.attest, self.signature, self.key, pcrs, log = claims_fields(raw, b"tie/1 tpm quote", 5)
        self.pcrs, self.log = rows(pcrs), rows(log)
        self.at = 0
        self.magic, self.type = self.number(4), self.number(2)
        self.take(self.number(2))
        self.nonce = self.take(self.number(2))
        self.take(17 + 8)
        self.banks, self.bank = self.number(4), self.number(2)
        bitmap = self.take(self.number(1))
        self.selected = [i for i in range(len(bitmap) * 8) if bitmap[i // 8] >> i % 8 & 1]
        self.pcr_digest = self.take(self.number(2))
        if self.at != len(self.attest) or (self.magic, self.type, self.banks, self.bank) != (0xFF544347, 0x8018, 1, 0x000B):
            raise Malformed("the TPM's statement is not a quote")

    def take(self, size):
        if self.at + size > len(self.attest):
            raise Malformed("the TPM's statement is cut")
        self.at += size
        return self.attest[self.at - size:self.at]

    def number(self, size):
        return int.from_bytes(self.take(size), "big")

    def signed(self):
        try:
            point = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), b"\4" + self.key)
            pair = encode_dss_signature(int.from_bytes(self.signature[:32], "big"), int.from_bytes(self.signature[32:], "big"))
            point.verify(pair, self.attest, ec.ECDSA(hashes.SHA256()))
            return len(self.signature) == 64
        except (InvalidSignature, ValueError):
            return False

    def replayed(self):
        pcr = bytes(32)
        for kind, digest in self.log:
            pcr = sha256(pcr + sha256(b"tie/1 measurement" + bytes([kind]) + digest))
        return pcr

    def measured(self, kind):
        return {digest for number, digest in self.log if number == kind}


class Verifier:
    def __init__(self, policy):
        self.policy, self.passed, self.lines, self.quotes = policy, True, [], {}

    def check(self, good, sentence):
        self.passed &= bool(good)
        self.lines.append(("ok  " if good else "FAIL", sentence))
        return good

    def evidence(self, raw, whose, challenge):
        message = fields(raw)
        kind, claims, said = one(message, 1).decode("ascii", "replace"), one(message, 2), one(message, 3)
        report = sha512(b"tie/1 report data" + sha512(said + sha512(claims)))
        self.check(kind in self.policy["accepted_kinds"], f"{whose}: the policy accepts evidence of kind '{kind}'")
        self.check(said == challenge, f"{whose}: answers the challenge")
        self.check(one(message, 4) == report, f"{whose}: report data covers claims and challenge")
        if kind == "tpm":
            self.quotes[whose] = self.quote(Quote(one(message, 7)), report, whose)
        else:
            self.check(kind == "software" and self.signed(one(message, 5), one(message, 6), report), f"{whose}: signed by its boot-time key")
        return claims

    def quote(self, quote, report, whose):
        key = sha256(quote.key).hex()
        self.check(quote.signed(), f"{whose}: signed by the TPM's attestation key")
        self.check(key in self.policy.get("tpm_keys", []), f"{whose}: the policy pins the TPM key {key}")
        self.check(quote.nonce == sha256(b"tie/1 tpm nonce" + report), f"{whose}: the TPM quoted this report data")
        listed = [index for index, _ in quote.pcrs] == quote.selected and sha256(b"".join(v for _, v in quote.pcrs)) == quote.pcr_digest
        self.check(listed, f"{whose}: the TPM quoted these PCR values")
        values = dict(quote.pcrs)
        for pinned in self.policy.get("tpm_pcrs", []):
            index, value = pinned.split(":")
            self.check(values.get(int(index), b"").hex() == value, f"{whose}: PCR {index} has the pinned value")
        return quote

    def measurements(self, quote, release, models, prompts):
        values = dict(quote.pcrs)
        self.check(values.get(MEASURED_PCR) == quote.replayed(), "the measurement log explains PCR 14: nothing unlogged was measured")
        self.check(quote.measured(RELEASE) == {release}, "the TPM measured the claimed release, and no other")
        self.check(set(digest_list(models)) <= quote.measured(MODEL), "the TPM measured every claimed model")
        self.check(set(digest_list(prompts)) <= quote.measured(PROMPT), "the TPM measured every claimed system prompt")

    @staticmethod
    def signed(public_key, signature, report):
        try:
            Ed25519PublicKey.from_public_bytes(public_key).verify(signature, b"tie/1 evidence" + report)
            return True
        except (InvalidSignature, ValueError):
            return False

    def bundle(self, raw, challenge, now_ms):
        message = fields(raw)
        if challenge is None:
            challenge = sha256(b"tie/1 epoch" + struct.pack(">Q", one(message, 6, 0)))
        workload = self.evidence(one(message, 3), "workload", challenge)
        service = self.evidence(one(message, 4), "key service", challenge)
        binding, release, models, prompts = claims_fields(workload, b"tie/1 workload claims", 4)
        suite, kem_key, service_binding, expiry, _uuid = claims_fields(service, b"tie/1 key service claims", 5)
        if "workload" in self.quotes:
            self.measurements(self.quotes["workload"], release, models, prompts)
        kem = fields(one(message, 1))
        stated = (struct.pack(">I", one(kem, 1, 0)), one(kem, 2), one(kem, 3), struct.pack(">Q", one(kem, 4, 0)),
                  b"".join(sorted(kem.get(5, []))), b"".join(sorted(kem.get(6, []))))
        covered = (suite, kem_key, binding, expiry, models, prompts)
        self.check(binding == service_binding, "both evidences name the same binding key")
        self.check(stated == covered, "the request key's claims say what the evidences say, and no more")
        self.check(one(message, 2) == sha256(encode(b"tie/1 kem claims", *covered)), "the key id is the digest of the claims")
        self.check(len(kem_key) == PUBLIC_KEY_BYTES.get(int.from_bytes(suite, "big"), -1), "the request key is of a known suite")
        self.check(int.from_bytes(expiry, "big") > now_ms, "the request key has not expired")
        self.check(release.hex() in self.policy["release_ids"], f"the policy pins release {release.hex()[:12]}")
        for key, name, items in (("model_ids", "model", digest_list(models)), ("prompt_digests", "system prompt", digest_list(prompts))):
            if key in self.policy:
                self.check(all(i.hex() in self.policy[key] for i in items), f"the policy pins every {name}")
        offered = [one(fields(m), 2) for m in message.get(5, [])]
        self.check(all(m in digest_list(models) for m in offered), "every offered model is covered by the evidence")


def ask_claims_socket(path, challenge):
    request = b"\x0a" + bytes([len(challenge)]) + challenge  # ClaimsRequest.challenge
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(10)
        link.connect(path)
        link.sendall(struct.pack(">I", len(request)) + request)
        size = struct.unpack(">I", read(link, 4))[0]
        if size > MAX_BUNDLE_BYTES:
            raise Malformed("the answer is too large")
        reply = fields(read(link, size))
    if 1 not in reply:
        raise Malformed("workload_servicesd refuses: " + one(fields(one(reply, 2)), 2).decode("utf-8", "replace"))
    return one(reply, 1)


def read(link, size):
    out = b""
    while len(out) < size:
        piece = link.recv(size - len(out))
        if not piece:
            raise Malformed("the connection ended")
        out += piece
    return out


def load_policy(path):
    with open(path, "rb") as file:
        policy = tomllib.load(file)
    unknown = set(policy) - {"release_ids", "accepted_kinds", "model_ids", "prompt_digests", "tpm_keys", "tpm_pcrs"}
    if unknown or not policy.get("release_ids") or not policy.get("accepted_kinds"):
        raise Malformed(f"not a usable policy: {', '.join(unknown) or 'nothing is pinned'}")
    return policy


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", required=True)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--bundle")
    source.add_argument("--claims-socket")
    parser.add_argument("--challenge", help="hex; without it a bundle from a file must carry its publication epoch's challenge")
    parser.add_argument("--now-ms", type=int, default=None)
    options = parser.parse_args(arguments)
    try:
        verifier = Verifier(load_policy(options.policy))
        challenge = bytes.fromhex(options.challenge) if options.challenge else None
        if options.claims_socket:
            challenge = challenge or os.urandom(32)
            raw = ask_claims_socket(options.claims_socket, challenge)
        else:
            with open(options.bundle, "rb") as file:
                raw = file.read(MAX_BUNDLE_BYTES)
        verifier.bundle(raw, challenge, options.now_ms if options.now_ms is not None else time.time_ns() // 1_000_000)
    except (Malformed, OSError, ValueError) as error:
        print(f"FAIL {error}")
        return 1
    for mark, sentence in verifier.lines:
        print(mark, sentence)
    kinds = "TPM evidence" if len(verifier.quotes) == 2 else "software evidence: unattested"
    print(f"accepted; {kinds}" if verifier.passed else "refused")
    return 0 if verifier.passed else 1


if __name__ == "__main__":
    sys.exit(main())
