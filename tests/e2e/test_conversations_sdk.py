"""Conversations through the proxy with the official Python SDK on a real node: what the next turn takes from the cache, and who gets nothing."""
import os
import subprocess
import time

import pytest

import support

openai = pytest.importorskip("openai")

STORY = "The lighthouse keeper counts ships. " + " ".join(f"On day {i} there were {i * 7 % 13} ships and {i} gulls." for i in range(1, 30))
QUESTION = {"role": "user", "content": STORY + " What did the keeper count?"}
KEPT_LIMIT_S = 10


@pytest.fixture(scope="module")
def place():
    support.need_node()
    with support.real_node() as made:
        yield made


@pytest.fixture()
def port(place):
    """A proxy of the test's own, so that no other test's conversations are known to it."""
    with place.another_proxy() as made:
        yield made


def ask(port, messages, key="alice", **options):
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key=key, max_retries=0)
    got = client.chat.completions.create(model=support.MODEL, messages=messages, temperature=0, max_tokens=options.pop("max_tokens", 24), **options)
    return got.choices[0].message.content, got.usage.prompt_tokens_details.cached_tokens, got.usage.prompt_tokens


def then(messages, answer, question):
    return messages + [{"role": "assistant", "content": answer}, {"role": "user", "content": question}]


def cold(port, messages, **options):
    text, cached, _ = ask(port, messages, extra_headers={"x-tie-cache": "off"}, **options)
    assert cached == 0
    return text


def kept(port, messages, **options):
    """Asks until the turn before has been written: that happens after its answer has ended."""
    limit = time.monotonic() + KEPT_LIMIT_S
    while time.monotonic() < limit:
        text, cached, prompt = ask(port, messages, **options)
        if cached:
            return text, cached, prompt
        time.sleep(0.1)
    raise AssertionError("nothing was kept")


def test_the_second_turn_comes_from_the_cache_with_the_same_text(port):
    answer, cached, first_prompt = ask(port, [QUESTION])
    assert cached == 0 and first_prompt > 300
    second = then([QUESTION], answer, "And how many gulls were there?")
    text, cached, prompt = kept(port, second)
    assert cached >= first_prompt // 32 * 32 - 32 and cached < prompt
    assert text == cold(port, second)
    third = then(second, text, "Why?")
    text, more, _ = kept(port, third)
    assert more > cached and text == cold(port, third)


def test_a_streamed_turn_is_remembered_too(port):
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="alice", max_retries=0)
    answer, usage = "", None
    for chunk in client.chat.completions.create(model=support.MODEL, messages=[QUESTION], temperature=0, max_tokens=24, stream=True, stream_options={"include_usage": True}):
        usage = chunk.usage or usage
        answer += (chunk.choices[0].delta.content or "") if chunk.choices else ""
    assert usage.prompt_tokens_details.cached_tokens == 0
    assert kept(port, then([QUESTION], answer, "Go on."))[1] >= usage.prompt_tokens // 32 * 32 - 32


def test_a_branch_and_an_edited_history_take_what_they_share(port):
    answer, _, first_prompt = ask(port, [QUESTION])
    one, two = then([QUESTION], answer, "Tell me about the ships."), then([QUESTION], answer, "Tell me about the gulls, and be quick.")
    kept(port, one)
    text, cached, _ = kept(port, two)
    assert cached >= first_prompt // 32 * 32 - 32 and text == cold(port, two)
    # The answer was edited by the application: the question before it is still shared.
    edited = then([QUESTION], "He counted whales, I think.", "Are you sure?")
    text, cached, _ = kept(port, edited)
    assert cached >= first_prompt // 32 * 32 - 64 and text == cold(port, edited)
    # Both branches go on.
    further = then(one, ask(port, one)[0], "More.")
    assert kept(port, further)[0] == cold(port, further)


def test_another_api_key_and_another_proxy_get_nothing(place, port):
    answer, _, _ = ask(port, [QUESTION], key="alice")
    second = then([QUESTION], answer, "And then?")
    text, _, _ = kept(port, second, key="alice")
    for key in ("bob", "Alice", "alic"):
        stranger, cached, _ = ask(port, second, key=key)
        assert cached == 0 and stranger == text
    with place.another_proxy() as other:
        assert ask(other, second, key="alice")[1] == 0


def test_a_request_that_stays_out_leaves_nothing(port):
    answer, _, _ = ask(port, [QUESTION], extra_body={"tie_cache": False})
    second = then([QUESTION], answer, "And then?")
    time.sleep(1)
    assert ask(port, second)[1] == 0


def test_a_proxy_without_a_cache_sends_no_keys(place):
    with place.another_proxy(None, "--no-cache") as port:
        answer, _, _ = ask(port, [QUESTION])
        time.sleep(1)
        assert ask(port, then([QUESTION], answer, "And then?"))[1] == 0


def test_a_sealed_file_carries_conversations_to_the_next_proxy(place, tmp_path):
    file = tmp_path / "turn.keys"
    words = {"TIE_TURN_KEYS_PASSPHRASE": "a lighthouse, seven ships"}
    with place.another_proxy(None, "--turn-keys", file, environment=words) as port:
        answer, _, _ = ask(port, [QUESTION])
        second = then([QUESTION], answer, "And then?")
        text, cached, _ = kept(port, second)
    assert file.stat().st_mode & 0o777 == 0o600
    assert b"lighthouse" not in file.read_bytes()
    with place.another_proxy(None, "--turn-keys", file, environment=words) as port:
        again, found, _ = ask(port, second)
        assert found >= cached and again == text
    wrong = subprocess.run([support.tie_program(), "proxy", "--node", place.node, "--listen", f"127.0.0.1:{support.free_port()}", "--turn-keys", file],
                           env=dict(os.environ, TIE_TURN_KEYS_PASSPHRASE="guessed"), capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    assert wrong.returncode == 1 and "passphrase" in wrong.stderr
    none = subprocess.run([support.tie_program(), "proxy", "--node", place.node, "--listen", f"127.0.0.1:{support.free_port()}", "--turn-keys", file],
                          env={k: v for k, v in os.environ.items() if k != "TIE_TURN_KEYS_PASSPHRASE"}, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    assert none.returncode != 0 and "TIE_TURN_KEYS_PASSPHRASE" in none.stderr


def test_the_chat_says_what_came_from_the_cache(place):
    environment = dict(os.environ, TIE_NODE=place.node)
    chat = subprocess.Popen([support.tie_program(), "chat", "--temperature", "0", "--max-tokens", "24"], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    chat.stdin.write(STORY + " What did the keeper count?\n")
    chat.stdin.flush()
    seen = ""
    while "from the cache" not in seen:
        line = chat.stdout.readline()
        assert line, seen
        seen += line
    assert "[from the cache: 0 of " in seen
    time.sleep(1.5)
    rest, _ = chat.communicate("And how many gulls?\n/exit\n", timeout=60)
    cached = int(rest.split("[from the cache: ")[1].split(" of ")[0])
    assert cached >= 300, rest
