"""The sealed streams of docs/wire-format.md once more, written from that page alone: only hashlib, hmac and the `cryptography` package.

`python3 sealed_stream.py` prints the vectors of tests/data/sealed_stream/vectors.json, which the C++ tests open.
"""
import hashlib
import hmac
import json
import struct

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

X25519 = 0x0020
XWING = 0x647A
KDF = 0x0001
AEAD = 0x0002


def u16(n):
    return struct.pack(">H", n)


def u32(n):
    return struct.pack(">I", n)


def u64(n):
    return struct.pack(">Q", n)


def sha256(data):
    return hashlib.sha256(data).digest()


def sha512(data):
    return hashlib.sha512(data).digest()


def extract(salt, ikm):
    return hmac.new(salt or bytes(32), ikm, hashlib.sha256).digest()


def expand(prk, info, size):
    out, block, counter = b"", b"", 1
    while len(out) < size:
        block = hmac.new(prk, block + info + bytes([counter]), hashlib.sha256).digest()
        out, counter = out + block, counter + 1
    return out[:size]


def hkdf(salt, ikm, info, size):
    return expand(extract(salt, ikm), info, size)


def xor_nonce(base, index):
    return bytes(a ^ b for a, b in zip(base, bytes(4) + u64(index)))


def raw_public(key):
    return key.public_bytes(Encoding.Raw, PublicFormat.Raw)


# --- HPKE base mode, RFC 9180 -------------------------------------------------------------------------------------------------------

def suite_id(kem):
    return b"HPKE" + u16(kem) + u16(KDF) + u16(AEAD)


class Context:
    """A context on either side, from the KEM's shared secret."""

    def __init__(self, kem, shared_secret, info):
        self.suite = suite_id(kem)
        context = b"\x00" + self._extract(b"", b"psk_id_hash", b"") + self._extract(b"", b"info_hash", info)
        secret = self._extract(shared_secret, b"secret", b"")
        self.key = self._expand(secret, b"key", context, 32)
        self.base_nonce = self._expand(secret, b"base_nonce", context, 12)
        self.exporter_secret = self._expand(secret, b"exp", context, 32)

    def _extract(self, salt, label, ikm):
        return extract(salt, b"HPKE-v1" + self.suite + label + ikm)

    def _expand(self, prk, label, info, size):
        return expand(prk, u16(size) + b"HPKE-v1" + self.suite + label + info, size)

    def seal(self, index, aad, plaintext):
        return AESGCM(self.key).encrypt(xor_nonce(self.base_nonce, index), plaintext, aad)

    def open(self, index, aad, sealed):
        return AESGCM(self.key).decrypt(xor_nonce(self.base_nonce, index), sealed, aad)

    def export(self, exporter_context, size):
        return self._expand(self.exporter_secret, b"sec", exporter_context, size)


def x25519_shared_secret(dh, enc, public_key):
    suite = b"KEM" + u16(X25519)
    prk = extract(b"", b"HPKE-v1" + suite + b"eae_prk" + dh)
    return expand(prk, u16(32) + b"HPKE-v1" + suite + b"shared_secret" + enc + public_key, 32)


def x25519_encapsulate(public_key, ephemeral):
    private = X25519PrivateKey.from_private_bytes(ephemeral)
    enc = raw_public(private.public_key())
    return enc, x25519_shared_secret(private.exchange(X25519PublicKey.from_public_bytes(public_key)), enc, public_key)


def x25519_decapsulate(private_key, enc):
    private = X25519PrivateKey.from_private_bytes(private_key)
    return x25519_shared_secret(private.exchange(X25519PublicKey.from_public_bytes(enc)), enc, raw_public(private.public_key()))


# --- Request and response -----------------------------------------------------------------------------------------------------------

def request_info(kem, key_id):
    return b"tie/1 request" + suite_id(kem) + key_id


def chunk_key(dek, key_id, clear_parameters):
    return hkdf(b"", dek, b"tie/1 chunk key" + u16(AEAD) + key_id + sha256(clear_parameters), 32)


def chunk_aad(label, index, final, header=b""):
    return label + u64(index) + bytes([1 if final else 0]) + header


def seal_request(dek, key_id, clear_parameters, base_nonce, pieces):
    aead, out = AESGCM(chunk_key(dek, key_id, clear_parameters)), []
    for index, piece in enumerate(pieces):
        header = u16(AEAD) + base_nonce if index == 0 else b""
        aad = chunk_aad(b"tie/1 chunk", index, index == len(pieces) - 1, header)
        out.append(header + aead.encrypt(xor_nonce(base_nonce, index), piece, aad))
    return out


def open_request(dek, key_id, clear_parameters, chunks):
    aead, base_nonce, out = AESGCM(chunk_key(dek, key_id, clear_parameters)), chunks[0][2:14], []
    for index, chunk in enumerate(chunks):
        header = chunk[:14] if index == 0 else b""
        aad = chunk_aad(b"tie/1 chunk", index, index == len(chunks) - 1, header)
        out.append(aead.decrypt(xor_nonce(base_nonce, index), chunk[len(header):], aad))
    return out


