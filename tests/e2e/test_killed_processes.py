"""Killing any process of a request breaks that answer, visibly and soon; the node heals by itself."""
import contextlib
import os
import signal
import time

import openai
import pytest

HEARD_WITHIN_S = 2
HEALED_WITHIN_S = 30


def ask(client, model, **more):
    return client.chat.completions.create(model=model, messages=[{"role": "user", "content": "Count from one to five hundred in words."}], temperature=0, **more)


@pytest.mark.parametrize("program", ["cb_jobhelper", "tie-cloud-app", "afm-runtime"])
def test_a_kill_in_mid_answer_is_heard_and_healed(client, node, program):
    if not node.run_dir:
        pytest.skip("the node's run directory is not known: TIE_E2E_RUN_DIR")
    before = node.processes(program)
    assert before
    stream = ask(client, node.model, stream=True, max_tokens=1500, extra_body={"ignore_eos": True})
    pieces = [next(iter(stream)) for _ in range(5)]
    assert pieces
    for pid in node.processes(program):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    killed = time.monotonic()
    with pytest.raises(openai.APIError) as raised:
        for _ in stream:
            pass
    assert time.monotonic() - killed < HEARD_WITHIN_S
    assert "not complete" in raised.value.message

    while True:
        with contextlib.suppress(openai.APIStatusError):
            assert ask(client, node.model, max_tokens=4).choices[0].message.content
            break
        assert time.monotonic() - killed < HEALED_WITHIN_S
        time.sleep(0.1)
    assert not set(node.processes(program)) & set(before)


def settled_processes(node, program, quiet_s=0.5):
    """The processes of a program, once none has come or gone for a while."""
    limit, since, now = time.monotonic() + 10, time.monotonic(), set(node.processes(program))
    while time.monotonic() - since < quiet_s:
        assert time.monotonic() < limit, "processes keep coming and going"
        time.sleep(0.05)
        if (then := set(node.processes(program))) != now:
            since, now = time.monotonic(), then
    return now


def test_two_requests_share_no_process(client, node):
    if not node.run_dir:
        pytest.skip("the node's run directory is not known: TIE_E2E_RUN_DIR")
    seen = []
    for _ in range(3):
        before = settled_processes(node, "tie-cloud-app")  # an earlier request's may still be putting its turn away
        ask(client, node.model, max_tokens=2)
        limit = time.monotonic() + 5
        while not (gone := before - set(node.processes("tie-cloud-app"))) and time.monotonic() < limit:
            time.sleep(0.02)
        assert len(gone) == 1
        seen += gone
    assert len(set(seen)) == 3
