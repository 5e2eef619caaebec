"""The independent implementation against the RFC's vectors; the e2e suite then holds the product against it."""
import json
import pathlib

import privacy_pass

VECTORS = json.loads((pathlib.Path(__file__).resolve().parents[2] / "data/privacy_pass/rfc9578.json").read_text())


def test_the_vectors_of_rfc_9578():
    for vector in VECTORS["vectors"]:
        v = {name: bytes.fromhex(value) for name, value in vector.items()}
        issuance = privacy_pass.Issuance(bytes.fromhex(VECTORS["public_key"]), v["token_challenge"], v["nonce"], v["salt"],
                                         int.from_bytes(v["blind"], "big"))
        assert issuance.request == v["token_request"]
        assert issuance.token(v["token_response"]) == v["token"]
