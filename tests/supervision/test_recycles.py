"""Ten recycles in a row under load: no request is lost, nothing leaks, the weights are read once, and each is over within a second. `./dev bench recycle --count 1000 --load` is the
same, longer."""
import io
import os
import pathlib
import sys

import pytest

import recycle_load
import support

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench"))
import run as bench  # noqa: E402

COUNT = int(os.environ.get("TIE_RECYCLES", "10"))


@pytest.fixture(scope="module")
def outcome(place):
    heard = []
    result = recycle_load.recycles(place, COUNT, clients=4, progress=lambda *one: heard.append(one))
    assert heard == [(i + 1, COUNT, ms) for i, ms in enumerate(result[0])], "one line of progress can come of each"
    return result


def test_no_request_is_lost(outcome):
    _, outcomes, _ = outcome
    assert outcomes["complete"] > 0 and recycle_load.lost(outcomes) == 0, outcomes


def test_nothing_leaks(outcome):
    assert outcome[2] == []


def test_the_weights_are_read_from_their_file_once(outcome, place):
    log = (place.run_dir / "log" / "tie-model-owner.log").read_text()
    assert log.count(f"{support.MODEL} ready in") == 1, log


def test_a_long_run_says_how_far_it_is_but_not_at_every_recycle():
    out, now = io.StringIO(), [100.0]
    progress = bench.Progress("recycle", every_s=10, out=out, clock=lambda: now[0])
    for done in range(1, 31):
        now[0] += 1
        progress(done, 30, 250.4)
    assert out.getvalue().splitlines() == [f"recycle {n} of 30, {n} s; the last took 250 ms" for n in (1, 11, 21, 30)]
