"""What `tie node …` says on a node that works, drains, loses its runtime, and was started with a list of models."""
import json
import os
import signal
import subprocess
import threading
import time
import urllib.request

import pytest

import support


@pytest.fixture(scope="module")
def listed():
    support.need_node()
    with support.real_node("--model", support.MODEL) as place:
        yield place


def operate(node, *words):
    environment = dict(os.environ, TIE_RUN=str(node.run_dir))
    return subprocess.run([str(support.tie_program()), "node", *words], capture_output=True, text=True, timeout=120, env=environment)


def eventually(condition, what, seconds=30):
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        if value := condition():
            return value
        time.sleep(0.05)
    raise AssertionError(what)


def test_requests_in_flight_are_those_of_now_and_a_drain_says_how_to_go_on(listed):
    body = json.dumps({"model": listed.model, "messages": [{"role": "user", "content": "Tell a long story"}], "max_tokens": 1500, "ignore_eos": True, "stream": True}).encode()

    def ask():
        request = urllib.request.Request(listed.url + "/v1/chat/completions", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=100) as response:
            begun.release()
            response.read()

    begun = threading.Semaphore(0)
    asking = [threading.Thread(target=ask) for _ in range(2)]
    for one in asking:
        one.start()
    for _ in asking:
        assert begun.acquire(timeout=60)
    assert "requests    2 in flight" in operate(listed, "status").stdout
    late = operate(listed, "drain", "--wait-ms", "1")
    assert late.returncode == 1 and "2 requests are still in flight" in late.stderr and "tie node resume" in late.stderr
    drained = operate(listed, "drain")
    assert drained.returncode == 0 and "requests    0 in flight, 0 allowed" in drained.stdout and "until `tie node resume`" in drained.stdout
    for one in asking:
        one.join()
    assert operate(listed, "resume").returncode == 0


def test_the_reason_of_a_lost_runtime_stays_in_the_status(listed):
    os.kill(listed.processes("afm-runtime")[0], signal.SIGKILL)
    seen = eventually(lambda: (s := operate(listed, "status")).returncode == 0 and "last fault of" in s.stdout and s.stdout, "the node is not ready again, or forgot")
    assert f"last fault of runtime/{listed.model}, " in seen and "the runtime has exited: it was killed or crashed" in seen


def test_a_reload_that_cannot_take_a_change_says_so(listed):
    said = operate(listed, "reload")
    assert said.returncode == 1 and "tie down, then tie up" in said.stderr
