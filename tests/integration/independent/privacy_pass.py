"""Privacy Pass, token type 2, a second time and from the RFCs alone (9474, 9577, 9578): integers and hashlib, nothing of the product."""
import hashlib
import secrets
import struct
import urllib.request

SPKI_BEGIN = bytes.fromhex("30820152303d06092a864886f70d01010a3030a00d300b0609608648016503040202a11a301806092a864886f70d010108300b0609608648016503040202a2030201300382010f003082010a0282010100")


def numbers_of(spki):
    assert len(spki) == 342 and spki.startswith(SPKI_BEGIN) and spki.endswith(bytes.fromhex("0203010001"))
    return int.from_bytes(spki[len(SPKI_BEGIN):-5], "big"), 65537


def mgf1(seed, size):
    out = b"".join(hashlib.sha384(seed + struct.pack(">I", i)).digest() for i in range(-(-size // 48)))
    return out[:size]


def emsa_pss(message, salt, bits):
    size = -(-bits // 8)
    digest = hashlib.sha384(bytes(8) + hashlib.sha384(message).digest() + salt).digest()
    db = bytes(size - 48 - len(salt) - 2) + b"\1" + salt
    masked = bytearray(a ^ b for a, b in zip(db, mgf1(digest, len(db))))
    masked[0] &= 0xFF >> (8 * size - bits)
    return bytes(masked) + digest + b"\xbc"


def challenge(issuer_name, context, origin=b""):
    return struct.pack(">HH", 2, len(issuer_name)) + issuer_name + bytes([len(context)]) + context + struct.pack(">H", len(origin)) + origin


class Issuance:
    def __init__(self, spki, token_challenge, nonce=None, salt=None, blind=None):
        self.n, self.e = numbers_of(spki)
        key_id = hashlib.sha256(spki).digest()
        self.input = b"\0\2" + (nonce or secrets.token_bytes(32)) + hashlib.sha256(token_challenge).digest() + key_id
        r = blind or secrets.randbelow(self.n - 2) + 2
        self.inverse = pow(r, -1, self.n)
        encoded = int.from_bytes(emsa_pss(self.input, salt or secrets.token_bytes(48), 2047), "big")
        self.request = b"\0\2" + key_id[-1:] + (encoded * pow(r, self.e, self.n) % self.n).to_bytes(256, "big")

    def token(self, response):
        return self.input + (int.from_bytes(response, "big") * self.inverse % self.n).to_bytes(256, "big")


def fetch_token(url, api_key, spki, token_challenge, **drawn):
    """From a running issuer."""
    issuance = Issuance(spki, token_challenge, **drawn)
    request = urllib.request.Request(url + "/token-request", issuance.request,
                                     {"Content-Type": "application/private-token-request", "Authorization": "Bearer " + api_key})
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert answer.headers["Content-Type"] == "application/private-token-response"
        return issuance.token(answer.read())
