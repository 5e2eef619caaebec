"""A real node under load whose daemons are killed and stopped at every step of a recycle and of a request.

Proved: nothing hangs beyond its deadline, every request completes or gets a clear error that may be retried, the node returns to ready by itself, and in the end there
are as many processes, memfds and sockets as at the beginning.
"""
import collections
import json
import os
import pathlib
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request

import pytest

import support

DAEMONS = ["afm-runtime", "tie-status-probe", "tie-model-owner", "gpuhealthd", "tie-controllerd", "cloudboardd", "workload_servicesd", "key_protectiond"]
RETRYABLE = {408, 409, 429, 500, 502, 503, 504}
READY_S = 60
REQUEST_S = 90
CLIENTS = int(os.environ.get("TIE_FAULT_CLIENTS", "4"))


def node_words(place, *words, timeout=120):
    socket = f"{place.run_dir}/controller/controller.sock"
    return subprocess.run([str(support.tie_program()), "node", "--socket", socket, *words], capture_output=True, text=True, timeout=timeout)


def is_ready(place):
    answer = node_words(place, "status")
    return answer.returncode == 0 and answer.stdout.startswith("node        ready")


def wait_ready(place, seconds=READY_S):
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        if is_ready(place):
            return
        time.sleep(0.05)
    pytest.fail(f"not ready after {seconds} s: {node_words(place, 'status').stdout}")


def processes(place):
    """pid → program of everything that belongs to this node: its command line or its launcher names the run directory."""
    found = {}
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if any(str(place.run_dir).encode() in word for word in words):
            found[int(entry.name)] = pathlib.Path(words[0].decode(errors="replace")).name
    return found


def pids_of(place, program):
    return [pid for pid, name in processes(place).items() if name == program]


def memfds(place):
    count = collections.Counter()
    for pid in processes(place):
        try:
            for fd in pathlib.Path(f"/proc/{pid}/fd").iterdir():
                target = os.readlink(fd)
                if target.startswith("/memfd:tie"):
                    count[target] += 1
        except OSError:
            continue
    return count


class Load:
    """Clients that ask without end; every outcome is kept."""

    def __init__(self, place, clients=CLIENTS):
        self.place, self.outcomes, self.slowest = place, collections.Counter(), 0.0
        self.strange = []
        self.stopping = threading.Event()
        self.threads = [threading.Thread(target=self.run, args=(i,)) for i in range(clients)]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stopping.set()
        for thread in self.threads:
            thread.join(REQUEST_S + 10)
            assert not thread.is_alive(), "a request hangs"

    def run(self, number):
        body = json.dumps({"model": self.place.model, "stream": True, "max_tokens": 12, "messages": [{"role": "user", "content": f"Count to {number}."}]}).encode()
        while not self.stopping.is_set():
            start = time.monotonic()
            outcome = self.ask(body)
            self.slowest = max(self.slowest, time.monotonic() - start)
            self.outcomes[outcome] += 1
            if outcome != "complete":
                time.sleep(0.1)

    def ask(self, body):
        request = urllib.request.Request(self.place.url + "/v1/chat/completions", body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=REQUEST_S) as response:
                text = response.read().decode()
        except urllib.error.HTTPError as error:
            if error.code in RETRYABLE:
                return f"retryable {error.code}"
            self.strange.append((error.code, error.read()[:300]))
            return "strange"
        except TimeoutError:
            return "hangs"
        except OSError as error:
            self.strange.append(repr(error))
            return "strange"
        if text.rstrip().endswith("data: [DONE]") and '"error"' not in text:
            return "complete"
        return "error in the stream" if '"error"' in text else "cut"


def check(load, place):
    assert load.outcomes["complete"] > 0, (load.outcomes, load.strange[:3])
    assert load.outcomes["hangs"] == 0 and load.outcomes["cut"] == 0 and not load.strange, (load.outcomes, load.strange[:3])
    assert load.slowest < REQUEST_S


@pytest.fixture(scope="module")
def before(place):
    wait_ready(place)
    time.sleep(1)
    return collections.Counter(processes(place).values()), memfds(place)


def test_recycles_under_load_lose_no_request(place, before):
    with Load(place) as load:
        for _ in range(3):
            recycled = node_words(place, "recycle")
            assert recycled.returncode == 0, recycled.stderr
        time.sleep(1)
    check(load, place)
    # Busy nodes answer "not ready"; what was in flight has completed: no stream broke.
    assert load.outcomes["error in the stream"] == 0, load.outcomes


@pytest.mark.parametrize("daemon", DAEMONS)
def test_a_killed_daemon_is_survived(place, before, daemon):
    with Load(place) as load:
        time.sleep(0.5)
        for pid in pids_of(place, daemon):
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.2)
        wait_ready(place)
        time.sleep(1)
    check(load, place)


@pytest.mark.parametrize("daemon", DAEMONS)
def test_a_daemon_killed_in_the_middle_of_a_recycle_is_survived(place, before, daemon):
    wait_ready(place)
    recycle = threading.Thread(target=node_words, args=(place, "recycle"))
    recycle.start()
    time.sleep(0.05)
    for pid in pids_of(place, daemon):
        os.kill(pid, signal.SIGKILL)
    wait_ready(place)
    recycle.join(READY_S)
    assert not recycle.is_alive(), "the operator's call hangs"


@pytest.mark.parametrize("daemon", DAEMONS)
def test_a_stopped_daemon_hangs_nobody_for_ever(place, before, daemon):
    wait_ready(place)
    stopped = pids_of(place, daemon)
    with Load(place, clients=2) as load:
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(3)
        for pid in stopped:
            try:
                os.kill(pid, signal.SIGCONT)
            except ProcessLookupError:
                pass
        time.sleep(0.5)
        wait_ready(place)
        time.sleep(1)
    check(load, place)


def test_a_runtime_that_stays_stopped_is_replaced(place, before):
    wait_ready(place)
    (stopped,) = pids_of(place, "afm-runtime")
    with Load(place, clients=2) as load:
        os.kill(stopped, signal.SIGSTOP)
        limit = time.monotonic() + READY_S
        while stopped in pids_of(place, "afm-runtime"):
            assert time.monotonic() < limit, node_words(place, "status").stdout
            time.sleep(0.1)
        wait_ready(place)
        time.sleep(1)
    check(load, place)


def test_nothing_has_leaked(place, before):
    wait_ready(place)
    limit = time.monotonic() + 20
    programs_before, memfds_before = before
    while True:
        programs, shared = collections.Counter(processes(place).values()), memfds(place)
        if programs == programs_before and sum(shared.values()) <= sum(memfds_before.values()):
            return
        if time.monotonic() > limit:
            break
        time.sleep(0.5)
    assert programs == programs_before
    assert sum(shared.values()) <= sum(memfds_before.values()), (shared, memfds_before)
