"""Evidence of kind "tpm" from the two real key daemons and Debian's TPM emulator, judged by tools/verify_evidence.py, which shares no code
with the product. Commands that the product would not send go to the TPM from here."""
import hashlib
import os
import pathlib
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time

import pytest
from test_verify_evidence import Node

pytest.importorskip("cryptography")
SWTPM = shutil.which("swtpm")
pytestmark = pytest.mark.skipif(not SWTPM, reason="swtpm is not installed: ./dev deps --tests")


class TpmNode(Node):
    def __init__(self, root):
        (root / "tpm").mkdir()
        self.tpm = root / "tpm/tpm.sock"
        self.emulator = subprocess.Popen([SWTPM, "socket", "--tpm2", "--tpmstate", f"dir={root}/tpm", "--server", f"type=unixio,path={self.tpm}",
                                          "--flags", "startup-clear,not-need-init"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while not self.tpm.exists():
            time.sleep(0.02)
        (root / "assets/prompts").mkdir(parents=True)
        self.prompt = root / "assets/prompts/first.json"
        self.prompt.write_text('{"id": "first"}')
        super().__init__(root)

    def start(self, name, *arguments):
        arguments += ("--tpm", str(self.tpm))
        if name == "workload_servicesd":
            arguments += ("--measurements", str(self.root / "measurements"))
        super().start(name, *arguments)

    def policy(self, **changes):
        return super().policy(**{"accepted_kinds": ["tpm"], "tpm_keys": [self.key()], **changes})

    def key(self):
        """What the node's evidence is signed by, as the verifier names it when nothing is pinned."""
        _, output = self.verify(super().policy(accepted_kinds=["tpm"]))
        return output.split("pins the TPM key ")[1][:64] if "pins the TPM key " in output else "0" * 64

    def extend(self, pcr, digest):
        command = struct.pack(">I", pcr) + bytes.fromhex("00000009400000090000000000") + struct.pack(">IH", 1, 0x0B) + digest
        command = struct.pack(">HII", 0x8002, 10 + len(command), 0x182) + command
        with socket.socket(socket.AF_UNIX) as tpm:
            tpm.connect(str(self.tpm))
            tpm.sendall(command)
            assert tpm.recv(4096)[6:10] == bytes(4)

    def stop(self):
        super().stop()
        self.emulator.terminate()
        self.emulator.wait(10)


@pytest.fixture
def node():
    root = pathlib.Path(tempfile.mkdtemp(prefix="tiet", dir="/dev/shm"))
    (root / "assets").mkdir()
    running = TpmNode(root)
    wait_accepted(running)
    yield running
    running.stop()
    shutil.rmtree(root)


def wait_accepted(node, seconds=30):
    deadline = time.time() + seconds
    while node.verify(node.policy())[0] != 0:
        assert time.time() < deadline, node.verify(node.policy())[1]
        time.sleep(0.1)


def failures(output):
    return [line.removeprefix("FAIL ") for line in output.splitlines() if line.startswith("FAIL")]


def test_a_pinned_tpm_that_measured_this_release_is_attested(node):
    code, output = node.verify(node.policy())
    assert code == 0, output
    assert "accepted; TPM evidence" in output and "unattested" not in output


def test_each_fault_is_refused_with_its_own_words(node):
    release = hashlib.sha256(node.manifest.encode()).hexdigest()
    assert any("pins the TPM key" in line for line in failures(node.verify(node.policy(tpm_keys=["0" * 64]))[1]))
    assert failures(node.verify(node.policy(release_ids=["0" * 64]))[1]) == [f"the policy pins release {release[:12]}"]
    assert any("PCR 0 has the pinned value" in line for line in failures(node.verify(node.policy(tpm_pcrs=["0:" + "1" * 64]))[1]))
    assert node.verify(node.policy(tpm_pcrs=["0:" + "0" * 64]))[0] == 0, "an emulator without firmware leaves PCR 0 at zero"
    # Software evidence would not do any more, nor TPM evidence where software is expected.
    assert any("accepts evidence of kind 'tpm'" in line for line in failures(node.verify(node.policy(accepted_kinds=["software"]))[1]))


def test_a_measurement_that_the_log_does_not_list_is_refused(node):
    node.extend(14, b"\x11" * 32)
    code, output = node.verify(node.policy())
    assert code == 1
    assert failures(output) == ["the measurement log explains PCR 14: nothing unlogged was measured"]


def test_a_changed_prompt_is_measured_before_it_is_claimed(node):
    before = (node.root / "measurements").read_text()
    node.prompt.write_text('{"id": "second"}')
    digest = hashlib.sha256(node.prompt.read_bytes()).hexdigest()
    deadline = time.time() + 20
    while digest not in (node.root / "measurements").read_text():
        assert time.time() < deadline
        time.sleep(0.1)
    assert (node.root / "measurements").read_text().startswith(before), "the log only grows"
    wait_accepted(node)


def test_a_killed_daemon_comes_back_attested(node):
    wsd = node.processes[1]
    os.kill(wsd.pid, signal.SIGKILL)
    wsd.wait()
    log = (node.root / "measurements").read_text()
    node.processes.pop()
    root = node.root
    node.start("workload_servicesd", "--decap-socket", str(root / "d.sock"), "--authorize-socket", str(root / "a.sock"), "--claims-socket", node.claims,
               "--kps-socket", str(root / "kps.sock"), "--control-socket", str(root / "c.sock"), "--release-manifest", str(root / "manifest"),
               "--assets", str(root / "assets"))
    wait_accepted(node)
    assert (root / "measurements").read_text() == log, "nothing is measured twice"


def test_another_release_on_the_same_boot_shows(node):
    """The operator swaps the programs without a reboot: both releases are in the PCR, and no client takes that."""
    wsd = node.processes.pop()
    wsd.terminate()
    wsd.wait(10)
    other = f"{'b' * 64}  libexec/tie/cloudboardd\n"
    (node.root / "manifest").write_text(other)
    root = node.root
    node.start("workload_servicesd", "--decap-socket", str(root / "d.sock"), "--authorize-socket", str(root / "a.sock"), "--claims-socket", node.claims,
               "--kps-socket", str(root / "kps.sock"), "--control-socket", str(root / "c.sock"), "--release-manifest", str(root / "manifest"),
               "--assets", str(root / "assets"))
    deadline = time.time() + 20
    while True:  # the policy anew each time: it pins the key of a daemon that may only be starting
        output = node.verify(node.policy(release_ids=[hashlib.sha256(other.encode()).hexdigest()]))[1]
        if failures(output) == ["the TPM measured the claimed release, and no other"]:
            break
        assert time.time() < deadline, output
        time.sleep(0.1)
