"""The vectors that the C++ tests open are those of the independent implementation, and it opens them itself."""
import json
import pathlib

import pytest

pytest.importorskip("cryptography")
from cryptography.exceptions import InvalidTag  # noqa: E402

import sealed_stream as s  # noqa: E402

VECTORS = pathlib.Path(__file__).resolve().parents[2] / "data/sealed_stream/vectors.json"


@pytest.fixture()
def v():
    raw = json.loads(VECTORS.read_text())
    return {name: [bytes.fromhex(x) for x in value] if isinstance(value, list) else bytes.fromhex(value) for name, value in raw.items()}


def opened_context(v):
    return s.Context(s.X25519, s.x25519_decapsulate(v["node_private"], v["enc"]), s.request_info(s.X25519, v["key_id"]))


def test_the_vectors_are_reproduced():
    assert s.to_json(s.make_vectors()) == json.loads(VECTORS.read_text())


def test_a_node_opens_the_request(v):
    dek = opened_context(v).open(0, b"tie/1 request dek", v["sealed_dek"])
    pieces = s.open_request(dek, v["key_id"], v["clear_parameters"], v["chunks"])
    assert s.split_messages(b"".join(pieces)) == v["messages"]
    with pytest.raises(InvalidTag):
        s.open_request(dek, v["key_id"], v["clear_parameters"] + b"x", v["chunks"])
    with pytest.raises(InvalidTag):
        s.open_request(dek, v["key_id"], v["clear_parameters"], v["chunks"][:-1])


def test_a_client_opens_the_response(v):
    assert s.open_response(opened_context(v), v["enc"], v["salt"], v["response_chunks"]) == v["events"]
    with pytest.raises(InvalidTag):
        s.open_response(opened_context(v), v["enc"], v["salt"], v["response_chunks"][:2])


def test_the_evidence_verifies(v):
    s.check_evidence(v["evidence_public_key"], v["workload_claims"], v["challenge"], v["evidence_signature"])
