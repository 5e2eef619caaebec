"""tools/verify_evidence.py, which shares no code with the product, against the two real key daemons."""
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

import pytest

pytest.importorskip("cryptography")

ROOT = pathlib.Path(__file__).resolve().parents[3]
TOOL = ROOT / "tools/verify_evidence.py"


def program(name):
    for place in (os.environ.get("TIE_BUILD_DIR"), ROOT / "build/release", ROOT / "build/keys"):
        if place and (pathlib.Path(place) / "bin" / name).exists():
            return str(pathlib.Path(place) / "bin" / name)
    pytest.skip(f"{name} is not built")


class Node:
    def __init__(self, root):
        self.root, self.processes = root, []
        (root / "assets/models/m").mkdir(parents=True)
        (root / "assets/models/m/weights.gguf").write_bytes(b"weights")
        (root / "assets/models/m/tokenizer.img").write_bytes(b"tokenizer")
        self.manifest = f"{'a' * 64}  libexec/tie/cloudboardd\n"
        (root / "manifest").write_text(self.manifest)
        self.claims = str(root / "claims.sock")
        self.start("key_protectiond", "--socket", str(root / "kps.sock"))
        self.start("workload_servicesd", "--decap-socket", str(root / "d.sock"), "--authorize-socket", str(root / "a.sock"), "--claims-socket", self.claims,
                   "--kps-socket", str(root / "kps.sock"), "--control-socket", str(root / "c.sock"), "--release-manifest", str(root / "manifest"),
                   "--assets", str(root / "assets"))

    def start(self, name, *arguments):
        self.processes.append(subprocess.Popen([program(name), *arguments]))

    def policy(self, **changes):
        values = {"release_ids": [hashlib.sha256(self.manifest.encode()).hexdigest()], "accepted_kinds": ["software"], **changes}
        path = self.root / "policy.toml"
        path.write_text("".join(f"{key} = {value!r}\n".replace("'", '"') for key, value in values.items()))
        return str(path)

    def verify(self, policy, *more):
        done = subprocess.run([sys.executable, str(TOOL), "--policy", policy, "--claims-socket", self.claims, *more], capture_output=True, text=True, timeout=30)
        return done.returncode, done.stdout + done.stderr

    def stop(self):
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.wait(10)


@pytest.fixture(scope="module")
def node():
    root = pathlib.Path(tempfile.mkdtemp(prefix="tiev"))
    running = Node(root)
    deadline = time.time() + 10
    while time.time() < deadline and running.verify(running.policy())[0] != 0:
        time.sleep(0.1)
    yield running
    running.stop()
    shutil.rmtree(root)


def test_accepts_the_pinned_release_and_calls_it_unattested(node):
    code, output = node.verify(node.policy())
    assert code == 0 and "unattested" in output and "FAIL" not in output, output


def test_refuses_another_release(node):
    code, output = node.verify(node.policy(release_ids=["b" * 64]))
    assert code == 1 and "FAIL the policy pins release" in output


def test_refuses_another_kind_and_another_model(node):
    code, output = node.verify(node.policy(accepted_kinds=["tpm"]))
    assert code == 1 and "FAIL workload: the policy accepts evidence of kind 'software'" in output
    code, output = node.verify(node.policy(model_ids=["c" * 64]))
    assert code == 1 and "FAIL the policy pins every model" in output


def test_refuses_an_expired_key(node):
    code, output = node.verify(node.policy(), "--now-ms", str(int(time.time() * 1000) + 2 * 24 * 3600 * 1000))
    assert code == 1 and "FAIL the request key has not expired" in output


def test_refuses_an_unknown_policy_key(node):
    code, output = node.verify(node.policy(relese_ids=["x"]))
    assert code == 1 and "relese_ids" in output
