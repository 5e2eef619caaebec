"""Registered system prompts on a node of their own: `tie node prompt`, `tie node reload`, and requests that name one by id or send its exact text."""
import json
import os
import subprocess
import urllib.error
import urllib.request

import pytest

import support

TEXT = "You are a helpful pirate who answers every question in one short sentence. " + " ".join(f"Rule {i}: be kind to sailor number {i}." for i in range(20))


@pytest.fixture(scope="module")
def node():
    support.need_node()
    with support.real_node() as place:
        yield place


def operate(node, *words):
    environment = dict(os.environ, TIE_RUN=str(node.run_dir), TIE_ASSETS=str(assets_of(node)))
    return subprocess.run([str(support.tie_program()), "node", *words], capture_output=True, text=True, timeout=120, env=environment)


def assets_of(node):
    """The owner's command line names the assets that this node serves."""
    pid = node.processes("tie-model-owner")[0]
    words = open(f"/proc/{pid}/cmdline", "rb").read().split(b"\0")
    return words[words.index(b"--assets") + 1].decode()


def chat(node, messages, prompt_id=None, **more_headers):
    body = json.dumps({"model": node.model, "messages": messages, "max_tokens": 8, "temperature": 0}).encode()
    headers = {"Content-Type": "application/json", **{name.replace("_", "-"): value for name, value in more_headers.items()}}
    if prompt_id:
        headers["x-tie-prompt-id"] = prompt_id
    try:
        with urllib.request.urlopen(urllib.request.Request(node.url + "/v1/chat/completions", body, headers), timeout=60) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def cached(answer):
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def text(answer):
    return answer["choices"][0]["message"]["content"]


USER = [{"role": "user", "content": "Where is the ship?"}]
SYSTEM = [{"role": "system", "content": TEXT}]


def test_a_registered_prompt_from_add_to_remove(node, tmp_path):
    status, error = chat(node, USER, "pirate")
    assert status == 404 and error["error"]["param"] == "prompt_id" and "tie node reload" in error["error"]["message"]
    status, cold = chat(node, SYSTEM + USER)
    assert status == 200 and cached(cold) == 0

    file = tmp_path / "pirate.txt"
    file.write_text(TEXT)
    nowhere = operate(node, "prompt", "add", str(file), "--id", "pirate", "--model", "nope")
    assert nowhere.returncode == 1 and "no model 'nope'" in nowhere.stderr and node.model in nowhere.stderr
    added = operate(node, "prompt", "add", str(file), "--id", "pirate", "--model", node.model)
    assert added.returncode == 0 and "tie node reload" in added.stdout, added.stderr
    assert "pirate" in operate(node, "prompt", "list").stdout
    reloaded = operate(node, "reload")
    assert reloaded.returncode == 0 and reloaded.stdout.startswith("node        ready"), reloaded.stdout + reloaded.stderr

    # By id, and by the exact text as first system message: the same tokens, the same answer as without the cache.
    for messages, prompt_id in [(USER, "pirate"), (SYSTEM + USER, None), (SYSTEM + USER, "pirate")]:
        status, warm = chat(node, messages, prompt_id)
        assert status == 200, warm
        assert cached(warm) >= 128 and cached(warm) > 0.9 * (warm["usage"]["prompt_tokens"] - 40)
        assert warm["usage"]["prompt_tokens"] == cold["usage"]["prompt_tokens"]
        assert text(warm) == text(cold)

    # What users write does not enter the cache: the same long question a second time is computed again. (Without the user's own cache, which may have kept it.)
    long = [{"role": "user", "content": "And what about this? " * 60}]
    hits = [cached(chat(node, long, "pirate", x_tie_cache="off")[1]) for _ in range(2)]
    assert hits[0] == hits[1], hits

    # One word more or less is another prompt.
    status, other = chat(node, [{"role": "system", "content": "No. " + TEXT}] + USER)
    assert status == 200 and cached(other) < 32
    status, refused = chat(node, [{"role": "system", "content": "Be dull."}] + USER, "pirate")
    assert status == 400 and refused["error"]["param"] == "prompt_id"

    # A recycle keeps it without computing it again.
    assert operate(node, "recycle").returncode == 0
    status, warm = chat(node, USER, "pirate")
    assert status == 200 and cached(warm) >= 128 and text(warm) == text(cold)

    # One too short for a block of the cache is served all the same, beside a long one and, below, alone.
    short = tmp_path / "short.txt"
    short.write_text("Be brief.")
    assert operate(node, "prompt", "add", str(short), "--id", "short", "--model", node.model).returncode == 0
    assert operate(node, "reload").returncode == 0
    assert chat(node, USER, "short")[0] == 200 and cached(chat(node, USER, "pirate")[1]) >= 128

    # From the terminal.
    asked = node.tie("ask", "--prompt-id", "pirate", "--max-tokens", "4", "--json", "Where?")
    assert json.loads(asked.stdout)["usage"]["cached_tokens"] >= 128
    unknown = node.tie("ask", "--prompt-id", "ghost", "Where?")
    assert unknown.returncode == 1 and "no registered system prompt" in unknown.stderr

    removed = operate(node, "prompt", "remove", "pirate")
    assert removed.returncode == 0 and "tie node reload" in removed.stdout
    assert operate(node, "reload").returncode == 0
    assert chat(node, USER, "short")[0] == 200
    assert operate(node, "prompt", "remove", "short").returncode == 0
    assert operate(node, "reload").returncode == 0
    status, _ = chat(node, USER, "pirate")
    assert status == 404
    # The proxy would take the conversation's own cache; the terminal's question has none.
    gone = node.tie("ask", "--system", TEXT, "--max-tokens", "4", "--json", "Where?")
    assert json.loads(gone.stdout)["usage"]["cached_tokens"] == 0
