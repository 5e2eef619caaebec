"""One model on two rank processes: tie-model-owner packs an image for each, afm-runtime starts the second rank itself."""
import os
import pathlib
import shutil
import signal
import subprocess
import time

import pytest

from runtime_process import BIN, ROOT, Runtime, pack

MODEL = pathlib.Path(os.environ.get("TIE_TEST_MODEL", ROOT / ".cache/models/smollm2-135m-instruct.gguf"))
PROMPT = [504, 3575, 282, 4649, 314]  # "The capital of France is" or near it: what matters is that it is text
ANSWER = 12
MOVED = 1.0  # of log probabilities; half and single precision of attention differ by 0.5 at most and 0.1 in the mean


def children(pid):
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1]) == pid:
                    found.append(int(entry.name))
            except (OSError, IndexError):
                continue
    return found


@pytest.fixture(scope="module")
def owner(tmp_path_factory):
    if not MODEL.exists():
        pytest.skip(f"no SmolLM2 model file at {MODEL}: ./dev model")
    place = tmp_path_factory.mktemp("ranks")
    for name, record in {"one": "", "two": "ranks = 2\n", "staged": "stages = 2\n"}.items():
        folder = place / "models" / name
        folder.mkdir(parents=True)
        os.symlink(MODEL, folder / "weights.gguf")
        (folder / "model.toml").write_text(record)
        if name == "one":
            pack(str(MODEL), place)
        shutil.copy(place / "tokenizer.img", folder / "tokenizer.img")
    process = subprocess.Popen([BIN / "tie-model-owner", "--socket", place / "owner.sock", "--model-sockets", place / "weights", "--assets", place, "--watch-ms", "0"])
    yield place / "weights"
    assert process.poll() is None, "tie-model-owner died during the tests"
    process.terminate()
    process.wait()


def start(owner, model):
    return Runtime(["--owner-socket", owner / model / "weights.sock", "--threads", 2, "--kv-mib", 32, "--max-rows", 64, "--max-batch", 4], model=model).wait_ready()


def greedy(runtime):
    """[(token, its log probability, the likeliest)]"""
    with runtime.stream() as stream:
        answer = stream.ask(PROMPT, temperature=0.0, max_tokens=ANSWER, ignore_eos=True, logprobs=1, top_logprobs=8)
    assert answer.error is None, answer.error
    assert [token for token, _, _ in answer.logprobs[0]] == answer.tokens[0]
    return answer.logprobs[0]


def assert_agree(ranked, alone):
    """The same tokens until several are about as likely: ranks add up in another order, which moves activations across the steps of their 8-bit codes."""
    for (token, logprob, _), (expected, expected_logprob, top) in zip(ranked, alone):
        likely = dict(entry for entry in top if len(entry) == 2)
        if token != expected:
            assert token in likely and expected_logprob - likely[token] < MOVED, (token, expected, likely)
            return
        assert abs(logprob - expected_logprob) < MOVED


@pytest.fixture(scope="module")
def alone(owner):
    runtime = start(owner, "one")
    try:
        assert children(runtime.process.pid) == []
        yield greedy(runtime)
    finally:
        runtime.stop()


@pytest.mark.parametrize("model", ["two", "staged"])
def test_two_processes_answer_like_one(owner, alone, model):
    runtime = start(owner, model)
    try:
        assert len(children(runtime.process.pid)) == 1
        first = greedy(runtime)
        if model == "staged":
            assert first == alone, "stages change no sum"
        assert_agree(first, alone)
        assert greedy(runtime) == first, "the same again from the same team"
        runtime.terminate()
        assert runtime.process.wait(timeout=20) == 0
    finally:
        runtime.stop()


def test_a_rank_that_dies_ends_the_runtime_and_the_next_one_serves(owner, alone):
    runtime = start(owner, "two")
    try:
        (rank,) = children(runtime.process.pid)
        with runtime.stream() as stream:
            stream.send(PROMPT, temperature=0.0, max_tokens=2000, ignore_eos=True)
            result, error = stream.receive()
            assert error is None
            os.kill(rank, signal.SIGKILL)
            while error is None:
                result, error = stream.receive(timeout=20)
                if result is not None and result.as_numpy("finish")[0]:
                    break
            assert error is not None, "the request must not seem complete"
        assert runtime.process.wait(timeout=20) != 0, "the container's init recycles on this"
    finally:
        runtime.stop()
    runtime = start(owner, "two")
    try:
        assert_agree(greedy(runtime), alone)
    finally:
        runtime.stop()


def test_the_ranks_end_with_their_runtime(owner):
    runtime = start(owner, "two")
    (rank,) = children(runtime.process.pid)
    runtime.process.kill()
    runtime.process.wait()
    limit = time.monotonic() + 10
    while pathlib.Path(f"/proc/{rank}").exists() and time.monotonic() < limit:
        time.sleep(0.02)
    gone = not pathlib.Path(f"/proc/{rank}").exists() or "Z" in pathlib.Path(f"/proc/{rank}/stat").read_text().rsplit(")", 1)[1]
    runtime.stop()
    assert gone
