"""EnsembleWarden against the independent implementation: each opens what the other wrote, and refuses what was changed."""
import json
import os
import pathlib
import subprocess

import pytest

pytest.importorskip("cryptography")
from cryptography.exceptions import InvalidTag  # noqa: E402

import kv_cache as kv  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[3]
VECTORS = ROOT / "tests/data/kv_cache/vectors.json"
WARDEN = pathlib.Path(os.environ.get("TIE_BUILD", ROOT / "build/release")) / "testing/warden"


def warden(**request):
    """EnsembleWarden in a process of its own: bytes are hex both ways; {"error": …} when it refuses."""
    plain = {name: value.hex() if isinstance(value, bytes) else value for name, value in request.items()}
    done = subprocess.run([WARDEN], input=json.dumps(plain), capture_output=True, text=True, timeout=60, check=True)
    return json.loads(done.stdout)


def conversation():
    key, identity = os.urandom(32), os.urandom(96)
    blocks = [os.urandom(1000) for _ in range(5)]
    return key, identity, blocks


def test_the_vectors_are_reproduced():
    assert kv.to_json(kv.make_vectors()) == json.loads(VECTORS.read_text())


def test_python_opens_what_the_warden_sealed():
    key, identity, blocks = conversation()
    tokens = list(range(100, 200))
    got = warden(op="seal", key=key, identity=identity, first_token=32, block_tokens=16, blocks=[b.hex() for b in blocks], tokens=tokens)
    segment, manifest = bytes.fromhex(got["segment"]), bytes.fromhex(got["manifest"])
    assert kv.open_segment(key, identity, segment) == blocks
    opened_tokens, references = kv.open_manifest(key, identity, manifest)
    assert opened_tokens == tokens
    assert references == [(segment[8:40], 32, 5, kv.segment_digest(segment, 5, 1000))]
    assert got["manifest_id"] == kv.manifest_id(key).hex() and got["segment_id"] == kv.segment_id(key, segment[8:40]).hex()
    with pytest.raises(InvalidTag):
        kv.open_segment(os.urandom(32), identity, segment)
    with pytest.raises(InvalidTag):
        kv.open_manifest(key, os.urandom(96), manifest)


def test_the_warden_opens_what_python_sealed():
    key, identity, blocks = conversation()
    salts, tokens = [os.urandom(32), os.urandom(32)], [7, 0, 2**31 - 1]
    segment = kv.seal_segment(key, identity, salts[0], 16, 16, blocks)
    reference = (salts[0], 16, 5, kv.segment_digest(segment, 5, 1000))
    manifest = kv.seal_manifest(key, identity, salts[1], tokens, [reference])
    got = warden(op="open", key=key, identity=identity, manifest=manifest, segment=segment, block_tokens=16, block_bytes=1000)
    assert got == {"tokens": tokens, "blocks": [b.hex() for b in blocks]}


@pytest.mark.parametrize("change", ["key", "identity", "manifest", "segment", "digest"])
def test_the_warden_refuses_what_python_changed(change):
    key, identity, blocks = conversation()
    salts = [os.urandom(32), os.urandom(32)]
    segment = kv.seal_segment(key, identity, salts[0], 0, 16, blocks)
    digest = os.urandom(32) if change == "digest" else kv.segment_digest(segment, 5, 1000)
    manifest = kv.seal_manifest(key, identity, salts[1], [1], [(salts[0], 0, 5, digest)])
    parts = {"key": key, "identity": identity, "manifest": manifest, "segment": segment}
    if change in parts:
        changed = bytearray(parts[change])
        changed[-1] ^= 1
        parts[change] = bytes(changed)
    assert "error" in warden(op="open", block_tokens=16, block_bytes=1000, **parts)
