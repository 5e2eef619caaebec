"""The whole node with the product's own programs: what confines each of them, what a killed one breaks, and that the node heals."""
import json
import os
import pathlib
import signal
import threading
import time
import urllib.error
import urllib.request

import pytest

import sandbox_node
from sandbox_node import PROGRAMS, processes_of, wait_until

MODEL = "smollm2"
DAEMONS = ["key_protectiond", "gpuhealthd", "tie-model-owner", "cache_stored", "cloudboardd", "workload_servicesd", "afm-runtime", "tie-status-probe", "tie-controllerd"]
PER_REQUEST = ["cb_jobhelper", "tie-cloud-app"]
HEAL_LIMIT_S = 60


class Node(sandbox_node.SandboxNode):
    def __init__(self, place):
        self.port, self.proxy_port = sandbox_node.free_port(), sandbox_node.free_port()
        super().__init__(place, real=PROGRAMS + ["tie"],
                         extra=["--listen", f"127.0.0.1:{self.port}", "--proxy", f"127.0.0.1:{self.proxy_port}", "--drain-timeout", "2"])
        sandbox_node.add_model(self, sandbox_node.model_file(), MODEL)
        self.write_policy()

    def write_policy(self):
        policy = self.cli("release", "measure", "--policy").stdout
        (self.prefix / "share/tie").mkdir(parents=True, exist_ok=True)
        (self.prefix / "share/tie/policy.toml").write_text(policy)

    def stream(self, max_tokens, prompt="Tell a long story about a dog."):
        body = {"model": MODEL, "messages": [{"role": "user", "content": prompt}], "max_tokens": max_tokens, "stream": True, "temperature": 0}
        request = urllib.request.Request(f"http://127.0.0.1:{self.proxy_port}/v1/chat/completions", data=json.dumps(body).encode(),
                                         headers={"content-type": "application/json"})
        return urllib.request.urlopen(request, timeout=60)

    def answers(self):
        try:
            with self.stream(2) as answer:
                return b"[DONE]" in answer.read()
        except OSError:
            return False

    def pids(self, program):
        if program == "tie-proxy":
            return [pid for pid, line in processes_of(str(self.run)).items() if "/bin/tie proxy" in line]
        return self.pid_of(program)


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    sandbox_node.need_programs(PROGRAMS + ["tie"])
    if sandbox_node.model_file() is None:
        pytest.skip("no model file: ./dev model fetches it")
    made = Node(tmp_path_factory.mktemp("real"))
    made.up()
    wait_until(made.answers, HEAL_LIMIT_S, "a first answer")
    yield made
    made.clean()


def status_of(pid):
    return dict(line.split(":", 1) for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line)


@pytest.mark.parametrize("program", DAEMONS + PER_REQUEST)
def test_each_process_is_confined(node, program):
    pid = wait_until(lambda: node.pids(program), what=f"a running {program}")[0]
    status = status_of(pid)
    assert int(status["CapEff"], 16) == int(status["CapPrm"], 16) == int(status["CapBnd"], 16) == int(status["CapAmb"], 16) == 0
    assert status["NoNewPrivs"].strip() == "1" and status["Seccomp"].strip() == "2"
    # What a process gives up by itself is a second filter.
    wait_until(lambda: int(status_of(pid)["Seccomp_filters"]) >= 2, what="its serving mode")
    shared = {"net"} if program == "cloudboardd" else set()
    for kind in ("user", "pid", "mnt", "net", "ipc", "uts", "cgroup"):
        same = os.readlink(f"/proc/{pid}/ns/{kind}") == os.readlink(f"/proc/self/ns/{kind}")
        assert same == (kind in shared), kind


@pytest.mark.parametrize("program", DAEMONS + PER_REQUEST)
def test_each_process_sees_the_sockets_of_its_edges_and_no_others(node, program):
    edges = {"key_protectiond": {"kps"}, "gpuhealthd": {"gpuhealth"}, "tie-model-owner": {"owner", "weights", "served"},
             "cloudboardd": {"cloudboard-control", "cb_jobhelper", "wsd-authorize", "wsd-claims", "cache"},
             "workload_servicesd": {"wsd-decap", "wsd-authorize", "wsd-claims", "wsd-operator", "kps", "cloudboard-control", "served"}, "afm-runtime": {"runtime", "probe", "kvxfer", "weights"},
             "tie-status-probe": {"runtime", "probe", "kvxfer", "weights"}, "cache_stored": {"cache"}, "tie-controllerd": {"controller", "cloudboard-control", "gpuhealth", "owner", "probe"},
             "cb_jobhelper": {"tie_cloud_app", "wsd-decap"}, "tie-cloud-app": {"runtime", "kvxfer"}}[program]
    pid = wait_until(lambda: node.pids(program), what=f"a running {program}")[0]
    seen = {str(path.name) for path in pathlib.Path(f"/proc/{pid}/root{node.run}").iterdir()} - {"stage", "state", "release"}
    assert seen == edges
    if program != "tie-model-owner" and program != "workload_servicesd":
        assert not pathlib.Path(f"/proc/{pid}/root{node.assets}").exists(), "weights"
    writable = [line.split()[4] for line in pathlib.Path(f"/proc/{pid}/mountinfo").read_text().splitlines() if line.split()[5].startswith("rw")]
    allowed = ("/proc", str(node.run), "/dev/null", "/dev/urandom")
    assert all(path.startswith(allowed) for path in writable), writable


