"""What a sound node never does, shown as what it is."""
import contextlib
import os
import signal
import subprocess
import threading
import time

import httpx
import openai
import pytest

import support


def ask(text, **more):
    return dict(model="test-model", messages=[{"role": "user", "content": text}], **more)


@pytest.mark.parametrize("text", ["cut", "forge"])
def test_a_cut_stream_raises_in_the_sdk(fake_client, text):
    heard = ""
    with pytest.raises(openai.APIError) as raised:
        for chunk in fake_client.chat.completions.create(**ask(text, stream=True)):
            heard += chunk.choices[0].delta.content or ""
    assert heard == "begun"
    assert "not complete" in raised.value.message
    assert raised.value.code == "answer_cut"


@pytest.mark.parametrize("text", ["cut", "forge"])
def test_a_cut_answer_is_no_answer(fake_client, text):
    with pytest.raises(openai.InternalServerError) as raised:
        fake_client.chat.completions.create(**ask(text))
    assert raised.value.status_code == 502 and raised.value.code == "answer_cut"


def test_a_cut_answer_in_the_terminal(fake):
    done = fake.tie("ask", "cut")
    assert done.returncode == 5
    assert done.stdout.strip() == "begun"
    assert "not complete" in done.stderr


def test_a_client_that_goes_away_frees_the_proxy_at_once(fake):
    with httpx.Client(timeout=10) as http:
        with http.stream("POST", fake.url + "/v1/chat/completions", json=ask("hang", stream=True)) as got:
            next(got.iter_lines())
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(fake.url + "/v1/chat/completions", json=ask("hang"), timeout=0.5)
    assert httpx.post(fake.url + "/v1/chat/completions", json=ask("a b")).json()["choices"][0]["message"]["content"] == "a b"


def test_a_proxy_that_is_stopped_waits_for_its_answers_and_a_second_signal_hurries_it(fake):
    port = support.free_port()
    command = [support.tie_program(), "proxy", "--listen", f"127.0.0.1:{port}", "--node", fake.node, "--policy", fake.policy]
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    with support.running(command, port) as process:
        with httpx.Client(timeout=60) as http, http.stream("POST", url, json=ask("hang", stream=True)) as got:
            lines = got.iter_lines()
            next(lines)
            process.terminate()
            limit = time.monotonic() + 30
            while (refused := httpx.get(f"http://127.0.0.1:{port}/healthz")).status_code != 503 and time.monotonic() < limit:
                time.sleep(0.05)
            assert refused.json()["error"]["message"].startswith("The proxy is being stopped") and process.poll() is None
            process.terminate()
            rest = "\n".join(lines)
        assert "The proxy was stopped before the answer was complete" in rest and "[DONE]" not in rest, rest
        assert process.wait(30) == 0


def test_ctrl_c_ends_an_answer_in_the_terminal(fake):
    process = subprocess.Popen([str(support.tie_program()), "ask", "hang", "--node", fake.node, "--policy", str(fake.policy)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.read(5) == "begun"
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    process.wait(5)
    assert time.monotonic() - began < 1
    assert process.returncode == 130
    assert "cancelled" in process.stderr.read()


def test_nobody_there_says_what_to_do(fake, tmp_path):
    port = support.free_port()
    done = subprocess.run([str(support.tie_program()), "ask", "hi", "--node", f"127.0.0.1:{port}", "--policy", str(fake.policy)], capture_output=True, text=True, timeout=20)
    assert done.returncode == 3
    assert f"127.0.0.1:{port}" in done.stderr and "./dev up" in done.stderr
    with fake.another_proxy(f"127.0.0.1:{port}") as proxy_port:
        got = httpx.post(f"http://127.0.0.1:{proxy_port}/v1/chat/completions", json=ask("x"))
        assert got.status_code == 503 and got.json()["error"]["code"] == "not_ready"
        assert got.headers["x-tie-verification"] == "none"
        assert httpx.get(f"http://127.0.0.1:{proxy_port}/healthz").status_code == 503


def test_a_policy_that_does_not_pin_the_release_refuses(fake, tmp_path):
    policy = tmp_path / "policy.toml"
    policy.write_text('release_ids = ["' + "0" * 64 + '"]\naccepted_kinds = ["software"]\n')
    done = subprocess.run([str(support.tie_program()), "ask", "hi", "--node", fake.node, "--policy", str(policy)], capture_output=True, text=True, timeout=20)
    assert done.returncode == 4 and done.stdout == ""
    keys = subprocess.run([str(support.tie_program()), "keys", "--node", fake.node, "--policy", str(policy)], capture_output=True, text=True, timeout=20)
    assert keys.returncode == 4 and "FAIL" in keys.stdout and "REFUSED" in keys.stdout


def test_pinning_a_release_by_hand(fake, tmp_path):
    environment = dict(os.environ, XDG_CONFIG_HOME=str(tmp_path))
    environment.pop("TIE_POLICY", None)

    def tie(*words):
        return subprocess.run([str(support.tie_program()), *words], capture_output=True, text=True, timeout=20, env=environment)

    pinned = tie("policy", "pin", "--from-node", "--node", fake.node)
    assert pinned.returncode == 0, pinned.stderr
    assert "NOTE" in pinned.stderr
    assert tie("ask", "hello", "--node", fake.node).stdout.strip() == "hello"
    assert tie("policy", "pin", "--release", "zz").returncode != 0


def test_many_clients_share_a_proxy(fake):
    def work():
        with httpx.Client(timeout=20) as http:
            for n in range(10):
                text = f"answer {n} for {threading.get_ident()}"
                got = http.post(fake.url + "/v1/chat/completions", json=ask(text)).json()
                if got["choices"][0]["message"]["content"] != text:
                    wrong.append(got)

    wrong = []
    threads = [threading.Thread(target=work) for _ in range(16)]
    with contextlib.ExitStack():
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    assert not wrong
