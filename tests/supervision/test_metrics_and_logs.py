"""Whatever users send, in whatever field, right or wrong: none of it is in a metric, a log line, the status or the node's folder afterwards."""
import base64
import json
import re
import time
import urllib.error
import urllib.request

import pytest

import support
from test_faults import node_words, wait_ready

CANARY = "Xq7vCanaryZw91"


def places_of_a_canary():
    chat = lambda **more: {"model": support.MODEL, "max_tokens": 4, "messages": [{"role": "user", "content": "hi"}], **more}  # noqa: E731
    tool = {"type": "function", "function": {"name": CANARY, "description": CANARY, "parameters": {"type": "object", "properties": {CANARY: {"type": "string"}}}}}
    yield chat(messages=[{"role": "user", "content": CANARY}]), {}
    yield chat(messages=[{"role": "system", "content": CANARY}, {"role": "user", "content": CANARY * 50}]), {}
    yield chat(messages=[{"role": CANARY, "content": CANARY}]), {}
    yield chat(messages=[{"role": "user", "name": CANARY, "content": [{"type": "text", "text": CANARY}]}]), {}
    yield chat(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(CANARY.encode()).decode()}}]}]), {}
    yield chat(messages=[{"role": "user", "content": "hi"}, {"role": "assistant", "content": None, "tool_calls": [{"id": CANARY, "type": "function", "function": {"name": CANARY, "arguments": CANARY}}]}, {"role": "tool", "tool_call_id": CANARY, "content": CANARY}]), {}
    yield chat(tools=[tool]), {}
    yield chat(tools=[tool], tool_choice={"type": "function", "function": {"name": CANARY}}, max_tokens=24), {}
    yield chat(response_format={"type": "json_schema", "json_schema": {"name": CANARY, "schema": {"type": "object", "properties": {CANARY: {"const": CANARY}}, "required": [CANARY]}}}, max_tokens=40), {}
    yield chat(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": CANARY}}}), {}
    yield chat(guided_regex=CANARY + "("), {}
    yield chat(guided_choice=[CANARY]), {}
    yield chat(guided_grammar=CANARY), {}
    yield chat(stop=[CANARY]), {}
    yield chat(user=CANARY, metadata={CANARY: CANARY}), {}
    yield chat(chat_template_kwargs={CANARY: CANARY}), {}
    yield chat(**{CANARY: CANARY}), {}
    yield chat(model=CANARY), {}
    yield chat(), {"x-tie-prompt-id": CANARY}
    yield chat(), {"Authorization": "Bearer " + CANARY}
    yield chat(messages=[{"role": "user", "content": (CANARY + " ") * 4000}]), {}  # beyond the context
    yield chat(logit_bias={CANARY: 1}), {}
    yield {"model": support.MODEL, "prompt": CANARY, "max_tokens": 3, "echo": True}, {}
    yield CANARY, {}  # not JSON


def send(place, body, headers):
    path = "/v1/completions" if isinstance(body, dict) and "prompt" in body else "/v1/chat/completions"
    data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    request = urllib.request.Request(place.url + path, data, {"Content-Type": "application/json", **headers})
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            response.read()
            return response.status
    except urllib.error.HTTPError as error:
        error.read()
        return error.code


FORMS = [CANARY, CANARY.lower(), CANARY.encode().hex(), base64.b64encode(CANARY.encode()).decode()[:12], base64.b64encode(b"x" + CANARY.encode()).decode()[4:16]]


def found(text):
    return [form for form in FORMS if form in text]


@pytest.fixture(scope="module")
def statuses(place):
    wait_ready(place)
    return [send(place, body, headers) for body, headers in places_of_a_canary()]


def test_right_and_wrong_requests_were_among_them(statuses):
    assert 200 in statuses and 400 in statuses and 404 in statuses, statuses
    assert not [code for code in statuses if code >= 500], statuses


def test_no_metric_holds_any_of_it(place, statuses):
    metrics = node_words(place, "metrics")
    assert metrics.returncode == 0, metrics.stderr
    assert found(metrics.stdout) == []
    # And the page is what Prometheus reads.
    samples = [line for line in metrics.stdout.splitlines() if not line.startswith("#")]
    assert 'tie_node_state{state="ready"} 1' in samples and "tie_requests_in_flight 0" in samples
    for line in samples:
        assert re.fullmatch(r'tie_[a-z_]+(\{[a-z]+="[^"]*"(,[a-z]+="[^"]*")*\})? [0-9.]+', line), line


def test_the_metrics_count_what_was_answered(place, statuses):
    def completed():
        return int(re.search(r"^tie_requests_completed_total (\d+)$", node_words(place, "metrics").stdout, re.M)[1])

    deadline = time.monotonic() + 15  # cloudboardd is asked every five seconds
    while completed() < statuses.count(200) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert completed() >= statuses.count(200)
    assert "tie_requests_failed_total 0\n" in node_words(place, "metrics").stdout


def test_no_log_line_status_or_file_of_the_node_holds_any_of_it(place, statuses):
    logs = sorted((place.run_dir / "log").iterdir())
    assert any(log.stat().st_size > 0 for log in logs)
    for file in [f for f in place.run_dir.rglob("*") if f.is_file() and "stage/prefix" not in str(f) and "stage/pool" not in str(f) and "stage/libraries" not in str(f)]:
        assert found(file.read_bytes().decode("latin-1")) == [], file
    for words in [("status",)]:
        assert found(node_words(place, *words).stdout) == []


def test_a_scraper_gets_the_same_page(place, statuses):
    port = support.free_port()
    command = [str(support.tie_program()), "node", "--socket", f"{place.run_dir}/controller/controller.sock", "metrics", "--listen", f"127.0.0.1:{port}"]
    with support.running(command, port):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
            text = response.read().decode()
            assert response.headers["Content-Type"].startswith("text/plain")
    assert "tie_recycles_total" in text
