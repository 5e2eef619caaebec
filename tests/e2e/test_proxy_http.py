"""The proxy's HTTP face: rebinding, origins, keys, hostile bodies. Against the pretended node: nothing here needs a model."""
import json
import pathlib
import resource
import socket
import subprocess

import httpx
import pytest

import openai_schemas
import support

BODY = {"model": "test-model", "messages": [{"role": "user", "content": "one two three"}]}


@pytest.mark.parametrize("host", ["evil.example", "evil.example:{port}", "127.0.0.1", "localhost:1", "localhost.evil.example:{port}", "169.254.169.254:{port}"])
def test_foreign_hosts_are_refused(fake, host):
    for method, path in (("GET", "/v1/models"), ("POST", "/v1/chat/completions"), ("GET", "/healthz"), ("GET", "/")):
        got = httpx.request(method, fake.url + path, headers={"Host": host.format(port=fake.proxy_port)}, json=BODY if method == "POST" else None)
        assert got.status_code == 403
        openai_schemas.check("ErrorResponse", got.json())
        assert "x-tie-verification" in got.headers


@pytest.mark.parametrize("host", ["localhost:{port}", "127.0.0.1:{port}", "[::1]:{port}"])
def test_own_hosts_are_let_in(fake, host):
    assert httpx.get(fake.url + "/v1/models", headers={"Host": host.format(port=fake.proxy_port)}).status_code == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://localhost", "http://localhost:3000", "chrome-extension://abc"])
def test_foreign_origins_are_refused(fake, origin):
    got = httpx.post(fake.url + "/v1/chat/completions", headers={"Origin": origin}, json=BODY)
    assert got.status_code == 403
    assert "access-control-allow-origin" not in got.headers
    preflight = httpx.options(fake.url + "/v1/chat/completions", headers={"Origin": origin, "Access-Control-Request-Method": "POST"})
    assert preflight.status_code == 403


def test_the_key_is_asked_for(fake):
    with fake.another_proxy(environment={"TIE_API_KEY": "sesame"}) as port:
        url = f"http://127.0.0.1:{port}/v1/models"
        assert httpx.get(url).status_code == 401
        assert httpx.get(url, headers={"Authorization": "Bearer sesam"}).status_code == 401
        assert httpx.get(url, headers={"Authorization": "Bearer sesame"}).status_code == 200
        refused = httpx.get(url, headers={"Authorization": "Bearer x"}).json()
        openai_schemas.check("ErrorResponse", refused)
        assert refused["error"]["code"] == "invalid_api_key"


def test_every_reply_says_how_the_node_was_verified(fake):
    for path in ("/v1/models", "/v1/models/none", "/nowhere", "/healthz", "/"):
        got = httpx.get(fake.url + path)
        kind, release, key = got.headers["x-tie-verification"].split("; ")
        assert kind == "unattested" and len(release) == len("release=") + 12 and len(key) == len("key=") + 12


def test_schemas_of_every_success(fake):
    openai_schemas.check("ListModelsResponse", httpx.get(fake.url + "/v1/models").json())
    openai_schemas.check("Model", httpx.get(fake.url + "/v1/models/test-model").json())
    for more in ({}, {"n": 3}, {"logprobs": True, "top_logprobs": 2}):
        openai_schemas.check("CreateChatCompletionResponse", httpx.post(fake.url + "/v1/chat/completions", json=BODY | more).json())
        streamed = httpx.post(fake.url + "/v1/chat/completions", json=BODY | more | {"stream": True, "stream_options": {"include_usage": True}})
        lines = [line[6:] for line in streamed.text.splitlines() if line.startswith("data: ")]
        assert lines[-1] == "[DONE]"
        for line in lines[:-1]:
            openai_schemas.check("CreateChatCompletionStreamResponse", json.loads(line))
    prompt = {"model": "test-model", "prompt": "a b c", "max_tokens": 2}
    for more in ({}, {"logprobs": 2}, {"logprobs": 0}):
        openai_schemas.check("CreateCompletionResponse", httpx.post(fake.url + "/v1/completions", json=prompt | more).json())
        streamed = httpx.post(fake.url + "/v1/completions", json=prompt | more | {"stream": True})
        for line in streamed.text.splitlines():
            if line.startswith("data: {"):
                chunk = json.loads(line[6:])
                for choice in chunk["choices"]:
                    choice["finish_reason"] = choice["finish_reason"] or "stop"  # null until the end, as OpenAI sends it; its schema has no word for that
                openai_schemas.check("CreateCompletionResponse", chunk)


