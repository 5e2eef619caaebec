"""Sealed conversation state as docs/kv-cache-format.md states it, written from that page alone: seals and opens segments and manifests.

`python3 kv_cache.py` prints the vectors of tests/data/kv_cache/vectors.json, which the C++ tests open.
"""
import hashlib
import json
import struct

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

DOMAIN = b"tie kv cache v1 "
SEGMENT_MAGIC, MANIFEST_MAGIC = b"TIEKVSG1", b"TIEKVMF1"
SEGMENT_HEADER, MANIFEST_HEADER, TAG = 60, 40, 16


def derive(turn_key, purpose, salt=b""):
    return HKDF(hashes.SHA256(), 32, None, DOMAIN + purpose + salt).derive(turn_key)


def manifest_id(turn_key):
    return derive(turn_key, b"entry id")


def segment_id(turn_key, salt):
    return derive(turn_key, b"segment id", salt)


def nonce(index):
    return index.to_bytes(12, "big")


def segment_digest(sealed, block_count, block_bytes):
    stride = block_bytes + TAG
    tags = [sealed[SEGMENT_HEADER + (i + 1) * stride - TAG : SEGMENT_HEADER + (i + 1) * stride] for i in range(block_count)]
    return hashlib.sha256(sealed[:SEGMENT_HEADER] + b"".join(tags)).digest()


def seal_segment(turn_key, identity, salt, first_token, block_tokens, blocks):
    header = SEGMENT_MAGIC + salt + struct.pack(">IIIQ", first_token, len(blocks), block_tokens, len(blocks[0]))
    cipher = AESGCM(derive(turn_key, b"segment", salt))
    return header + b"".join(cipher.encrypt(nonce(i), block, DOMAIN + identity + header + struct.pack(">I", i)) for i, block in enumerate(blocks))


def open_segment(turn_key, identity, sealed):
    """The blocks; cryptography's InvalidTag when they do not open."""
    assert sealed[:8] == SEGMENT_MAGIC
    header, salt = sealed[:SEGMENT_HEADER], sealed[8:40]
    _, count, _, size = struct.unpack(">IIIQ", header[40:])
    assert len(sealed) == SEGMENT_HEADER + count * (size + TAG)
    cipher = AESGCM(derive(turn_key, b"segment", salt))
    pieces = [sealed[SEGMENT_HEADER + i * (size + TAG) : SEGMENT_HEADER + (i + 1) * (size + TAG)] for i in range(count)]
    return [cipher.decrypt(nonce(i), piece, DOMAIN + identity + header + struct.pack(">I", i)) for i, piece in enumerate(pieces)]


def seal_manifest(turn_key, identity, salt, tokens, references):
    """references: (salt, first token, blocks, digest) of each segment."""
    header = MANIFEST_MAGIC + salt
    body = struct.pack(">II", len(tokens), len(references)) + struct.pack(f">{len(tokens)}i", *tokens)
    for reference_salt, first_token, blocks, digest in references:
        body += reference_salt + struct.pack(">II", first_token, blocks) + digest
    return header + AESGCM(derive(turn_key, b"manifest", salt)).encrypt(nonce(0), body, DOMAIN + identity + header)


def open_manifest(turn_key, identity, sealed):
    assert sealed[:8] == MANIFEST_MAGIC
    header = sealed[:MANIFEST_HEADER]
    body = AESGCM(derive(turn_key, b"manifest", header[8:])).decrypt(nonce(0), sealed[MANIFEST_HEADER:], DOMAIN + identity + header)
    token_count, segment_count = struct.unpack(">II", body[:8])
    assert len(body) == 8 + 4 * token_count + 72 * segment_count
    tokens = list(struct.unpack(f">{token_count}i", body[8 : 8 + 4 * token_count]))
    rows = [body[8 + 4 * token_count + 72 * i :][:72] for i in range(segment_count)]
    return tokens, [(row[:32], *struct.unpack(">II", row[32:40]), row[40:]) for row in rows]


def make_vectors():
    """Two segments of 16-token blocks and their manifest, from fixed salts."""
    def fixed(label, size=32):
        return hashlib.shake_256(b"tie kv cache vectors " + label).digest(size)

    key, identity = fixed(b"turn key"), fixed(b"identity", 96)
    blocks = [fixed(b"block %d" % i, 100) for i in range(3)]
    salts = [fixed(b"salt %d" % i) for i in range(3)]
    segments = [seal_segment(key, identity, salts[0], 0, 16, blocks[:2]), seal_segment(key, identity, salts[1], 32, 16, blocks[2:])]
    tokens = [i * 997 for i in range(50)]
    references = [(salts[0], 0, 2, segment_digest(segments[0], 2, 100)), (salts[1], 32, 1, segment_digest(segments[1], 1, 100))]
    return {
        "turn_key": key, "model_id": identity[:32], "release_id": identity[32:64], "layout_id": identity[64:], "manifest_id": manifest_id(key), "segment_ids": [segment_id(key, salt) for salt in salts[:2]],
        "blocks": blocks, "segments": segments, "digests": [reference[3] for reference in references], "manifest": seal_manifest(key, identity, salts[2], tokens, references), "tokens": tokens,
    }


def to_json(vectors):
    def text(value):
        if isinstance(value, bytes):
            return value.hex()
        return [text(v) for v in value] if isinstance(value, list) else value

    return {name: text(value) for name, value in vectors.items()}


if __name__ == "__main__":
    print(json.dumps(to_json(make_vectors()), indent=1))
