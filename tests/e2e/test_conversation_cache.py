"""The encrypted KV cache of conversations on a real node of its own: what a second turn takes over, and that nothing that goes wrong with it ever
shows in the text. The client here (turn_client) chooses its own turn keys."""
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import urllib.request

import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

import cache_store
import support

sys.path.insert(0, str(support.ROOT / "tests/integration/independent"))
import kv_cache  # noqa: E402

KEY, OTHER, THIRD = "11" * 32, "22" * 32, "33" * 32
TOPIC = " ".join(f"Item {i}: the harbour at noon, with {i} boats and {i * 3} gulls." for i in range(1, 15))
FIRST = [{"role": "user", "content": TOPIC + " Say what you see."}]
KEPT_LIMIT_S = 10


class Client:
    def __init__(self, place, credential=None):
        self.place = place
        named = ["--credential", credential] if credential else []
        policy = support.BUILD / "dist/share/tie/policy.toml"
        self.process = subprocess.Popen([support.BUILD / "test_helpers/turn_client", "--node", place.node, "--policy", policy, *named], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, messages, read="", write="", max_tokens=16):
        self.process.stdin.write(json.dumps({"messages": messages, "read": read, "write": write, "max_tokens": max_tokens, "ignore_eos": True}) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        assert "error" not in answer, answer
        return answer

    def close(self):
        self.process.stdin.close()
        self.process.wait(10)


@pytest.fixture(scope="module")
def place():
    support.need_node()
    if not (support.BUILD / "test_helpers/turn_client").exists():
        pytest.skip(f"turn_client is not built in {support.BUILD}")
    with support.real_node() as made:
        yield made


@pytest.fixture
def client(place):
    made = Client(place)
    yield made
    made.close()


def follow_up(first, question="And then?"):
    return FIRST + [{"role": "assistant", "content": first["text"]}, {"role": "user", "content": question}]


def turn_until_cached(client, messages, read, least=1, **options):
    """Writing goes on after the answer has ended; a reader who is quicker finds less. Reads without writing until it is there."""
    limit = time.monotonic() + KEPT_LIMIT_S
    while time.monotonic() < limit:
        answer = client.ask(messages, read=read, **options)
        if answer["cached"] >= least:
            return answer
        time.sleep(0.05)
    raise AssertionError(f"nothing was kept: {answer}")


def store_processes(place):
    return place.processes("cache_stored")


def test_a_second_turn_takes_over_what_the_first_left(client):
    first = client.ask(FIRST, write=KEY)
    assert first["cached"] == 0 and first["prompt"] > 150
    messages = follow_up(first)
    cold = client.ask(messages)
    warm = turn_until_cached(client, messages, KEY)
    assert cold["cached"] == 0
    assert warm["text"] == cold["text"], "the cache shows in the text"
    # The template's end of the first turn is in both prompts, and the answer's tokens come back as the same tokens.
    assert warm["cached"] >= first["prompt"] // 32 * 32 - 32
    assert warm["cached"] % 32 == 0 and warm["cached"] < warm["prompt"]


def test_a_wrong_key_and_no_key_find_nothing(client):
    first = client.ask(FIRST, write=KEY)
    messages = follow_up(first)
    warm = turn_until_cached(client, messages, KEY)
    for answer in (client.ask(messages, read=OTHER), client.ask(messages)):
        assert answer["cached"] == 0 and answer["text"] == warm["text"]


def test_turns_go_on_and_an_edited_history_keeps_its_beginning(client):
    first = client.ask(FIRST, write=KEY)
    messages = follow_up(first)
    turn_until_cached(client, messages, KEY)
    second = client.ask(messages, read=KEY, write=KEY)
    third = messages + [{"role": "assistant", "content": second["text"]}, {"role": "user", "content": "More."}]
    assert turn_until_cached(client, third, KEY, least=second["cached"] + 1)["cached"] > second["cached"]
    edited = [{"role": "user", "content": TOPIC[:500] + " Stop here and say why."}]
    cold = client.ask(edited)
    warm = client.ask(edited, read=KEY)
    assert warm["text"] == cold["text"]
    assert 0 < warm["cached"] < first["prompt"]


def test_concurrent_branches_do_not_mix(place, client):
    first = client.ask(FIRST, write=KEY)
    one, two = follow_up(first, "Tell me about the boats."), follow_up(first, "Tell me about the gulls, and why they cry.")
    turn_until_cached(client, one, KEY)
    cold = [client.ask(m)["text"] for m in (one, two)]
    others = [Client(place), Client(place)]
    try:
        for _ in range(3):
            for other, messages in zip(others, (one, two)):
                other.process.stdin.write(json.dumps({"messages": messages, "read": KEY, "write": KEY, "max_tokens": 16, "ignore_eos": True}) + "\n")
                other.process.stdin.flush()
            answers = [json.loads(other.process.stdout.readline()) for other in others]
            assert [a["text"] for a in answers] == cold
            assert all(a["cached"] > 0 for a in answers)
    finally:
        for other in others:
            other.close()


def test_a_recycle_between_the_turns_keeps_the_reuse(place, client):
    first = client.ask(FIRST, write=THIRD)
    messages = follow_up(first)
    cold = client.ask(messages)
    before = set(place.processes("afm-runtime"))
    done = place.tie("node", "--socket", str(place.run_dir / "controller/controller.sock"), "recycle", timeout=120)
    assert done.returncode == 0, done.stderr
    warm = turn_until_cached(client, messages, THIRD)
    assert set(place.processes("afm-runtime")) - before, "no new runtime"
    assert warm["text"] == cold["text"]


def test_a_killed_store_costs_the_reuse_and_nothing_else(place, client):
    first = client.ask(FIRST, write=KEY)
    messages = follow_up(first)
    warm = turn_until_cached(client, messages, KEY)
    old = store_processes(place)
    for pid in old:
        os.kill(pid, signal.SIGKILL)
    cold = client.ask(messages, read=KEY, write=KEY)
    assert cold["cached"] == 0 and cold["text"] == warm["text"]
    limit = time.monotonic() + KEPT_LIMIT_S
    while time.monotonic() < limit and not set(store_processes(place)) - set(old):
        time.sleep(0.05)
    again = client.ask(messages, read=KEY, write=KEY)
    assert again["text"] == warm["text"]
    assert turn_until_cached(client, messages, KEY)["text"] == warm["text"], "the new store keeps again"


def test_a_store_that_hangs_delays_little_and_harms_nothing(place, client):
    first = client.ask(FIRST, write=KEY)
    messages = follow_up(first)
    warm = turn_until_cached(client, messages, KEY)
    pids = store_processes(place)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        cold = client.ask(messages, read=KEY, write=KEY)
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
    assert cold["cached"] == 0 and cold["text"] == warm["text"]


def complete(place, messages):
    body = {"model": place.model, "messages": messages, "max_tokens": 16, "temperature": 0}
    request = urllib.request.Request(place.url + "/v1/chat/completions", data=json.dumps(body).encode(), headers={"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def test_an_application_that_resends_its_history_profits_without_knowing(place, client):
    """Through the proxy, whose own table finds the turn key."""
    first = complete(place, FIRST)
    assert first["usage"].get("prompt_tokens_details", {}).get("cached_tokens", 0) == 0
    messages = FIRST + [first["choices"][0]["message"], {"role": "user", "content": "And then?"}]
    time.sleep(1)  # the first turn is being kept
    second = complete(place, messages)
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] >= 96
    assert client.ask(messages)["text"].startswith(second["choices"][0]["message"]["content"])


# ---- what lies in the store, and whoever can write it ----

class Kept:
    """A conversation in the store, opened by the independent implementation."""

    def __init__(self, place, key):
        self.store, self.key = cache_store.Store(place.run_dir), bytes.fromhex(key)
        self.identity = cache_store.identity(place.run_dir, place.model)
        self.manifest_id = kv_cache.manifest_id(self.key)
        self.manifest = self.store.get(self.manifest_id)
        self.tokens, self.references = kv_cache.open_manifest(self.key, self.identity, self.manifest)
        self.segment_ids = [kv_cache.segment_id(self.key, salt) for salt, *_ in self.references]
        self.segments = [self.store.get(i) for i in self.segment_ids]


def two_turns(client, key):
    """A conversation of two segments, and the third turn's messages with its text as computed."""
    first = client.ask(FIRST, write=key)
    messages = follow_up(first)
    turn_until_cached(client, messages, key)
    second = client.ask(messages, read=key, write=key, max_tokens=64)
    third = messages + [{"role": "assistant", "content": second["text"]}, {"role": "user", "content": "More."}]
    turn_until_cached(client, third, key, least=second["cached"] + 1)
    return third, client.ask(third)["text"]


def test_the_store_holds_what_the_key_opens_and_no_other_key(place, client):
    first = client.ask(FIRST, write="44" * 32)
    turn_until_cached(client, follow_up(first), "44" * 32)
    kept = Kept(place, "44" * 32)
    assert len(kept.tokens) >= first["prompt"], "all of the turn's tokens are named, whole blocks of them are kept"
    blocks = kv_cache.open_segment(kept.key, kept.identity, kept.segments[0])
    assert sum(count for _, _, count, _ in kept.references) == len(kept.tokens) // 32
    assert blocks[0] != blocks[1] and blocks[0][:64] not in kept.segments[0]
    with pytest.raises(InvalidTag):
        kv_cache.open_segment(bytes(32), kept.identity, kept.segments[0])
    with pytest.raises(InvalidTag):
        kv_cache.open_manifest(kept.key, bytes(32) + kept.identity[32:], kept.manifest)
    assert kept.store.get(kv_cache.manifest_id(bytes.fromhex(OTHER)[:31] + b"x")) is None


def flipped(data, at):
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1:]


@pytest.mark.parametrize("how", ["first flipped", "second flipped", "swapped", "truncated", "second gone", "first gone", "manifest flipped", "manifest of an older turn"])
def test_a_tampered_store_never_shows_in_the_text(place, client, how):
    key = "%02x" % (0x50 + len(how)) * 32
    older = None
    if how == "manifest of an older turn":
        first = client.ask(FIRST, write=key)
        turn_until_cached(client, follow_up(first), key)
        older = Kept(place, key).manifest
    third, text = two_turns(client, key)
    kept = Kept(place, key)
    assert len(kept.segments) >= 2
    one, two = kept.segment_ids[0], kept.segment_ids[1]
    changes = {"first flipped": lambda: kept.store.replace(one, flipped(kept.segments[0], 10_000)),
               "second flipped": lambda: kept.store.replace(two, flipped(kept.segments[1], len(kept.segments[1]) - 1)),
               "swapped": lambda: (kept.store.replace(one, kept.segments[1]), kept.store.replace(two, kept.segments[0])),
               "truncated": lambda: kept.store.replace(two, kept.segments[1][:-1]),
               "second gone": lambda: kept.store.delete(two),
               "first gone": lambda: kept.store.delete(one),
               "manifest flipped": lambda: kept.store.replace_manifest(kept.manifest_id, flipped(kept.manifest, 60)),
               "manifest of an older turn": lambda: kept.store.replace_manifest(kept.manifest_id, older)}
    changes[how]()
    answer = client.ask(third, read=key)
    assert answer["text"] == text
    prefix = kept.references[0][2] * 32
    allowed = {"second flipped": prefix, "truncated": prefix, "second gone": prefix}
    if how != "manifest of an older turn":
        assert answer["cached"] == allowed.get(how, 0)
    assert client.ask(third, read=key, write=key)["text"] == text
    assert turn_until_cached(client, third, key, least=len(kept.tokens) - 32)["text"] == text, "the next turn writes it anew"


def memory_of(pid):
    """Readable, private or shared, in pieces that overlap by a key's length."""
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory, open(f"/proc/{pid}/maps") as maps:
        for line in maps:
            span, rights, *rest = line.split()
            if not rights.startswith("r") or (rest and rest[-1] in ("[vvar]", "[vsyscall]")) or "w" not in rights:
                continue
            at, end = (int(x, 16) for x in span.split("-"))
            while at < end:
                memory.seek(at)
                with contextlib.suppress(OSError):
                    yield memory.read(min(end - at, 1 << 22))
                at += (1 << 22) - 32


def test_holders_of_two_credentials_are_two_principals_of_the_store(place):
    store = cache_store.Store(place.run_dir)

    def write(client, key):
        client.ask(FIRST, write=key)
        deadline = time.monotonic() + KEPT_LIMIT_S
        while store.get(kv_cache.manifest_id(bytes.fromhex(key))) is None:  # the last that is written of a turn
            assert time.monotonic() < deadline, "nothing was kept"
            time.sleep(0.05)

    anonymous = Client(place)
    write(anonymous, "a0" * 32)
    before = store.principals()
    assert before >= 1
    clients = [anonymous, Client(place, "Bearer one"), Client(place, "Bearer two"), Client(place, "Bearer two"), Client(place)]
    for number, (client, more) in enumerate(zip(clients, (0, 1, 2, 2, 2))):
        write(client, f"a{number + 1:x}" * 32)
        assert store.principals() == before + more, number
    for client in clients:
        client.close()


def test_without_a_turn_key_nothing_stays_and_nobody_holds_the_key(place, client):
    store = cache_store.Store(place.run_dir)
    before = store.entries()
    answer = client.ask(FIRST)
    derived = HKDF(hashes.SHA256(), 32, None, b"tie/1 derived key" + b"kv-cache").derive(bytes.fromhex(answer["dek"]))
    time.sleep(1)  # the app deletes the entry after the answer has ended
    assert store.entries() == before
    assert store.get(kv_cache.manifest_id(derived)) is None
    programs = pathlib.Path(place.run_dir, "stage/prefix/libexec/tie").iterdir()
    pids = [pid for program in programs for pid in place.processes(program.name)]
    assert len(pids) >= 8
    keys = {"the DEK": bytes.fromhex(answer["dek"]), "the derived key": derived}
    searched = 0
    for pid in pids:
        try:
            for piece in memory_of(pid):
                searched += len(piece)
                for name, key in keys.items():
                    assert key not in piece, f"{name} is in the memory of process {pid}"
        except PermissionError:
            pytest.skip("cannot read the node's memory: run as root")
        except (FileNotFoundError, ProcessLookupError):
            continue
    assert searched > 50 << 20, "so little memory was searched that the test says nothing"