def test_torture_bodies_are_400_and_harm_nobody(fake):
    suite = support.first_existing(support.SHARED / "json_parsing/test_parsing", support.ROOT / "tests/data/json_parsing/test_parsing")
    with httpx.Client() as http:
        for path in sorted(pathlib.Path(suite).iterdir()):
            got = http.post(fake.url + "/v1/chat/completions", content=path.read_bytes(), headers={"Content-Type": "application/json"})
            assert got.status_code == 400, path.name
            openai_schemas.check("ErrorResponse", got.json())
        assert http.post(fake.url + "/v1/chat/completions", json=BODY).status_code == 200


def test_a_huge_body_gets_its_answer(fake):
    got = httpx.post(fake.url + "/v1/chat/completions", content=b" " * (11 << 20), headers={"Content-Type": "application/json"}, timeout=20)
    assert got.status_code == 413
    openai_schemas.check("ErrorResponse", got.json())


def raw(port, data):
    with socket.create_connection(("127.0.0.1", port), 5) as s:
        s.sendall(data)
        s.shutdown(socket.SHUT_WR)
        s.settimeout(20)
        out = b""
        try:
            while piece := s.recv(65536):
                out += piece
        except ConnectionError:
            pass
        return out


@pytest.mark.parametrize("data", [
    b"", b"\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 20000 + b"\r\n", b"GET /" + b"a" * 100000 + b" HTTP/1.1\r\n\r\n",
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99999999999999999999\r\n\r\n",
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: -1\r\n\r\n",
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\nzzzz\r\n\r\n",
    b"GET /%00%ff%2e%2e/ HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
])
def test_hostile_http_harms_nobody(fake, data):
    answer = raw(fake.proxy_port, data)
    if answer.startswith(b"HTTP/1.1 400"):
        head, _, body = answer.partition(b"\r\n\r\n")
        assert b"connection: close" in head.lower()
        openai_schemas.check("ErrorResponse", json.loads(body))
    assert httpx.get(fake.url + "/healthz").status_code == 200


def with_open_files(hard):
    return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def test_a_small_limit_of_descriptors_is_no_hang(fake):
    """Idle connections take no more of a proxy's descriptors than leaves room to serve; with too few it says so and does not start."""
    port = support.free_port()
    command = [support.tie_program(), "proxy", "--listen", f"127.0.0.1:{port}", "--node", fake.node, "--policy", fake.policy]
    with support.running(command, port, preexec_fn=with_open_files(128)):
        held = [socket.create_connection(("127.0.0.1", port), 5) for _ in range(200)]
        try:
            assert httpx.get(f"http://127.0.0.1:{port}/healthz", timeout=15).status_code == 200
        finally:
            for s in held:
                s.close()
    few = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=30, preexec_fn=with_open_files(64))
    assert few.returncode == 1 and "needs 128 open files" in few.stderr and "may have 64" in few.stderr, few.stderr


def test_idle_connections_give_way_to_requests(fake):
    """However many hold a connection and say nothing, a request is served; those that waited longest are closed."""
    held = []
    try:
        for _ in range(400):
            held.append(socket.create_connection(("127.0.0.1", fake.proxy_port), 5))
        assert httpx.get(fake.url + "/healthz", timeout=30).status_code == 200
        held[0].settimeout(30)
        assert held[0].recv(64) == b""
    finally:
        for s in held:
            s.close()
    assert httpx.get(fake.url + "/healthz").status_code == 200
