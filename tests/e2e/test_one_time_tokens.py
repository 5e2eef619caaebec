"""A node with one-time tokens on: who has a credential of the issuer gets answers, everything else the one refusal."""
import hashlib
import os
import pathlib
import secrets
import signal
import socket
import struct
import subprocess
import sys
import time

import httpx
import pytest
import support
from protobuf_by_hand import field

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "integration/independent"))
import privacy_pass  # noqa: E402

UNIFORM = "The request could not be authenticated."


def tie(*words):
    done = subprocess.run([str(support.tie_program()), *map(str, words)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


class Issuer:
    """A folder of `tie issuer`, and `tie issuer serve` on it."""

    def __init__(self, folder, port):
        self.folder, self.port, self.url = folder, port, f"http://127.0.0.1:{port}"
        tie("issuer", "init", folder, "--name", f"127.0.0.1:{port}")
        self.api_key = tie("issuer", "credential", folder, "alice", "--per-hour", 500).strip()
        self.key_file = folder / "alice.key"
        self.key_file.write_text(self.api_key + "\n")

    def serving(self):
        return support.running([support.tie_program(), "issuer", "serve", self.folder, "--listen", f"127.0.0.1:{self.port}"], self.port)

    @property
    def spki(self):
        line = next(line for line in (self.folder / "issuer").read_text().splitlines() if line.startswith("key "))
        return bytes.fromhex(line.split()[1])


@pytest.fixture(scope="module")
def issuer(tmp_path_factory):
    if not (support.BUILD / "dist").exists():
        pytest.skip(f"no installed tree in {support.BUILD}: ./dev build")
    made = Issuer(tmp_path_factory.mktemp("issuer"), support.free_port())
    with made.serving():
        yield made


@pytest.fixture(scope="module")
def node(issuer):
    if not support.model_file():
        pytest.skip("no SmolLM2 model file: ./dev model")
    with support.real_node("--token-issuer", issuer.folder / "issuer") as place:
        yield place


def ask(node, *flags):
    return node.tie("ask", "Say hello.", "--max-tokens", "4", "--temperature", "0", *map(str, flags))


def with_tokens(issuer):
    return "--token-issuer", issuer.url, "--token-key-file", issuer.key_file


def challenge(node, name):
    return privacy_pass.challenge(name.encode(), (node.run_dir / "tokens/context").read_bytes())


def token_for(node, issuer, **drawn):
    return privacy_pass.fetch_token(issuer.url, issuer.api_key, issuer.spki, challenge(node, f"127.0.0.1:{issuer.port}"), **drawn)


def spend(node, *tokens):
    """One request with each token; the outcome of each."""
    program = support.BUILD / "testing/token_spender"
    if not program.exists():
        pytest.skip(f"{program} is not built")
    policy = support.BUILD / "dist/share/tie/policy.toml"
    done = subprocess.run([program, node.node, policy, node.model, *[t.hex() for t in tokens]], capture_output=True, text=True, timeout=60)
    return done.stdout.splitlines()


def test_a_credential_gets_answers(node, issuer):
    done = ask(node, *with_tokens(issuer))
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_without_tokens_the_client_says_what_is_missing(node):
    done = ask(node)
    assert done.returncode != 0
    assert "--token-issuer" in done.stderr


def test_the_proxy_spends_one_token_for_each_request(node, issuer):
    with node.another_proxy(None, *map(str, with_tokens(issuer))) as port:
        body = {"model": node.model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}
        for _ in range(20):  # more than one batch
            assert httpx.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=body, timeout=60).status_code == 200


def test_a_token_made_by_an_independent_client_opens_the_node_once(node, issuer):
    token = token_for(node, issuer)
    first, second = spend(node, token, token)
    assert first.startswith("OK")
    assert second == f"UNAUTHENTICATED {UNIFORM}"


def test_every_bad_token_gets_the_same_refusal(node, issuer, tmp_path):
    good = token_for(node, issuer)
    forged = good[:-1] + bytes([good[-1] ^ 1])
    other_start = privacy_pass.fetch_token(issuer.url, issuer.api_key, issuer.spki,
                                           privacy_pass.challenge(f"127.0.0.1:{issuer.port}".encode(), secrets.token_bytes(32)))
    stranger = Issuer(tmp_path / "stranger", support.free_port())
    with stranger.serving():
        # The right challenge, signed by a key that the node does not know.
        foreign = privacy_pass.fetch_token(stranger.url, stranger.api_key, stranger.spki, challenge(node, f"127.0.0.1:{issuer.port}"))
    outcomes = spend(node, forged, other_start, foreign, b"", b"x" * 354)
    assert outcomes == [f"UNAUTHENTICATED {UNIFORM}"] * 5
    assert spend(node, good)[0].startswith("OK"), "the forgery did not spend it"


def test_a_spent_token_stays_spent_after_a_kill_9_of_its_daemon(node, issuer):
    token = token_for(node, issuer)
    assert spend(node, token)[0].startswith("OK")
    (pid,) = node.processes("token_spentd")
    os.kill(pid, signal.SIGKILL)
    limit = time.monotonic() + 20
    while time.monotonic() < limit and (node.processes("token_spentd") in ([], [pid])):
        time.sleep(0.05)
    # Warm helpers that knew the old daemon have gone; the pool has made others.
    while time.monotonic() < limit and ask(node, *with_tokens(issuer)).returncode != 0:
        time.sleep(0.2)
    assert ask(node, *with_tokens(issuer)).returncode == 0
    assert spend(node, token) == [f"UNAUTHENTICATED {UNIFORM}"]


def test_two_signatures_over_one_nonce_are_one_token(node, issuer):
    nonce = secrets.token_bytes(32)
    one, two = (token_for(node, issuer, nonce=nonce) for _ in range(2))
    assert one != two
    assert [outcome.split()[0] for outcome in spend(node, one, two)] == ["OK", "UNAUTHENTICATED"]


def test_the_issuer_answers_with_the_statuses_of_rfc_9578(issuer):
    url, kind = issuer.url + "/token-request", {"Content-Type": "application/private-token-request"}
    directory = httpx.get(issuer.url + "/.well-known/private-token-issuer-directory")
    assert directory.headers["content-type"] == "application/private-token-issuer-directory"
    assert [key["token-type"] for key in directory.json()["token-keys"]] == [2]
    good = privacy_pass.Issuance(issuer.spki, b"any challenge").request
    bearer = {"Authorization": "Bearer " + issuer.api_key}
    assert httpx.post(url, content=good, headers=kind).status_code == 401
    assert httpx.post(url, content=good, headers=kind | {"Authorization": "Bearer x"}).status_code == 401
    assert httpx.post(url, content=good[:-1], headers=kind | bearer).status_code == 400
    assert httpx.post(url, content=b"\0\1" + good[2:], headers=kind | bearer).status_code == 422
    assert httpx.post(url, content=good, headers=bearer | {"Content-Type": "application/json"}).status_code == 415
    assert httpx.post(url, content=good, headers=kind | bearer).status_code == 200
    limited = tie("issuer", "credential", issuer.folder, "bob", "--per-hour", 2).strip()
    time.sleep(2.5)  # new credentials are read without a restart
    statuses = [httpx.post(url, content=good, headers=kind | {"Authorization": "Bearer " + limited}).status_code for _ in range(3)]
    assert statuses == [200, 200, 429]


def test_only_those_who_need_it_reach_the_spent_set(node):
    """The daemon has no network and sees its own socket and state; of the others only the helpers see its socket."""
    (pid,) = node.processes("token_spentd")
    mounts = pathlib.Path(f"/proc/{pid}/mountinfo").read_text()
    assert f"{node.run_dir}/state/token_spentd" in mounts
    for socket_folder in ("cb_jobhelper", "wsd-decap", "runtime", "kps", "cloudboard-control"):
        assert f"{node.run_dir}/{socket_folder} " not in mounts
    for name in ("cloudboardd", "tie-cloud-app", "workload_servicesd", "key_protectiond", "tie-controllerd"):
        for other in node.processes(name):
            assert "token-spend" not in pathlib.Path(f"/proc/{other}/mountinfo").read_text(), name
    for helper in node.processes("cb_jobhelper"):
        assert "token-spend" in pathlib.Path(f"/proc/{helper}/mountinfo").read_text()


def test_the_spend_socket_takes_tokens_and_nothing_else(node, issuer):
    def ask_daemon(payload):
        with socket.socket(socket.AF_UNIX) as s:
            s.settimeout(10)
            s.connect(str(node.run_dir / "token-spend/token-spend.sock"))
            s.sendall(struct.pack(">I", len(payload)) + payload)
            return s.recv(16)

    token = token_for(node, issuer)
    message = field(1, token)
    assert ask_daemon(message) == b"\0\0\0\2\x08\1"
    assert ask_daemon(message) == b"\0\0\0\0"
    assert ask_daemon(hashlib.sha256(b"no token").digest()) == b""
    assert spend(node, token) == [f"UNAUTHENTICATED {UNIFORM}"], "spent by the daemon's word"
