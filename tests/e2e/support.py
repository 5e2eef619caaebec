"""Where things lie, free ports, programs as context managers."""
import contextlib
import os
import pathlib
import shutil
import socket
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("TIE_BUILD", ROOT / "build/release"))
SHARED = pathlib.Path(os.environ.get("TIE_SHARED_DATA", ROOT.parent / "shared/data"))
MODEL = "smollm2-135m-instruct"


def first_existing(*paths):
    return next((p for p in paths if p and p.exists()), None)


def tie_program():
    return first_existing(BUILD / "dist/bin/tie", BUILD / "bin/tie")


def fake_node_program():
    return first_existing(BUILD / "testing/fake_node")


def model_file():
    given = os.environ.get("TIE_TEST_MODEL")
    return first_existing(pathlib.Path(given) if given else None, ROOT / ".cache/models/smollm2-135m-instruct.gguf")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_for_port(port, seconds=10):
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        time.sleep(0.02)
    raise TimeoutError(f"nothing listens on port {port}")


@contextlib.contextmanager
def running(command, port=None, **options):
    """A program that is stopped at the end; waits until `port` takes connections."""
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen([str(c) for c in command], stdout=log, stderr=subprocess.STDOUT, **options)
        try:
            if port:
                wait_for_port(port)
            yield process
        except TimeoutError as late:
            log.seek(0)
            raise TimeoutError(f"{late}: {command[0]} said: {log.read()[-2000:]}") from late
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class Place:
    """Addresses of one node and its proxy."""

    def __init__(self, node_port, proxy_port, policy=None, run_dir=None, model=MODEL):
        self.node = f"127.0.0.1:{node_port}"
        self.proxy_port = proxy_port
        self.url = f"http://127.0.0.1:{proxy_port}"
        self.policy = policy
        self.run_dir = run_dir
        self.model = model

    def tie(self, *words, **options):
        """Runs `tie` against this node."""
        command = [str(tie_program()), *words]
        environment = dict(os.environ, TIE_NODE=self.node)
        environment.pop("TIE_POLICY", None)
        if self.policy:
            environment["TIE_POLICY"] = str(self.policy)
        return subprocess.run(command, capture_output=True, text=True, timeout=options.pop("timeout", 60), env=environment, **options)

    def processes(self, name):
        """Process ids of a program of this node, and of no other."""
        prefix = f"{self.run_dir}/stage/prefix/libexec/tie/{name}".encode() + b"\0"
        out = []
        for entry in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                if entry.read_bytes().startswith(prefix):
                    out.append(int(entry.parent.name))
        return out

    @contextlib.contextmanager
    def another_proxy(self, node=None, *flags, environment=None):
        """A further `tie proxy`, perhaps to another address of the node."""
        port = free_port()
        command = [tie_program(), "proxy", "--listen", f"127.0.0.1:{port}", "--node", node or self.node, *flags]
        if self.policy:
            command += ["--policy", self.policy]
        with running(command, port, env=dict(os.environ, **(environment or {}))):
            yield port


def need_node():
    """Skips, loudly, where no node can be started."""
    import pytest  # here alone: benches use this file without it

    if not (BUILD / "dist").exists():
        pytest.skip(f"no installed tree in {BUILD}: ./dev build")
    if not model_file():
        pytest.skip("no SmolLM2 model file: ./dev model")


@contextlib.contextmanager
def real_node(*flags, model_flags=()):
    """`tie model add` (with `model_flags`) and `tie up --detach` on free ports; everything in a folder that goes away."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="tie-e2e-"))
    memory = pathlib.Path(tempfile.mkdtemp(prefix="tie-e2e-", dir="/dev/shm"))  # a node keeps its state in memory only
    assets, run_dir = folder / "assets", memory / "run"
    environment = dict(os.environ, TIE_ASSETS=str(assets))
    node_port, proxy_port = free_port(), free_port()
    place = Place(node_port, proxy_port, run_dir=run_dir)
    try:
        subprocess.run([str(tie_program()), "model", "add", str(model_file()), "--name", MODEL, *map(str, model_flags)], check=True, env=environment, capture_output=True, timeout=60)
        up = subprocess.run(
            [str(tie_program()), "up", "--detach", "--run-dir", str(run_dir), "--assets", str(assets), "--listen", place.node, "--proxy", f"127.0.0.1:{proxy_port}", *map(str, flags)],
            capture_output=True, text=True, timeout=120, env=environment)
        assert up.returncode == 0, f"tie up failed:\n{up.stdout}\n{up.stderr}"
        wait_for_port(proxy_port)
        yield place
    finally:
        subprocess.run([str(tie_program()), "down", "--run-dir", str(run_dir)], capture_output=True, timeout=120)
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(memory, ignore_errors=True)
