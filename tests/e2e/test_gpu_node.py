"""A whole sandboxed node on GPUs that are not there: the launcher starts every process with the profile of GPU processes, the driver's root that it is told has emulated device nodes
and the emulated libraries. Requests, a recycle, deaths; which process sees which GPU; that no weight is copied twice. Emulated: says nothing of speed, nor of NVIDIA's libraries."""
import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

import pytest

import support
from emulated_gpus import EmulatedGpus

sys.path.insert(0, str(support.ROOT / "tests/supervision"))
from recycle_load import recycle_once  # noqa: E402

GPUS = 4
LIMIT_S = 60
CONTEXT = 256


class GpuNode(support.Place):
    """`models`: {name: flags of `tie model add`}, all of the same random weights."""

    def __init__(self, place, memory):
        super().__init__(support.free_port(), support.free_port(), run_dir=memory / "run")
        self.place, self.prefix, self.assets = place, place / "prefix", place / "assets"
        self.gpus = EmulatedGpus(place / "driver", GPUS, support.BUILD)
        # The release of this test: the build's, and a file in the place of the kernels, which the emulated driver never looks into.
        shutil.copytree(support.BUILD / "dist", self.prefix)
        (self.prefix / "lib/tie").mkdir(parents=True, exist_ok=True)
        (self.prefix / "lib/tie/tie_kernels.fatbin").write_bytes(b"emulated")
        self.policy = self.prefix / "share/tie/policy.toml"
        self.policy.write_text(self.run("release", "measure", self.prefix, "--policy").stdout)

    def run(self, *words, check=True):
        done = subprocess.run([str(self.prefix / "bin/tie"), *map(str, words)], capture_output=True, text=True, timeout=180, env={**os.environ, "TIE_ASSETS": str(self.assets)})
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done

    def add_model(self, name, *flags, replace=False):
        weights = self.place / "tiny.gguf"
        subprocess.run([support.BUILD / "bin/pack_model_images", "tiny", self.place / "unused", self.place / "unused-too", "--context", str(CONTEXT), "--floats", "--gguf", weights], check=True)
        template = self.place / "template.jinja"
        template.write_text(f"{{{{ messages }}}} {name}")  # so that models of the same weights differ in their ids
        self.run("model", "add", weights, "--name", name, "--template", template, *(["--replace"] if replace else []), *flags)

    def up(self, *flags, check=True):
        return self.run("up", "--detach", "--run-dir", self.run_dir, "--assets", self.assets, "--listen", self.node, "--proxy", f"127.0.0.1:{self.proxy_port}", "--threads", 1,
                        "--gpu-driver-root", self.gpus.root, "--startup-timeout", LIMIT_S, "--prewarmed", 1, *flags, check=check)

    def close(self):
        self.run("down", "--run-dir", self.run_dir, check=False)
        self.gpus.close()

    def log(self, unit):
        return (self.run_dir / f"log/{unit}.log").read_text()

    def complete(self, model, prompt="Hello, how are", tokens=8):
        """The greedy answer's text and usage, by the proxy."""
        body = {"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "logprobs": 1}
        request = urllib.request.Request(self.url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=LIMIT_S) as response:
            answer = json.load(response)
        (choice,) = answer["choices"]
        assert answer["usage"]["completion_tokens"] == tokens, answer
        return choice["text"], choice["logprobs"]["token_logprobs"]

    def until_complete(self, model):
        """The answer of a node that heals: refusals in between are what a client would try again."""
        limit = time.monotonic() + LIMIT_S
        while True:
            try:
                return self.complete(model)
            except (urllib.error.HTTPError, ConnectionError, TimeoutError):
                assert time.monotonic() < limit, "it does not heal"
                time.sleep(0.1)

    def runtime(self, model):
        """Process numbers: the runtime's and its ranks', rank 0 first."""
        found = [pid for pid in self.processes("afm-runtime") if f"\0--model\0{model}\0" in pathlib.Path(f"/proc/{pid}/cmdline").read_text()]
        (runtime,) = found
        ranks = []
        for task in pathlib.Path(f"/proc/{runtime}/task").iterdir():
            ranks += map(int, (task / "children").read_text().split())
        return [runtime, *sorted(ranks)]

    def owner(self):
        (pid,) = self.processes("tie-model-owner")
        return pid

    def nodes_of(self, pid):
        """What a process sees of the driver in its /dev."""
        return {path.name for path in pathlib.Path(f"/proc/{pid}/root/dev").iterdir() if path.name.startswith("nvidia")}


@contextlib.contextmanager
def gpu_node(start=True, **models):
    if not (support.BUILD / "dist").exists() or not (support.BUILD / "testing/libtie_fake_cuda.so").exists():
        pytest.skip(f"no installed tree, or no emulated driver in {support.BUILD}: ./dev build")
    folder, memory = (pathlib.Path(tempfile.mkdtemp(prefix="tie-gpu-", dir=where)) for where in (None, "/dev/shm"))
    node = None
    try:
        node = GpuNode(folder, memory)
        for name, words in models.items():
            node.add_model(name, *words)
        if start:
            node.started = node.up()
        yield node
    finally:
        if node:
            node.close()
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(memory, ignore_errors=True)


def wait_for(condition):
    limit = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < limit, "waited in vain"
        time.sleep(0.05)


CPU = ("--kv-cache", "f16")


@pytest.fixture(scope="module")
def node():
    with gpu_node(pair=("--device", "cuda", "--ranks", 2), cpu=CPU) as made:
        yield made


def assert_near(found, expected):
    """As tests/integration/test_gpu_ranks.py has it: activations are rounded to bf16 a few times on a GPU."""
    assert found[0] == expected[0] and max(abs(a - b) for a, b in zip(found[1], expected[1], strict=True)) < 0.05, (found, expected)


def test_a_request_is_answered_by_two_gpus_as_by_the_cpu(node):
    assert len(node.runtime("pair")) == 2 and len(node.runtime("cpu")) == 1
    assert_near(node.complete("pair"), node.complete("cpu"))
    assert node.complete("pair") == node.complete("pair")
    assert "cuda-portable kernels" in node.log("afm-runtime@pair")


def test_each_process_sees_the_gpus_of_its_part(node):
    pair = {"nvidiactl", "nvidia0", "nvidia1"}
    (health,) = node.processes("gpuhealthd")
    for pid in (node.owner(), *node.runtime("pair")):
        assert node.nodes_of(pid) == pair
    assert node.nodes_of(health) == pair | {"nvidia2", "nvidia3"}
    for pid in node.runtime("cpu"):
        assert node.nodes_of(pid) == set(), "a model on the CPU"
    for program in ("tie-controllerd", "cloudboardd", "cache_stored", "workload_servicesd", "key_protectiond", "cb_jobhelper", "tie-cloud-app"):
        for pid in node.processes(program):
            assert node.nodes_of(pid) == set(), program
    for pid in (node.owner(), health, *node.runtime("pair")):
        status = dict(line.split(":\t", 1) for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line)
        assert status["Seccomp"].strip() == "2" and status["NoNewPrivs"].strip() == "1" and int(status["CapEff"], 16) == 0
        assert os.readlink(f"/proc/{pid}/ns/net") != os.readlink("/proc/self/ns/net")


def copied_once(node, owner):
    """Each rank's shard lies on its GPU; what the owner has copied there, which was less than the shards' memory and must stay what it is."""
    shards, copied = node.gpus.record("alloc", {owner}), node.gpus.record("copy", {owner})
    assert len(shards) == 2 and [gpu for gpu in range(GPUS) if node.gpus.record("alloc", {owner}, gpu)] == [0, 1]
    assert 0 < sum(copied) <= sum(shards) and node.gpus.record("free", {owner}) == node.gpus.record("reclaimed", {owner}) == []
    return shards, sum(copied)


def test_recycles_and_deaths_copy_no_weights(node):
    expected, owner = node.complete("pair"), node.owner()
    shards, copied = copied_once(node, owner)
    teams = [node.runtime("pair")]
    recycle_once(node)
    assert node.until_complete("pair") == expected
    teams.append(node.runtime("pair"))
    for victim in (0, 1):  # the runtime itself, then its rank on the other GPU
        os.kill(teams[-1][victim], signal.SIGKILL)
        wait_for(lambda: not any(pathlib.Path(f"/proc/{pid}").exists() for pid in teams[-1]))
        assert node.until_complete("pair") == expected
        teams.append(node.runtime("pair"))
    assert len({pid for team in teams for pid in team}) == 8
    for team in teams:
        for rank, pid in enumerate(team):
            assert node.gpus.used_by({pid}) == {rank}, "a GPU of its own"
            assert node.gpus.record("attach", {pid}) == [shards[rank]], "its own shard"
            assert max(node.gpus.record("copy", {pid})) < shards[rank] / 8, "batches, never weights"
    assert node.owner() == owner and copied_once(node, owner) == (shards, copied)
    # Whatever an ended process had on a GPU is free: what is left is the weights, and the KV memory of those that run.
    held = sum(shards) + sum(node.gpus.record("alloc", set(teams[-1]))) - sum(node.gpus.record("free", set(teams[-1])))
    wait_for(lambda: node.gpus.held() == held)


def test_a_driver_that_is_not_the_systems_shows_everywhere(node):
    assert f"WARNING: gpu_driver_root: code of the GPU driver in {node.gpus.root}" in node.started.stdout + node.started.stderr
    status = json.loads(node.run("status", "--run-dir", node.run_dir).stdout)
    assert status["gpu_driver_root"] == str(node.gpus.root)
    measured = {library["path"]: library["sha256"] for library in status["gpu_libraries"]}
    for name in ("libcuda.so.1", "libnccl.so.2", "libnvidia-ml.so.1"):
        path = str(node.gpus.root / "usr/lib64" / name)
        assert measured[path] == subprocess.run(["sha256sum", path], capture_output=True, text=True, check=True).stdout.split()[0]
    assert f"with the GPU driver in {node.gpus.root} (gpu_driver_root)" in node.run("doctor", "--run-dir", node.run_dir, check=False).stdout


def test_models_run_on_the_gpus_that_they_name():
    with gpu_node(pair=("--device", "cuda", "--ranks", 2, "--gpus", "3,1"), single=("--device", "cuda", "--gpus", "2"), cpu=CPU) as made:
        expected = made.complete("cpu")
        for model in ("pair", "single"):
            assert_near(made.complete(model), expected)
        owner, pair, single = made.owner(), made.runtime("pair"), made.runtime("single")
        # The driver counts what a process sees: GPU 3 is the second of the pair's container and the third of the owner's.
        assert [made.gpus.used_by({pid}) for pid in pair + single] == [{3}, {1}, {2}]
        assert made.gpus.used_by({owner}) == {1, 2, 3} and made.gpus.held(0) == 0
        assert [made.nodes_of(pid) for pid in (pair[0], single[0], owner)] == [{"nvidiactl", "nvidia1", "nvidia3"}, {"nvidiactl", "nvidia2"}, {"nvidiactl", "nvidia1", "nvidia2", "nvidia3"}]
        shard = {gpu: made.gpus.record("alloc", {owner}, gpu) for gpu in range(GPUS)}
        assert [len(sizes) for sizes in shard.values()] == [0, 1, 1, 1]
        for pid, gpu in zip(pair + single, (3, 1, 2)):
            assert made.gpus.record("attach", {pid}) == shard[gpu] and made.gpus.record("refused", {pid}) == []
        os.kill(pair[1], signal.SIGKILL)
        wait_for(lambda: not pathlib.Path(f"/proc/{pair[0]}").exists())
        assert_near(made.until_complete("pair"), expected)
        assert made.runtime("single") == single, "another model's GPU is not its business"


@pytest.mark.parametrize("record, said", [("gpus = [7]", "finding GPU 7: it is not on this machine"), ("gpus = [1, 2]", "gpus names 2, and the model has 1 ranks"), ("gpus = 0", "gpus must be a list of numbers")])
def test_a_wrong_choice_is_told_to_whoever_starts_the_node(record, said):
    with gpu_node(start=False, pair=("--device", "cuda")) as made:
        (file,) = made.assets.glob("models/pair/model.toml")
        file.write_text(file.read_text().replace('device = "cuda"', f'device = "cuda"\n{record}'))
        started = made.up(check=False)
        assert started.returncode != 0 and said in started.stdout + started.stderr, started.stdout + started.stderr
