"""Ten recycles in a row under load: no request is lost, nothing leaks, the weights are read once, and each is over within a second. `./dev bench recycle --count 1000 --load` is the
same, longer."""
import os

import pytest

import recycle_load
import support

COUNT = int(os.environ.get("TIE_RECYCLES", "10"))


@pytest.fixture(scope="module")
def outcome(place):
    return recycle_load.recycles(place, COUNT, clients=4)


def test_no_request_is_lost(outcome):
    _, outcomes, _ = outcome
    assert outcomes["complete"] > 0 and recycle_load.lost(outcomes) == 0, outcomes


def test_nothing_leaks(outcome):
    assert outcome[2] == []


def test_the_weights_are_read_from_their_file_once(outcome, place):
    log = (place.run_dir / "log" / "tie-model-owner.log").read_text()
    assert log.count(f"{support.MODEL} ready in") == 1, log
