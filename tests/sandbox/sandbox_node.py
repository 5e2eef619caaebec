"""A node made of stand-ins: the product's launcher, with the product's edge table and profiles, starting our own programs in the places of
the product's. Tests talk to them by length-prefixed frames over the product's sockets."""
import array
import json
import os
import pathlib
import shutil
import signal
import socket
import struct
import subprocess
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("TIE_BUILD_DIR", ROOT / "build/release"))
HELPERS = BUILD / "test_helpers"
PROGRAMS = ["key_protectiond", "gpuhealthd", "tie-model-owner", "cache_stored", "cloudboardd", "workload_servicesd", "afm-runtime", "tie-status-probe", "tie-controllerd",
            "cb_jobhelper", "tie-cloud-app"]
MODEL = "model-one"


def send_frame(sock, payload, fds=()):
    data = struct.pack(">I", len(payload)) + payload
    control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    sent = sock.sendmsg([data], control)
    if sent < len(data):
        sock.sendall(data[sent:])


def receive_frame(sock, timeout=10):
    sock.settimeout(timeout)

    def exactly(n):
        out = b""
        while len(out) < n:
            part = sock.recv(n - len(out))
            if not part:
                raise EOFError("closed")
            out += part
        return out

    return exactly(struct.unpack(">I", exactly(4))[0])


def connect(path, timeout=10):
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(timeout)
    sock.connect(str(path))
    return sock


def ask(sock, text, fds=()):
    send_frame(sock, text.encode(), fds)
    return receive_frame(sock).decode()


def wait_until(condition, timeout=10, what="the condition"):
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.01)
    raise AssertionError(f"{what} did not come true in {timeout} s")


def processes_of(marker):
    """Living processes whose command line holds the marker."""
    found = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            line = pathlib.Path("/proc", entry, "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            state = pathlib.Path("/proc", entry, "stat").read_text().rsplit(")", 1)[1].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if marker in line and state != "Z" and int(entry) != os.getpid():
            found[int(entry)] = line.strip()
    return found


class SandboxNode:
    """`victims`: {program name: helper}; `real`: names of the product's own programs; every other program is `fake_process`. With "tie" among
    the real ones the client's whole program is installed, not its node commands alone."""

    def __init__(self, place, victims=None, real=(), extra=()):
        self.place = pathlib.Path(place)
        self.prefix = self.place / "prefix"
        self.assets = self.place / "assets"
        self.run = pathlib.Path(f"/dev/shm/tie-test-{os.getpid()}-{self.place.name[-8:]}")
        self.extra = list(extra)
        self.victims = victims or {}
        self.real = set(real)
        self.process = None
        self._assemble()

    def _assemble(self):
        libexec, binaries = self.prefix / "libexec/tie", self.prefix / "bin"
        for folder in (libexec, binaries):
            folder.mkdir(parents=True, exist_ok=True)
        for name in PROGRAMS:
            shutil.copy(BUILD / "bin" / name if name in self.real else HELPERS / self.victims.get(name, "fake_process"), libexec / name)
        for name in ("tie-launcher", "afm-runtime-init"):
            shutil.copy(BUILD / "bin" / name, libexec / name)
        shutil.copy(BUILD / "bin/tie" if "tie" in self.real else HELPERS / "node_cli", binaries / "tie")
        if "afm-runtime" in self.real:
            return  # the test adds a real model
        model = self.assets / "models" / MODEL
        model.mkdir(parents=True, exist_ok=True)
        for name in ("weights.gguf", "tokenizer.img", "template.jinja", "model.toml"):
            (model / name).write_text(f"content of {name}\n")

    def cli(self, *arguments, timeout=60):
        return subprocess.run([str(self.prefix / "bin/tie"), *arguments], capture_output=True, text=True, timeout=timeout)

    def up_arguments(self):
        proxy = [] if "--proxy" in self.extra else ["--proxy", "none"]
        listen = [] if "--listen" in self.extra else ["--listen", f"127.0.0.1:{free_port()}"]
        return ["--assets", str(self.assets), "--run-dir", str(self.run), "--startup-timeout", "30", *proxy, *listen, *self.extra]

    def up(self):
        done = self.cli("up", "--detach", *self.up_arguments())
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    def down(self):
        return self.cli("down", "--run-dir", str(self.run))

    def status(self):
        done = self.cli("status", "--run-dir", str(self.run))
        return json.loads(done.stdout) if done.stdout else None

    def unit(self, name):
        return next(u for u in self.status()["node"]["units"] if u["name"] == name)

    def launcher_pid(self):
        return next(pid for pid, line in processes_of(str(self.run)).items() if "tie-launcher" in line.split()[0])

    def socket(self, name):
        return self.run / name / f"{name}.sock"

    def model_socket(self, kind, model=MODEL):
        return self.run / kind / model / f"{kind}.sock"

    def pid_of(self, program):
        """The program itself, not the sandbox program that started it."""
        return [pid for pid, line in processes_of(str(self.run)).items() if line.split()[0].endswith("/" + program)]

    def clean(self):
        self.down()
        for pid in processes_of(str(self.run)):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        shutil.rmtree(self.run, ignore_errors=True)


def need_programs(names):
    import pytest
    missing = [n for n in list(names) + ["tie-launcher"] if not (BUILD / "bin" / n).exists()]
    if missing or not (HELPERS / "attacker").exists():
        pytest.skip(f"not built in {BUILD}: {missing or 'test helpers'}")


def model_file():
    """The small model of the tests, or None: ./dev model fetches it."""
    given = os.environ.get("TIE_TEST_MODEL")
    path = pathlib.Path(given) if given else ROOT / ".cache/models/smollm2-135m-instruct.gguf"
    return path if path.exists() else None


def add_model(node, gguf, name):
    subprocess.run([str(BUILD / "bin/tie"), "model", "--assets", str(node.assets), "add", str(gguf), "--name", name], check=True, capture_output=True)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]
