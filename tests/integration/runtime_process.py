"""Starts afm-runtime (and the model owner) for tests, and speaks to it through the public tritonclient. Small on purpose: the protobuf messages
inside BYTES tensors are written and read here by hand, so that the tests do not share the product's code."""
import os
import pathlib
import queue
import signal
import struct
import subprocess
import tempfile
import time

import numpy as np
import tritonclient.grpc as triton
from protobuf_by_hand import fields, varint

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("TIE_BUILD_DIR", ROOT / "build/release")) / "bin"
START_LIMIT_S = 60

FIELDS = {"temperature": (1, "f"), "top_k": (2, "v"), "top_p": (3, "f"), "min_p": (4, "f"), "repetition_penalty": (5, "f"),
          "presence_penalty": (6, "f"), "frequency_penalty": (7, "f"), "seed": (9, "v"), "n": (10, "v"), "max_tokens": (11, "v"), "min_tokens": (12, "v"),
          "stop": (13, "s"), "stop_token_ids": (14, "v"), "ignore_eos": (15, "v"), "logprobs": (16, "v"), "top_logprobs": (17, "v"),
          "include_stop_in_output": (18, "v"), "echo": (19, "v")}


def sampling(**params):
    """A serialized SamplingParams. Lists are repeated fields; logit_bias is a dict."""
    out = b""
    for token, bias in params.pop("logit_bias", {}).items():
        entry = b"\x08" + varint(token) + b"\x15" + struct.pack("<f", bias)
        out += varint(8 << 3 | 2) + varint(len(entry)) + entry
    for name, value in params.items():
        number, kind = FIELDS[name]
        for one in value if isinstance(value, list) else [value]:
            if kind == "f":
                out += varint(number << 3 | 5) + struct.pack("<f", one)
            elif kind == "v":
                out += varint(number << 3) + varint(int(one))
            else:
                raw = one.encode()
                out += varint(number << 3 | 2) + varint(len(raw)) + raw
    return out


def int32_input(name, values):
    tensor = triton.InferInput(name, [len(values)], "INT32")
    tensor.set_data_from_numpy(np.array(values, dtype=np.int32))
    return tensor


def bytes_input(name, value):
    tensor = triton.InferInput(name, [1], "BYTES")
    tensor.set_data_from_numpy(np.array([value], dtype=np.object_))
    return tensor


class Answer:
    """All responses to one request."""

    def __init__(self):
        self.tokens, self.finish, self.logprobs, self.trim = {}, {}, {}, {}
        self.prompt_logprobs = []
        self.usage, self.error, self.responses = None, None, 0

    def add(self, result):
        self.responses += 1
        sample = int(result.as_numpy("sample_index")[0])
        self.tokens.setdefault(sample, []).extend(result.as_numpy("token_ids").tolist())
        finish = result.as_numpy("finish")[0].decode()
        if finish:
            assert sample not in self.finish
            self.finish[sample] = finish
            self.trim[sample] = int(result.as_numpy("stop_trim_bytes")[0])
        for name, into in [("logprobs", self.logprobs.setdefault(sample, [])), ("prompt_logprobs", self.prompt_logprobs)]:
            logprobs = result.as_numpy(name)
            for _, entry in fields(logprobs[0]) if logprobs is not None else []:
                entry = list(fields(entry))
                top = [tuple(v for _, v in fields(t)) for n, t in entry if n == 3]
                into.append((dict(entry).get(1, 0), dict(entry).get(2, 0.0), top))
        final = result.get_response().parameters["triton_final_response"].bool_param
        if final:
            self.usage = dict(fields(result.as_numpy("usage")[0]))
        return final


class Stream:
    """One ModelStreamInfer call."""

    def __init__(self, runtime):
        self.client = triton.InferenceServerClient("unix://" + str(runtime.socket))
        self.model = runtime.model
        self.events = queue.Queue()
        self.client.start_stream(lambda result, error: self.events.put((result, error)))

    def send(self, prompt, request_id="", grammar=None, parameters=None, inputs=(), model=None, **params):
        tensors = [int32_input("token_ids", prompt), *inputs]
        if params:
            tensors.append(bytes_input("sampling", sampling(**params)))
        if grammar is not None:
            tensors.append(bytes_input("grammar", grammar))
        self.client.async_stream_infer(model or self.model, tensors, request_id=request_id, parameters=parameters)

    def receive(self, timeout=60):
        return self.events.get(timeout=timeout)

    def ask(self, prompt, **params):
        """Sends one request and returns its whole Answer."""
        self.send(prompt, **params)
        return self.collect()

    def collect(self):
        answer = Answer()
        while True:
            result, error = self.receive()
            if error is not None:
                answer.error = error.message()
                return answer
            if answer.add(result):
                return answer

    def collect_many(self, ids):
        answers = {i: Answer() for i in ids}
        open_ids = set(ids)
        while open_ids:
            result, error = self.receive()
            assert error is None, error
            if answers[result.get_response().id].add(result):
                open_ids.remove(result.get_response().id)
        return answers

    def close(self, cancel=False):
        self.client.stop_stream(cancel_requests=cancel)
        self.client.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close(cancel=True)


class Runtime:
    def __init__(self, arguments, model="tiny", log=None):
        self.model = model
        self.folder = tempfile.TemporaryDirectory(prefix="tie-runtime-")
        self.socket = pathlib.Path(self.folder.name) / "runtime.sock"
        self.process = subprocess.Popen([BIN / "afm-runtime", "--model", model, "--socket", self.socket, *map(str, arguments)], stderr=log)

    def wait_ready(self):
        limit = time.monotonic() + START_LIMIT_S
        with triton.InferenceServerClient("unix://" + str(self.socket)) as client:
            while time.monotonic() < limit:
                assert self.process.poll() is None, "afm-runtime ended during its start"
                try:
                    if client.is_model_ready(self.model):
                        return self
                except triton.InferenceServerException:
                    pass
                time.sleep(0.02)
        raise TimeoutError("afm-runtime is not ready")

    def stream(self):
        return Stream(self)

    def client(self):
        return triton.InferenceServerClient("unix://" + str(self.socket))

    def terminate(self):
        self.process.send_signal(signal.SIGTERM)

    def stop(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.folder.cleanup()


def pack(gguf, folder, context=512):
    """Packs `gguf` (or "tiny") into the two images that afm-runtime takes; returns the flags."""
    weights, tokenizer = pathlib.Path(folder) / "weights.img", pathlib.Path(folder) / "tokenizer.img"
    subprocess.run([BIN / "pack_model_images", gguf, weights, tokenizer, "--context", str(context)], check=True)
    return ["--weights", weights, "--tokenizer", tokenizer]
