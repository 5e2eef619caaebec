"""The operator's HTTP/JSON face of workload_servicesd on a whole node: fresh keys and dead keys under load, without one failed request."""
import concurrent.futures
import threading
import time

import httpx
import pytest
import support


@pytest.fixture(scope="module")
def node():
    support.need_node()
    with support.real_node() as place:
        yield place


@pytest.fixture(scope="module")
def face(node):
    transport = httpx.HTTPTransport(uds=str(node.run_dir / "wsd-operator/wsd-operator.sock"))
    with httpx.Client(transport=transport, base_url="http://wsd", timeout=30) as client:
        yield client


def keys(face):
    return face.get("/keys").json()["keys"]


def test_it_tells_what_the_node_holds(face):
    can = face.get("/capabilities").json()
    assert can["suites"] == ["xwing"] and can["evidence_kind"] == "software"
    (key,) = keys(face)
    assert key["published"] and len(key["key_id"]) == 64 and key["suite"] == "xwing"


def test_errors_are_json_with_the_listed_statuses(face):
    expected = [(face.get("/nothing"), 404), (face.post("/keys"), 400), (face.post("/generate_key", json={"suite": "rsa"}), 400),
                (face.post("/destroy", json={"key_id": "0" * 64}), 404), (face.post("/destroy", content=b"\xff"), 400),
                (face.post("/authorize", json={}), 403), (face.post("/decap", json={}), 403), (face.post("/destroy", content=b"x" * 5000), 400)]
    for answer, status in expected:
        assert answer.status_code == status, answer.text
        assert isinstance(answer.json()["error"], str)


def test_keys_change_and_die_under_load_without_one_failed_request(node, face):
    stop, statuses = threading.Event(), []

    def ask():
        body = {"model": node.model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2, "temperature": 0}
        while not stop.is_set():
            statuses.append(httpx.post(f"{node.url}/v1/chat/completions", json=body, timeout=60).status_code)

    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        running = [pool.submit(ask) for _ in range(3)]
        for _ in range(3):
            before = keys(face)
            made = face.post("/generate_key", json={"suite": "xwing"})
            assert made.status_code == 200 and made.json()["key_id"] not in [k["key_id"] for k in before]
            time.sleep(0.5)
            assert face.post("/destroy", json={"key_id": before[-1]["key_id"]}).status_code == 200
            time.sleep(0.3)
        stop.set()
        for one in running:
            one.result()
    assert len(statuses) > 5
    assert set(statuses) == {200}, statuses
