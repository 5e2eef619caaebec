"""A model on several GPUs that are not there: tie-model-owner puts each rank's shard on a GPU of its own, afm-runtime and its ranks run on the emulated driver and an
emulated NCCL. What the driver's record must show, whose texts must agree, what a rank's death does. Emulated only: says nothing of speed, nor of real NCCL."""
import contextlib
import os
import pathlib
import signal
import subprocess
import time

import pytest

from runtime_process import BIN, bytes_input
from test_gpu_runtime import BUILD, CPU, FAKE_CUDA, LIMIT_S, HANDLE, LONG_PROMPT, PROMPT, Kvxfer, exported, greedy, machine, offer, register_prompt, wait_for, warm_up, whole_blocks  # noqa: F401

FAKE_NCCL = BUILD / "testing/libtie_fake_nccl.so"
ONE, TWO, STAGES = 'device = "cuda"\n', 'device = "cuda"\nranks = 2\n', 'device = "cuda"\nstages = 2\n'
MORE = ["--nccl", FAKE_NCCL]
NEAR = 0.05  # of log probabilities: activations of a prompt are rounded to bf16 (2^-9) a few times on a GPU, logits spread over about 3
NOTICED_S = 2.0


@pytest.fixture(autouse=True)
def two_gpus(monkeypatch):
    monkeypatch.setenv("TIE_FAKE_CUDA_DEVICES", "2")