def response_keys(context, enc, salt):
    prk = extract(enc + salt, context.export(b"tie/1 response", 32))
    return AESGCM(expand(prk, b"tie/1 response key", 32)), expand(prk, b"tie/1 response nonce", 12)


def seal_response(context, enc, salt, events):
    aead, base_nonce = response_keys(context, enc, salt)
    return [aead.encrypt(xor_nonce(base_nonce, i), event, chunk_aad(b"tie/1 response chunk", i, i == len(events) - 1)) for i, event in enumerate(events)]


def open_response(context, enc, salt, chunks):
    aead, base_nonce = response_keys(context, enc, salt)
    return [aead.decrypt(xor_nonce(base_nonce, i), chunk, chunk_aad(b"tie/1 response chunk", i, i == len(chunks) - 1)) for i, chunk in enumerate(chunks)]


def derive_key(dek, purpose):
    return hkdf(b"", dek, b"tie/1 derived key" + purpose, 32)


def split_messages(stream):
    out = []
    while stream:
        size = struct.unpack(">I", stream[:4])[0]
        assert len(stream) >= 4 + size, "the stream ends inside a message"
        out.append(stream[4:4 + size])
        stream = stream[4 + size:]
    return out


# --- Claims and evidence ------------------------------------------------------------------------------------------------------------

def fields(*parts):
    return b"".join(u32(len(part)) + part for part in parts)


def digests(items):
    return b"".join(sorted(set(items)))


def kem_claims(kem, kem_key, binding_key, expires_ms, model_ids, prompt_digests):
    return fields(b"tie/1 kem claims", u32(kem), kem_key, binding_key, u64(expires_ms), digests(model_ids), digests(prompt_digests))


def workload_claims(binding_key, release_id, model_ids, prompt_digests):
    return fields(b"tie/1 workload claims", binding_key, release_id, digests(model_ids), digests(prompt_digests))


def key_service_claims(kem, kem_key, binding_key, expires_ms, key_uuid):
    return fields(b"tie/1 key service claims", u32(kem), kem_key, binding_key, u64(expires_ms), key_uuid)


def report_data(claims, challenge):
    return sha512(b"tie/1 report data" + sha512(challenge + sha512(claims)))


def sign_evidence(seed, claims, challenge):
    return Ed25519PrivateKey.from_private_bytes(seed).sign(b"tie/1 evidence" + report_data(claims, challenge))


def check_evidence(public_key, claims, challenge, signature):
    Ed25519PublicKey.from_public_bytes(public_key).verify(signature, b"tie/1 evidence" + report_data(claims, challenge))


# --- The vectors --------------------------------------------------------------------------------------------------------------------

def filled(value, size=32):
    return bytes([value]) * size


def make_vectors():
    node_private = sha256(b"node key")
    node_public = raw_public(X25519PrivateKey.from_private_bytes(node_private).public_key())
    key_id, dek, salt, base_nonce = sha256(b"key id"), sha256(b"dek"), sha256(b"salt"), sha256(b"nonce")[:12]
    parameters = b"clear parameters"
    messages = [b"first", b"", b"third message"]
    stream = b"".join(u32(len(m)) + m for m in messages)
    pieces = [stream[:3], stream[3:11], b"", stream[11:]]
    enc, shared = x25519_encapsulate(node_public, sha256(b"ephemeral"))
    context = Context(X25519, shared, request_info(X25519, key_id))
    claims = {
        "kem": kem_claims(XWING, filled(1, 1216), filled(2, 1216), 1_800_000_000_123, [filled(9), filled(3), filled(9)], [filled(4)]),
        "workload": workload_claims(filled(2, 1216), filled(5), [filled(9), filled(3)], []),
        "key_service": key_service_claims(XWING, filled(1, 1216), filled(2, 1216), 1_800_000_000_123, b"01234567-89ab-4cde-8f01-23456789abcd"),
    }
    seed, challenge = sha256(b"evidence key"), sha256(b"challenge")
    events = [b"event " + bytes([n]) * 100 for n in range(3)]
    return {
        "node_private": node_private, "node_public": node_public, "key_id": key_id, "shared_secret": shared, "enc": enc,
        "clear_parameters": parameters, "sealed_dek": context.seal(0, b"tie/1 request dek", dek), "messages": messages,
        "chunks": seal_request(dek, key_id, parameters, base_nonce, pieces), "salt": salt,
        "events": events, "response_chunks": seal_response(context, enc, salt, events), "derived_kv_cache": derive_key(dek, b"kv-cache"),
        "kem_claims": claims["kem"], "workload_claims": claims["workload"], "key_service_claims": claims["key_service"],
        "kem_claims_key_id": sha256(claims["kem"]), "challenge": challenge, "evidence_report_data": report_data(claims["workload"], challenge),
        "evidence_public_key": raw_public(Ed25519PrivateKey.from_private_bytes(seed).public_key()),
        "evidence_signature": sign_evidence(seed, claims["workload"], challenge), "epoch_7_challenge": sha256(b"tie/1 epoch" + u64(7)),
    }


def to_json(vectors):
    return {name: [v.hex() for v in value] if isinstance(value, list) else value.hex() for name, value in vectors.items()}


if __name__ == "__main__":
    print(json.dumps(to_json(make_vectors()), indent=0))
