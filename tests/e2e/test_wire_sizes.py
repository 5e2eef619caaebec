"""What the network can see: every sealed event and every request has one of a few sizes. Read off the socket by h2_frames.py."""
import concurrent.futures
import os
import random

import httpx

import h2_frames

EVENT_SEAL_BYTES = 16                 # the tag of each sealed chunk
REQUEST_HEADER_BYTES = 2 + 12         # the first chunk of a request carries AEAD id and base nonce
REQUESTS = int(os.environ.get("TIE_WIRE_REQUESTS", 210))  # `./dev test leaks`: 1,000

TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]}}}


def is_bucket(size):
    return size in (128, 256, 512, 1024, 2048) or (size > 0 and size % 4096 == 0)


def mixed_requests(model, count):
    rng = random.Random(11)
    words = "the of river stone and blue quickly 你好 emoji 👩‍🚀 paragraph ünïcode".split()
    for i in range(count):
        text = " ".join(rng.choice(words) for _ in range(rng.choice([1, 3, 17, 60])))
        body = {"model": model, "max_tokens": rng.choice([1, 2, 3, 6]), "temperature": rng.choice([0, 0.7, 1.5]), "stream": rng.random() < 0.6}
        if rng.random() < 0.3:
            yield "/v1/completions", body | {"prompt": text, "echo": rng.random() < 0.3} | ({"logprobs": rng.choice([0, 5])} if rng.random() < 0.4 else {})
            continue
        body["messages"] = [{"role": "user", "content": text}]
        if rng.random() < 0.3:
            body |= {"logprobs": True, "top_logprobs": rng.choice([0, 3, 20])}
        if rng.random() < 0.2:
            body["n"] = rng.choice([2, 3])
        if body["stream"] and rng.random() < 0.5:
            body["stream_options"] = {"include_usage": True}
        if i % 20 == 3:
            body |= {"tools": [TOOL], "tool_choice": "required", "max_tokens": 12}
        elif i % 20 == 11:
            body |= {"response_format": {"type": "json_object"}}
        if i % 10 == 4:  # a later turn of a conversation: turn keys inside, and often tokens from the cache
            said = "Count the lamps along the quay. " * 8
            body["messages"] = [{"role": "user", "content": said}]
            for turn in range(i % 3):
                body["messages"] += [{"role": "assistant", "content": "There are nine."}, {"role": "user", "content": f"And {turn} more?"}]
        if i % 25 == 7:
            body["messages"][0]["content"] = "word " * 9000  # refused by the app, inside the sealed stream
        if i % 25 == 13:
            body["logit_bias"] = {"99999999": 1}
        yield "/v1/chat/completions", body


def check_connection(to_node, from_node):
    """Returns (requests, events) seen on one recorded connection."""
    requests = events = 0
    answered = h2_frames.data_by_stream(bytes(from_node))
    for stream_id, data in h2_frames.data_by_stream(bytes(to_node)).items():
        chunks = list(h2_frames.sealed_chunks(h2_frames.grpc_messages(data), 3))
        if not chunks:
            continue  # a question for the attestation bundle
        plain = sum(len(sealed) - EVENT_SEAL_BYTES for sealed, _ in chunks) - REQUEST_HEADER_BYTES
        assert is_bucket(plain), f"a request of {plain} bytes"
        assert [final for _, final in chunks] == [False] * (len(chunks) - 1) + [True]
        requests += 1
        chunks = list(h2_frames.sealed_chunks(h2_frames.grpc_messages(answered.get(stream_id, b"")), 3))
        for sealed, final in chunks:
            assert is_bucket(len(sealed) - EVENT_SEAL_BYTES), f"an event of {len(sealed) - EVENT_SEAL_BYTES} bytes, final: {final}"
        assert chunks and chunks[-1][1], "an answer without its final chunk"
        events += len(chunks)
    return requests, events


def run_requests(place, port, count):
    statuses = []
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120) as http, concurrent.futures.ThreadPoolExecutor(8) as pool:
        for got in pool.map(lambda r: http.post(r[0], json=r[1]), mixed_requests(place.model, count)):
            statuses.append(got.status_code)
    return statuses


def test_every_sealed_size_on_the_wire_is_a_bucket(node):
    with h2_frames.Recorder(int(node.node.split(":")[1])) as recorder:
        with node.another_proxy(f"127.0.0.1:{recorder.port}") as port:
            statuses = run_requests(node, port, REQUESTS)
    assert statuses.count(200) > REQUESTS * 0.8 and statuses.count(400) >= 10, sorted(set(statuses))
    seen = [check_connection(*connection) for connection in recorder.connections]
    assert sum(requests for requests, _ in seen) >= REQUESTS - 10
    assert sum(events for _, events in seen) > 2 * REQUESTS


def test_the_reader_itself_notices_an_odd_size(fake):
    """The pretended node pads as it should; one byte taken away must be seen."""
    with h2_frames.Recorder(int(fake.node.split(":")[1])) as recorder:
        with fake.another_proxy(f"127.0.0.1:{recorder.port}") as port:
            assert set(run_requests(fake, port, 20)) <= {200}
    seen = [check_connection(*connection) for connection in recorder.connections]
    assert sum(events for _, events in seen) > 40
    assert not is_bucket(127) and not is_bucket(5000) and is_bucket(8192)
