"""The encrypted KV cache of conversations on a real node of its own: what a second turn takes over, and that nothing that goes wrong with it ever
shows in the text. The client here (turn_client) chooses its own turn keys."""
import json
import os
import signal
import subprocess
import time

import pytest

import support

KEY, OTHER, THIRD = "11" * 32, "22" * 32, "33" * 32
TOPIC = " ".join(f"Item {i}: the harbour at noon, with {i} boats and {i * 3} gulls." for i in range(1, 25))
FIRST = [{"role": "user", "content": TOPIC + " Say what you see."}]
KEPT_LIMIT_S = 10


class Client:
    def __init__(self, place):
        self.place = place
        policy = support.BUILD / "dist/share/tie/policy.toml"
        self.process = subprocess.Popen([support.BUILD / "test_helpers/turn_client", "--node", place.node, "--policy", policy], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, messages, read="", write="", max_tokens=24):
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
    if not (support.BUILD / "dist").exists() or not support.model_file():
        pytest.skip("no installed tree, or no model: ./dev build, ./dev model")
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
    assert first["cached"] == 0 and first["prompt"] > 300
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
    edited = [{"role": "user", "content": TOPIC[:700] + " Stop here and say why."}]
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
                other.process.stdin.write(json.dumps({"messages": messages, "read": KEY, "write": KEY, "max_tokens": 24, "ignore_eos": True}) + "\n")
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
