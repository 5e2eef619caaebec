"""The request path with every real process of the node: cloudboardd, a prewarmed cb_jobhelper and tie-cloud-app for each request, the key
daemons and the runtime. gRPC is spoken here by grpcio with hand-written messages, so that the product's own code is on one side only."""
import concurrent.futures
import os
import pathlib
import signal
import socket
import sys
import time

import grpc
import httpx
import pytest
from protobuf_by_hand import field, fields

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
import h2_frames  # noqa: E402
import support  # noqa: E402

INVOKE = "/tie.v1.CloudBoard/InvokeWorkload"
LOAD = "/tie.v1.CloudBoard/WatchLoadLevel"
PER_REQUEST = ("cb_jobhelper", "tie-cloud-app")


@pytest.fixture(scope="module")
def node():
    support.need_node()
    with support.real_node() as place:
        yield place


def body(node, text="Tell me about foxes.", **more):
    return {"model": node.model, "messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 4} | more


def ask(node, port=None, **more):
    return httpx.post(f"http://127.0.0.1:{port or node.proxy_port}/v1/chat/completions", json=body(node, **more), timeout=60)


def processes(node, name):
    return set(node.processes(name))


def wait_until(condition, seconds=10):
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        if condition():
            return True
        time.sleep(0.02)
    return False


def in_flight(channel):
    stream = channel.unary_stream(LOAD)(b"", timeout=5)
    level = dict(fields(next(stream)))
    stream.cancel()
    return level.get(2, 0)


SETUP = field(1, b"\x08\x01")


def invoke(channel, messages):
    """(status, tie-error, answers) of one call."""
    call = channel.stream_stream(INVOKE)(iter(messages), timeout=20)
    answers = []
    try:
        for answer in call:
            answers.append(answer)
    except grpc.RpcError:
        pass
    return call.code(), dict(call.trailing_metadata()).get("tie-error"), answers


@pytest.fixture
def channel(node):
    with grpc.insecure_channel(node.node) as made:
        yield made


def record_requests(node, count):
    """The client's messages of `count` real requests, as they passed the wire."""
    with h2_frames.Recorder(int(node.node.split(":")[1])) as recorder:
        with node.another_proxy(f"127.0.0.1:{recorder.port}") as port:
            for _ in range(count):
                assert wait_until(lambda: ask(node, port).status_code == 200, 5)  # just after a kill it may be told to try again
    out = []
    for to_node, _ in recorder.connections:
        for data in h2_frames.data_by_stream(bytes(to_node)).values():
            messages = list(h2_frames.grpc_messages(data))
            if len(messages) > 2:
                out.append(messages)
    assert len(out) >= count  # a refused attempt was tried again
    return out[-count:]


def test_two_requests_share_no_process(node):
    assert wait_until(lambda: all(len(processes(node, name)) >= 3 for name in PER_REQUEST))
    used = {name: set() for name in PER_REQUEST}
    for _ in range(6):
        before = {name: processes(node, name) for name in PER_REQUEST}
        assert ask(node).status_code == 200
        assert wait_until(lambda: all(len(before[n] - processes(node, n)) >= 1 for n in PER_REQUEST)), "the pair has exited"
        for name in PER_REQUEST:
            gone = before[name] - processes(node, name)
            assert len(gone) == 1, f"one request ends exactly one {name}"
            assert not gone & used[name]
            used[name] |= gone
    assert all(len(pids) == 6 for pids in used.values())


def test_load_beyond_the_pool_is_served(node, channel):
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        statuses = list(pool.map(lambda i: ask(node, text=f"Count to {i}.").status_code, range(16)))
    assert statuses.count(200) >= 12, statuses
    assert set(statuses) <= {200, 429, 503}, statuses
    assert wait_until(lambda: in_flight(channel) == 0), "every slot comes back"


def test_a_replay_is_refused_also_after_kill_9(node, channel):
    first, second = record_requests(node, 2)
    status, name, answers = invoke(channel, first)
    assert (status, name) == (grpc.StatusCode.ALREADY_EXISTS, "REPLAYED")
    (daemon,) = processes(node, "cloudboardd")
    os.kill(daemon, signal.SIGKILL)
    assert wait_until(lambda: processes(node, "cloudboardd") - {daemon}, 10)
    assert wait_until(lambda: ask(node).status_code == 200, 20), "the node heals"
    with grpc.insecure_channel(node.node) as fresh:
        for messages in (first, second):
            status, name, _ = invoke(fresh, messages)
            assert (status, name) == (grpc.StatusCode.ALREADY_EXISTS, "REPLAYED")


def test_a_changed_copy_of_a_request_is_the_uniform_refusal(node, channel):
    """Another fingerprint, so not a replay to cloudboardd; but nothing opens under it."""
    (messages,) = record_requests(node, 1)
    at = next(i for i, m in enumerate(messages) if dict(fields(m)).get(2))
    changed = bytearray(messages[at])
    changed[len(changed) // 2] ^= 1
    status, name, answers = invoke(channel, messages[:at] + [bytes(changed)] + messages[at + 1:])
    assert name in ("UNAUTHENTICATED", "BAD_REQUEST", "KEY_UNKNOWN_OR_EXPIRED"), (status, name)
    assert not any(dict(fields(a)).get(3) for a in answers), "nothing sealed comes back"


@pytest.mark.parametrize("messages", [[], [b""], [field(3, b"")], [SETUP, SETUP], [SETUP, field(3, b"\x0a\x01x")], [SETUP, field(2, b""), field(2, b"")], [SETUP]])
def test_any_other_order_is_refused(channel, messages):
    status, name, _ = invoke(channel, messages)
    assert status in (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND), (status, name)
    assert name


def test_a_client_that_goes_away_frees_its_place_and_its_processes(node, channel):
    before = {name: processes(node, name) for name in PER_REQUEST}
    with httpx.stream("POST", f"{node.url}/v1/chat/completions", json=body(node, text="Tell a very long story.", stream=True, max_tokens=4000), timeout=60) as answer:
        lines = answer.iter_lines()
        for _ in range(8):
            next(lines)
        assert in_flight(channel) == 1
    assert wait_until(lambda: in_flight(channel) == 0, 5)
    for name in PER_REQUEST:
        assert wait_until(lambda: len(before[name] - processes(node, name)) == 1, 5), name


def test_rubbish_and_a_thousand_connections_leave_requests_alone(node):
    port = int(node.node.split(":")[1])
    sockets = []
    try:
        for i in range(1100):
            s = socket.create_connection(("127.0.0.1", port), 5)
            sockets.append(s)
            if i % 10 == 0:
                try:
                    s.send(os.urandom(64) if i % 20 else b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\xff")
                except OSError:
                    pass
        assert ask(node).status_code == 200, "who is connected already is served"
    finally:
        for s in sockets:
            s.close()
    assert wait_until(lambda: ask(node).status_code == 200)
    with node.another_proxy() as fresh:
        assert wait_until(lambda: ask(node, fresh).status_code == 200)


def test_first_answer_through_a_warm_pair_is_quick(node):
    assert wait_until(lambda: len(processes(node, "tie-cloud-app")) >= 3)
    times = []
    for _ in range(5):
        start = time.monotonic()
        assert ask(node, max_tokens=1).status_code == 200
        times.append(time.monotonic() - start)
        time.sleep(0.3)
    assert min(times) < 2, times