@pytest.mark.parametrize("program", DAEMONS + PER_REQUEST)
def test_the_lines_that_a_program_may_log_lie_in_it(node, program):
    """The linker must not drop the section that the launcher filters by: without it nothing would be logged."""
    content = (node.prefix / "libexec/tie" / program).read_bytes()
    assert b"\0tie_log\0" in content


def test_two_requests_share_no_per_request_process(node):
    """Two answers at once; the pairs that served them are gone afterwards and were different."""
    before = {p: set(node.pids(p)) for p in PER_REQUEST}
    with node.stream(200) as one, node.stream(200) as two:
        one.readline(), two.readline()
        during = {p: set(node.pids(p)) for p in PER_REQUEST}
        for program in PER_REQUEST:
            assert len(during[program]) >= 2
    # Both of the pairs that served have ended: none is used again.
    for program in PER_REQUEST:
        wait_until(lambda p=program: len(before[p] & set(node.pids(p))) <= max(0, len(before[p]) - 2), what=f"the end of two {program}")


@pytest.mark.parametrize("program", PER_REQUEST + ["afm-runtime", "cloudboardd", "tie-proxy"])
def test_killing_a_process_of_the_request_breaks_the_answer_within_two_seconds_and_the_node_heals(node, program):
    wait_until(node.answers, HEAL_LIMIT_S)
    killed, text = None, b""
    try:
        with node.stream(2000) as answer:
            for number, line in enumerate(answer):
                text += line
                if number == 6:
                    for pid in node.pids(program):
                        os.kill(pid, signal.SIGKILL)
                    killed = time.monotonic()
    except OSError:
        pass  # the proxy itself was killed, or it cut the connection
    assert killed is not None and time.monotonic() - killed < 2.5
    assert b"[DONE]" not in text and b'"finish_reason":"stop"' not in text
    wait_until(node.answers, HEAL_LIMIT_S, "an answer after the kill")


@pytest.mark.parametrize("program", ["workload_servicesd", "key_protectiond", "tie-model-owner", "tie-controllerd", "gpuhealthd"])
def test_killing_another_daemon_does_not_cut_an_answer_and_the_node_heals(node, program):
    wait_until(node.answers, HEAL_LIMIT_S)
    with node.stream(40) as answer:
        answer.readline()
        for pid in node.pids(program):
            os.kill(pid, signal.SIGKILL)
        assert b"[DONE]" in answer.read()
    wait_until(node.answers, HEAL_LIMIT_S, "an answer after the kill")


def test_a_client_that_goes_away_leaves_no_process(node):
    wait_until(node.answers, HEAL_LIMIT_S)
    for _ in range(5):
        answer = node.stream(2000)
        answer.readline()
        answer.close()
    # The pool of waiting pairs is all that is left.
    wait_until(lambda: all(len(node.pids(p)) <= 3 for p in PER_REQUEST), 30, "the end of abandoned pairs")
    assert node.answers()


def test_bursts_beyond_the_pool_are_all_served(node):
    wait_until(node.answers, HEAL_LIMIT_S)
    results = []
    threads = [threading.Thread(target=lambda: results.append(node.answers())) for _ in range(10)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert results.count(True) == 10


def test_with_one_flipped_byte_yesterdays_policy_refuses_the_node(node):
    node.down()
    program = node.prefix / "libexec/tie/gpuhealthd"
    original = program.read_bytes()
    flipped = bytearray(original)
    # In the section names at the end of the file: the program still runs.
    flipped[flipped.rindex(b".comment") + 1] ^= 1
    program.write_bytes(flipped)
    node.up()
    refused = node.cli("ask", "--node", f"127.0.0.1:{node.port}", "--policy", str(node.prefix / "share/tie/policy.toml"), "hello")
    assert refused.returncode == 4, refused.stdout + refused.stderr
    with pytest.raises(urllib.error.HTTPError):
        node.stream(2)
    node.down()
    program.write_bytes(original)
    node.up()
    wait_until(node.answers, HEAL_LIMIT_S, "an answer with the old program")


def test_down_leaves_nothing(node):
    assert node.down().returncode == 0
    assert processes_of(str(node.run)) == {} and not node.run.exists()
