"""tie-model-owner and afm-runtime with a model on a GPU that is not there: the emulated driver runs the kernels on the CPU and keeps a record of
every allocation, copy, attach and free (src/inference/bones/cuda/testing/fake_driver.cc)."""
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time

import pytest

from protobuf_by_hand import field, fields, varint
from runtime_process import BIN, ROOT, Runtime, bytes_input

BUILD = BIN.parent
FAKE_CUDA = BUILD / "testing/libtie_fake_cuda.so"
FAKE_NVML = BUILD / "src/supervision/gpuhealthd/libfake_nvml.so"
PROMPT = [72, 101, 108]
LONG_PROMPT = [(i * 37 + 11) % 256 for i in range(70)]
ANSWER = 8
LIMIT_S = 60
CPU = 'kv_cache = "f16"\n'  # as on the GPU, so that texts can be compared


def whole_blocks(size):
    """What the owner allocates for weights of that size: memory is lent in blocks of 2 MiB, and nothing else may lie in them."""
    return -(-size // (2 << 20)) * (2 << 20)


class Gpu:
    """The emulated machine: a folder of assets, the owner, runtimes, the driver's record."""

    def __init__(self, place, **records):
        self.place = place
        self.record_folder = place / "gpu"
        self.record_folder.mkdir()
        self.nvml_state = place / "nvml"
        self.nvml_state.write_text("")
        self.runtimes = []
        for name, record in records.items():
            self.add_model(name, seed=1, record=record)
        (place / "kernels").write_bytes(b"emulated")
        self.environment = {**os.environ, "TIE_FAKE_CUDA_DIR": str(self.record_folder), "TIE_FAKE_NVML_STATE": str(self.nvml_state)}
        self.owner = None

    def add_model(self, name, seed, record):
        folder = self.place / "models" / name
        folder.mkdir(parents=True, exist_ok=True)
        new = self.place / "new.gguf"
        subprocess.run([BIN / "pack_model_images", "tiny", self.place / "unused", folder / "tokenizer.img", "--context", "256", "--floats",
                        "--seed", str(seed), "--gguf", new], check=True)
        os.replace(new, folder / "weights.gguf")
        (folder / "model.toml").write_text(record)

    def start_owner(self, driver=FAKE_CUDA, kernels=None):
        self.owner_log = open(self.place / "owner.log", "wb+")
        self.owner = subprocess.Popen([BIN / "tie-model-owner", "--socket", self.place / "owner.sock", "--model-sockets", self.place / "weights", "--assets", self.place, "--watch-ms", "100", "--threads", "1",
                                       "--cuda-driver", driver, "--nvml", FAKE_NVML, "--gpu-kernels", kernels or self.place / "kernels"], env=self.environment, stderr=self.owner_log)
        wait_for(lambda: (self.place / "owner.sock").exists())
        return self

    def owner_said(self):
        return (self.place / "owner.log").read_text()

    def door(self, model):
        return self.place / "weights" / model / "weights.sock"

    def runtime(self, model="gpu", ready=True, more=(), log=None):
        os.environ["TIE_FAKE_CUDA_DIR"] = str(self.record_folder)
        runtime = Runtime(["--owner-socket", self.door(model), "--threads", 1, "--kv-mib", 1, "--max-rows", 64, "--max-batch", 4, "--cuda-driver", FAKE_CUDA,
                           "--gpu-kernels", self.place / "kernels", *more], model=model, log=log)
        self.runtimes.append(runtime)
        return runtime.wait_ready() if ready else runtime

    def record(self, pid, what):
        lines = [line.split() for line in (self.record_folder / "record").read_text().splitlines()] if (self.record_folder / "record").exists() else []
        return [int(size) for who, kind, size in lines if int(who) == pid and kind == what]

    def owner_holds(self):
        return sum(self.record(self.owner.pid, "alloc")) - sum(self.record(self.owner.pid, "free"))

    def close(self):
        for runtime in self.runtimes:
            runtime.stop()
        if self.owner:
            if self.owner.poll() is None:
                self.owner.kill()
            self.owner.wait()
            self.owner_log.close()
        os.environ.pop("TIE_FAKE_CUDA_DIR", None)


@pytest.fixture
def machine(tmp_path):
    made = []

    def make(**records):
        made.append(Gpu(tmp_path, **records))
        return made[-1]
    yield make
    for gpu in made:
        gpu.close()


def wait_for(condition, limit_s=LIMIT_S):
    limit = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < limit, "waited in vain"
        time.sleep(0.02)


def greedy(runtime, prompt=PROMPT, **more):
    with runtime.stream() as stream:
        answer = stream.ask(prompt, temperature=0.0, max_tokens=ANSWER, ignore_eos=True, **more)
    assert answer.error is None, answer.error
    return answer


def register_prompt(gpu):
    """A system prompt of 40 tokens, of which 32 fill a block; returns its file."""
    (gpu.place / "prompts").mkdir()
    file = gpu.place / "prompts/p.json"
    file.write_text(json.dumps({"id": "p", "model": "gpu", "text": "x", "token_ids": LONG_PROMPT[:40]}))
    return file


def warm_up(gpu, more=()):
    """A runtime's whole life when it is told to compute the system prompts."""
    warming = gpu.runtime(ready=False, more=more)
    wait_for(lambda: warming.socket.exists())
    limit = time.monotonic() + LIMIT_S
    while warming.process.poll() is None:
        assert time.monotonic() < limit
        with contextlib.suppress(ProcessLookupError):
            warming.process.send_signal(signal.SIGUSR1)
        time.sleep(0.1)
    assert warming.process.returncode == 0


def test_weights_go_to_the_gpu_once_and_every_runtime_attaches_to_them(machine):
    gpu = machine(gpu='device = "cuda"\n', cpu=CPU).start_owner()
    expected = greedy(gpu.runtime("cpu")).tokens[0]
    first = gpu.runtime()
    assert greedy(first).tokens[0] == expected
    weights, copied = gpu.record(gpu.owner.pid, "alloc"), sum(gpu.record(gpu.owner.pid, "copy"))
    assert weights == [whole_blocks(copied)], "each byte was copied once"
    first.process.kill()  # no goodbye
    first.process.wait()
    second = gpu.runtime()
    assert greedy(second).tokens[0] == expected
    second.terminate()
    assert second.process.wait(timeout=LIMIT_S) == 0
    for runtime in (first, second):
        pid = runtime.process.pid
        assert gpu.record(pid, "attach") == weights
        assert max(gpu.record(pid, "copy")) < copied / 8, "a runtime copies batches, never weights"
    assert gpu.record(gpu.owner.pid, "alloc") == weights and gpu.owner_holds() == weights[0] and sum(gpu.record(gpu.owner.pid, "copy")) == copied
    pid = second.process.pid
    assert sorted(gpu.record(pid, "alloc")) == sorted(gpu.record(pid, "free")) and gpu.record(pid, "detach") == weights
    assert gpu.owner.poll() is None


def test_only_one_runtime_holds_the_gpu_weights(machine):
    gpu = machine(gpu='device = "cuda"\n').start_owner()
    first = gpu.runtime()
    late = gpu.runtime(ready=False)
    time.sleep(0.5)
    assert late.process.poll() is None and gpu.record(late.process.pid, "attach") == []
    first.process.kill()
    late.wait_ready()
    assert len(gpu.record(late.process.pid, "attach")) == 1


def test_an_upgrade_and_the_way_back_free_what_nobody_holds_any_more(machine):
    gpu = machine(gpu='device = "cuda"\n', cpu=CPU).start_owner()
    texts = {}
    for seed in (1, 2, 1):
        for name, record in (("gpu", 'device = "cuda"\n'), ("cpu", CPU)):
            gpu.add_model(name, seed, record)
        if texts:  # the runtime in service keeps the old weights until it is recycled
            wait_for(lambda: gpu.owner_holds() == 2 * size)
            assert greedy(runtime).tokens[0] == texts[before]
            runtime.terminate()
            runtime.process.wait(timeout=LIMIT_S)
        wait_for(lambda: gpu.record(gpu.owner.pid, "alloc") != [])
        size = gpu.record(gpu.owner.pid, "alloc")[0]
        wait_for(lambda: gpu.owner_holds() == size)
        runtime, before = gpu.runtime(), seed
        text = greedy(runtime).tokens[0]
        assert texts.setdefault(seed, text) == text
        cpu = gpu.runtime("cpu")
        assert greedy(cpu).tokens[0] == text
        cpu.stop()
    assert texts[1] != texts[2]
    assert gpu.owner_holds() == size


def test_weights_that_a_runtime_has_changed_do_not_reach_the_next_one(machine):
    gpu = machine(gpu='device = "cuda"\n').start_owner()
    first = gpu.runtime()
    expected = greedy(first).tokens[0]
    (memory,) = gpu.record_folder.glob(f"memory-{gpu.owner.pid}-*")
    with open(memory, "r+b") as file:  # what a runtime that was taken over can do: the driver has no read-only attach
        file.seek(1000)
        file.write(bytes(5000))
    first.process.kill()
    second = gpu.runtime()
    assert greedy(second).tokens[0] == expected
    assert len(gpu.record(gpu.owner.pid, "alloc")) == 2, "read from the file again"
    assert gpu.record(gpu.owner.pid, "read") == [], "the GPU compared; nothing was copied back"
    assert "have changed" in gpu.owner_said()


def test_without_kernels_a_model_that_may_choose_goes_to_the_cpu(machine):
    """Nobody could compare the weights on the GPU, nor compute with them."""
    gpu = machine(auto='device = "auto"\n', gpu='device = "cuda"\n').start_owner(kernels="/nowhere/kernels")
    greedy(gpu.runtime("auto"))
    assert gpu.record(gpu.owner.pid, "alloc") == []
    wait_for(lambda: "gpu: " in gpu.owner_said())
    assert "auto goes to the CPU" in gpu.owner_said() and "install a build with GPU kernels" in gpu.owner_said()


def test_a_runtime_does_not_outlive_its_owner(machine):
    gpu = machine(gpu='device = "cuda"\n').start_owner()
    runtime = gpu.runtime()
    gpu.owner.kill()
    assert runtime.process.wait(timeout=LIMIT_S) != 0, "its weights are gone: the container's init recycles on this"


def test_the_gpus_own_units_serve_unless_the_operator_says_otherwise(machine, monkeypatch):
    """What they compute is another test's matter: here who decides. A key of model.toml, a flag that the launcher gives for node.toml's."""
    gpu = machine(gpu='device = "cuda"\n', careful='device = "cuda"\ngpu_fast_kernels = false\n').start_owner()
    monkeypatch.setenv("TIE_FAKE_CUDA_GENERATION", "9")
    for model, more, word in (("gpu", (), "cuda-hopper-"), ("gpu", ("--gpu-portable-kernels",), "cuda-portable"), ("careful", (), "cuda-portable")):
        said = gpu.place / "said"
        with open(said, "wb") as log:
            runtime = gpu.runtime(model, more=more, log=log)
        greedy(runtime)
        runtime.terminate()
        runtime.process.wait(timeout=LIMIT_S)
        text = said.read_text()
        assert re.search(r"ready after .*: (cuda-\S+) kernels", text).group(1).startswith(word), text
        assert ("left alone, as configured" in text) == (word == "cuda-portable")


def test_a_machine_without_a_driver_says_what_to_do(machine):
    gpu = machine(gpu='device = "cuda"\n', choice='device = "auto"\n', wrong='device = "tpu"\n').start_owner(driver="/nowhere/libcuda.so.1")
    wait_for(lambda: "gpu:" in gpu.owner_said() and "wrong:" in gpu.owner_said())
    said = gpu.owner_said()
    assert "no CUDA driver on this machine: /nowhere/libcuda.so.1" in said and "nvidia-smi" in said and 'device = "cpu"' in said
    assert 'device must be "cpu", "cuda" or "auto"' in said
    assert "choice goes to the CPU" in said
    greedy(gpu.runtime("choice"))


def test_a_runtime_without_the_kernels_says_what_to_do(machine):
    gpu = machine(gpu='device = "cuda"\n').start_owner()
    with open(gpu.place / "said", "wb") as said:
        ended = subprocess.run([BIN / "afm-runtime", "--model", "gpu", "--socket", gpu.place / "runtime.sock", "--owner-socket", gpu.door("gpu"),
                                "--cuda-driver", FAKE_CUDA, "--gpu-kernels", "/nowhere/kernels"], stderr=said, timeout=LIMIT_S, env=gpu.environment)
    assert ended.returncode != 0
    text = (gpu.place / "said").read_text()
    assert "/nowhere/kernels" in text and 'device = "cpu"' in text


def test_auto_takes_the_gpu_only_when_it_is_healthy(machine):
    gpu = machine(choice='device = "auto"\n').start_owner()
    runtime = gpu.runtime("choice")
    assert len(gpu.record(runtime.process.pid, "attach")) == 1
    runtime.stop()
    gpu.nvml_state.write_text("lost 1\n")
    gpu.add_model("choice", 2, 'device = "auto"\n')
    wait_for(lambda: "choice goes to the CPU" in gpu.owner_said() and gpu.owner_holds() == 0)
    runtime = gpu.runtime("choice")
    greedy(runtime)
    assert gpu.record(runtime.process.pid, "attach") == []


def test_system_prompts_are_computed_once_and_restored_into_gpu_memory(machine):
    gpu = machine(gpu='device = "cuda"\n')
    prompt = register_prompt(gpu)
    gpu.start_owner()
    warm_up(gpu)
    runtime = gpu.runtime()
    assert greedy(runtime, LONG_PROMPT).usage
    with runtime.stream() as stream:
        answer = stream.ask(LONG_PROMPT, temperature=0.0, max_tokens=ANSWER, ignore_eos=True)
    cached = answer.usage.get(3, 0)
    prompt.unlink()
    runtime.stop()
    wait_for(lambda: len(gpu.record(gpu.owner.pid, "free")) >= 1)
    plain = greedy(gpu.runtime(), LONG_PROMPT)
    assert cached == 32 and plain.usage.get(3, 0) == 0
    assert answer.tokens[0] == plain.tokens[0]


class Kvxfer:
    """One connection to kvxfer.sock, by the bytes of docs/kvxfer.md and proto/kvxfer.proto."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(LIMIT_S)
        self.socket.connect(str(path))

    def ask(self, message, fds=()):
        data = struct.pack(">I", len(message)) + message
        socket.send_fds(self.socket, [data], list(fds))
        head, received, _, _ = socket.recv_fds(self.socket, 4, 1)
        body = b""
        while len(body) < struct.unpack(">I", head)[0]:
            more, also, _, _ = socket.recv_fds(self.socket, 1 << 16, 1)
            assert more
            body += more
            received += also
        return dict(fields(body)), received


HANDLE = bytes(range(16))


def exported(link, runtime):
    """What LONG_PROMPT leaves: the answer, and a buffer of its two whole blocks as an app would offer it to the next runtime."""
    sys.path.insert(0, str(ROOT / "src/cache/kvxfer"))
    import kvxfer
    library = kvxfer.load(str(BUILD / "lib/libtie_kvxfer.so"))
    reply, (buffer,) = link.ask(field(2, field(1, HANDLE) + varint(2 << 3) + varint(128)))
    assert 1 not in reply, reply
    whole = greedy(runtime, LONG_PROMPT, inputs=[bytes_input("kv_export", HANDLE)])
    assert whole.usage.get(7, 0) == 64, whole.usage
    wait_for(lambda: struct.unpack("<I", os.pread(buffer, 4, 120))[0] == 1)
    blocks, block_tokens, block_bytes = struct.unpack("<IIQ", os.pread(buffer, 16, 104))
    assert struct.unpack("<I", os.pread(buffer, 4, 124))[0] == 64
    start = 4096 + -(-4 * blocks // 4096) * 4096
    ids = [(kvxfer.c_uint8 * 32)(*os.pread(buffer, 32, 8 + 32 * i)) for i in range(3)]
    producer = kvxfer.Producer(library, kvxfer.Description(*ids, 2, block_tokens, block_bytes))
    for block in range(2):
        producer.write(block, os.pread(buffer, block_bytes, start + block * block_bytes))
    producer.finish(64)
    return whole, producer


def offer(link, producer):
    reply, _ = link.ask(field(1, field(1, HANDLE)), [producer.fileno()])
    return reply


def test_a_conversation_continues_from_blocks_that_left_the_gpu(machine):
    gpu = machine(gpu='device = "cuda"\n', cpu=CPU).start_owner()
    socket_path = gpu.place / "kvxfer.sock"
    runtime = gpu.runtime(more=["--kvxfer-socket", socket_path])
    link = Kvxfer(socket_path)
    whole, producer = exported(link, runtime)
    second = Kvxfer(socket_path)
    reply = offer(second, producer)
    assert 1 not in reply, reply
    again = greedy(runtime, LONG_PROMPT, inputs=[bytes_input("kv_import", HANDLE)])
    assert again.usage.get(4, 0) == 64 and again.tokens[0] == whole.tokens[0]
    assert gpu.record(runtime.process.pid, "pin"), "through memory that the driver pinned"
    # A CPU's blocks have another order: they are refused by their layout id, the prompt is computed.
    cpu_socket = gpu.place / "cpu-kvxfer.sock"
    cpu = gpu.runtime("cpu", more=["--kvxfer-socket", cpu_socket])
    assert 1 in offer(Kvxfer(cpu_socket), producer), "another layout"
    greedy(cpu, LONG_PROMPT, inputs=[bytes_input("kv_import", HANDLE)])