def ranks_of(runtime):
    """The further ranks: children of the runtime."""
    found = []
    with contextlib.suppress(FileNotFoundError):
        for task in pathlib.Path(f"/proc/{runtime.process.pid}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found


def only(found):
    (one,) = found
    return one


def scored(runtime, prompt):
    answer = greedy(runtime, prompt, top_logprobs=2, logprobs=1)
    return list(zip(answer.tokens[0], answer.logprobs[0], strict=True))


def assert_agree(found, expected):
    """The same tokens, up to where the likeliest two are as near as rounding moves them."""
    for (token, (_, logprob, _)), (wanted, (_, wanted_logprob, top)) in zip(found, expected, strict=True):
        if token != wanted:
            second = top[1][1]
            assert wanted_logprob - second < 2 * NEAR, (token, wanted, top)
            return
        assert abs(logprob - wanted_logprob) < NEAR


@pytest.mark.parametrize("record", [TWO, STAGES])
def test_two_gpus_answer_like_one_and_like_the_cpu(machine, record):  # noqa: F811
    gpu = machine(cpu=CPU, one=ONE, two=record).start_owner()
    answers = {}
    for name in ("cpu", "one", "two"):
        runtime = gpu.runtime(name, more=MORE)
        answers[name] = [scored(runtime, prompt) for prompt in (PROMPT, LONG_PROMPT)]
        assert len(ranks_of(runtime)) == (1 if name == "two" else 0)
        if name == "two":
            assert [scored(runtime, prompt) for prompt in (PROMPT, LONG_PROMPT)] == answers[name], "the same again from the same team"
        runtime.stop()
    for name in ("one", "two"):
        for found, expected in zip(answers[name], answers["cpu"]):
            assert_agree(found, expected)


def test_each_shard_is_copied_once_and_lent_to_its_rank_alone(machine):  # noqa: F811
    gpu = machine(gpu=TWO).start_owner()
    first = gpu.runtime(more=MORE)
    expected = greedy(first).tokens[0]
    owner = gpu.owner.pid
    shards = gpu.record(owner, "alloc")
    copies = gpu.record(owner, "copy")
    tensors = len(copies) // 2  # of each shard
    assert shards == [whole_blocks(sum(copies[:tensors])), whole_blocks(sum(copies[tensors:]))], "each byte of each shard was copied once"
    assert gpu.record(owner, "device") == [0, 1]
    pids = [first.process.pid, only(ranks_of(first))]
    of_rank = pathlib.Path(f"/proc/{pids[1]}")
    held = [os.readlink(fd) for fd in (of_rank / "fd").iterdir() if int(fd.name) > 2]
    assert sum(target.startswith("socket:") for target in held) == 1, "a rank has its lifeline, not the owner's socket"
    assert sum(target.startswith("/memfd:tie-gpu-table") for target in held) <= 1
    assert b"memory-" not in (of_rank / "cmdline").read_bytes(), "whoever looks at its arguments learns no handle"
    first.process.kill()  # no goodbye: its rank goes with it, the weights stay
    first.process.wait()
    wait_for(lambda: not pathlib.Path(f"/proc/{pids[1]}").exists())
    second = gpu.runtime(more=MORE)
    assert greedy(second).tokens[0] == expected
    pids += [second.process.pid, only(ranks_of(second))]
    for number, pid in enumerate(pids):
        assert gpu.record(pid, "device") == [number % 2], "a GPU of its own"
        assert gpu.record(pid, "attach") == [shards[number % 2]], "its own shard and no other"
        assert max(gpu.record(pid, "copy")) < sum(copies) / 16, "a rank copies batches, never weights"
    second.terminate()
    assert second.process.wait(timeout=LIMIT_S) == 0
    wait_for(lambda: not pathlib.Path(f"/proc/{pids[3]}").exists())
    for number in (2, 3):
        assert sorted(gpu.record(pids[number], "alloc")) == sorted(gpu.record(pids[number], "free")), "a rank that is told to stop leaves nothing"
        assert gpu.record(pids[number], "detach") == [shards[number % 2]]
    assert gpu.record(owner, "alloc") == shards and gpu.owner_holds() == sum(shards)
    assert gpu.record(owner, "copy") == copies and gpu.record(owner, "read") == [], "copied once, compared where they lie"


def test_a_shard_that_a_rank_has_changed_does_not_reach_the_next_one(machine):  # noqa: F811
    gpu = machine(gpu=TWO).start_owner()
    first = gpu.runtime(more=MORE)
    expected = greedy(first).tokens[0]
    second_shard = sorted(gpu.record_folder.glob(f"memory-{gpu.owner.pid}-*"), key=lambda path: int(path.name.rsplit("-", 1)[1]))[1]
    with open(second_shard, "r+b") as file:
        file.seek(1000)
        file.write(bytes(5000))
    first.process.kill()
    first.process.wait()
    assert greedy(gpu.runtime(more=MORE)).tokens[0] == expected
    assert len(gpu.record(gpu.owner.pid, "alloc")) == 4, "read from the file again"
    assert "have changed" in gpu.owner_said()


def test_ranks_run_on_the_gpus_that_the_record_names(machine):  # noqa: F811
    gpu = machine(gpu=TWO + "gpus = [1, 0]\n", usual=TWO, wrong=TWO + "gpus = [1, 1]\n").start_owner()
    runtime = gpu.runtime(more=MORE)
    named = greedy(runtime).tokens[0]
    assert [gpu.record(pid, "device") for pid in (runtime.process.pid, only(ranks_of(runtime)))] == [[1], [0]]
    runtime.stop()
    usual = gpu.runtime("usual", more=MORE)
    assert greedy(usual).tokens[0] == named
    assert gpu.record(usual.process.pid, "device") == [0]
    wait_for(lambda: "gpus names 1 twice" in gpu.owner_said())


@pytest.mark.parametrize("record", [TWO, STAGES])
def test_a_rank_that_is_killed_ends_its_requests_and_the_next_runtime_serves(machine, record):  # noqa: F811
    gpu = machine(gpu=record).start_owner()
    runtime = gpu.runtime(more=MORE)
    expected = greedy(runtime).tokens[0]
    with runtime.stream() as stream:
        stream.send(PROMPT, temperature=0.0, max_tokens=200, ignore_eos=True)
        result, error = stream.receive()
        assert error is None and result is not None
        os.kill(only(ranks_of(runtime)), signal.SIGKILL)
        killed = time.monotonic()
        answer = stream.collect()
    assert time.monotonic() - killed < NOTICED_S
    assert answer.error is not None or "error" in answer.finish.values(), (answer.error, answer.finish)
    assert runtime.process.wait(timeout=LIMIT_S) != 0, "the container's init recycles on this"
    shards = gpu.record(gpu.owner.pid, "alloc")
    again = gpu.runtime(more=MORE)
    assert greedy(again).tokens[0] == expected
    os.kill(only(ranks_of(again)), signal.SIGKILL)  # while nothing is asked
    assert again.process.wait(timeout=LIMIT_S) != 0
    assert greedy(gpu.runtime(more=MORE)).tokens[0] == expected
    assert gpu.record(gpu.owner.pid, "alloc") == shards, "no weight was read or copied again"


def test_ranks_do_not_outlive_the_owner(machine):  # noqa: F811
    gpu = machine(gpu=TWO).start_owner()
    runtime = gpu.runtime(more=MORE)
    rank = only(ranks_of(runtime))
    gpu.owner.kill()
    assert runtime.process.wait(timeout=LIMIT_S) != 0, "its weights are gone"
    wait_for(lambda: not pathlib.Path(f"/proc/{rank}").exists())


def test_system_prompts_are_restored_into_both_ranks(machine):  # noqa: F811
    gpu = machine(gpu=TWO)
    prompt = register_prompt(gpu)
    gpu.start_owner()
    warm_up(gpu, MORE)
    pools = [fd for fd in pathlib.Path(f"/proc/{gpu.owner.pid}/fd").iterdir() if os.readlink(fd).startswith("/memfd:tie-prefix")]
    assert len(pools) == 2, "a pool for each rank"
    runtime = gpu.runtime(more=MORE)
    answer = greedy(runtime, LONG_PROMPT)
    assert answer.usage.get(3, 0) == 32
    runtime.stop()
    prompt.unlink()
    wait_for(lambda: len(gpu.record(gpu.owner.pid, "free")) >= 2)
    plain = greedy(gpu.runtime(more=MORE), LONG_PROMPT)
    assert plain.usage.get(3, 0) == 0 and answer.tokens[0] == plain.tokens[0]


def test_a_conversation_goes_on_with_another_team(machine):  # noqa: F811
    gpu = machine(gpu=TWO).start_owner()
    first_socket, second_socket = gpu.place / "kvxfer.sock", gpu.place / "kvxfer-2.sock"
    runtime = gpu.runtime(more=[*MORE, "--kvxfer-socket", first_socket])
    link = Kvxfer(first_socket)
    whole, producer = exported(link, runtime)
    runtime.stop()
    runtime = gpu.runtime(more=[*MORE, "--kvxfer-socket", second_socket])
    offering = Kvxfer(second_socket)  # the offer ends with the connection
    reply = offer(offering, producer)
    assert 1 not in reply, reply
    again = greedy(runtime, LONG_PROMPT, inputs=[bytes_input("kv_import", HANDLE)])
    assert again.usage.get(4, 0) == 64 and again.tokens[0] == whole.tokens[0]


def test_too_few_gpus_and_no_nccl_say_what_is_missing(machine):  # noqa: F811
    gpu = machine(gpu=TWO, many='device = "cuda"\nranks = 2\nstages = 2\n').start_owner()
    wait_for(lambda: "many:" in gpu.owner_said() and len(gpu.record(gpu.owner.pid, "alloc")) == 4)
    assert "finding GPU 2" in gpu.owner_said()
    assert gpu.owner_holds() == sum(gpu.record(gpu.owner.pid, "alloc")[:2]), "what was loaded of the other is freed again"
    with open(gpu.place / "said", "wb") as said:
        ended = subprocess.run([BIN / "afm-runtime", "--model", "gpu", "--socket", gpu.place / "runtime.sock", "--owner-socket", gpu.door("gpu"),
                                "--cuda-driver", FAKE_CUDA, "--gpu-kernels", gpu.place / "kernels", "--nccl", "libnowhere-nccl.so.2"], stderr=said, timeout=LIMIT_S, env=gpu.environment)
    assert ended.returncode != 0 and "no NCCL on this machine: libnowhere-nccl.so.2" in (gpu.place / "said").read_text()
