"""A node that takes signed assets only: the operator's commands, a start, an update that is not signed, one that is, and what keeps it from starting."""
import os
import pathlib
import shutil
import subprocess
import tempfile
import time

import pytest

import support


@pytest.fixture
def assets():
    support.need_node()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="tie-signed-"))
    memory = pathlib.Path(tempfile.mkdtemp(prefix="tie-signed-", dir="/dev/shm"))
    site = Site(folder, memory / "run")
    site.tie("model", "add", str(support.model_file()), "--name", support.MODEL)
    site.tie("assets", "keygen", "--key", str(folder / "operator"))
    try:
        yield site
    finally:
        subprocess.run([str(support.tie_program()), "down", "--run-dir", str(site.run)], capture_output=True, timeout=60)
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(memory, ignore_errors=True)


class Site:
    def __init__(self, folder, run):
        self.folder, self.run, self.port = folder, run, support.free_port()

    def tie(self, *words, ok=True):
        environment = dict(os.environ, TIE_ASSETS=str(self.folder / "assets"), TIE_RUN=str(self.run))
        done = subprocess.run([str(support.tie_program()), *words], capture_output=True, text=True, timeout=120, env=environment)
        assert not ok or done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done

    def sign(self):
        return self.tie("assets", "sign", "--key", str(self.folder / "operator.key"))

    def verify(self):
        return self.tie("assets", "verify", "--key", str(self.folder / "operator.pub"), ok=False)

    def up(self, ok=True):
        return self.tie("up", "--detach", "--run-dir", str(self.run), "--listen", f"127.0.0.1:{self.port}", "--proxy", "none", "--assets-key", str(self.folder / "operator.pub"), ok=ok)

    def status(self):
        return self.tie("node", "status", ok=False).stdout


def test_only_what_the_operator_signed_is_served(assets):
    unsigned = assets.up(ok=False)
    assert unsigned.returncode != 0 and "not signed" in unsigned.stderr
    assert (assets.folder / "operator.key").stat().st_mode & 0o077 == 0
    assert "signed" in assets.sign().stdout and assets.verify().returncode == 0

    other = assets.folder / "assets" / "models" / support.MODEL / "template.jinja"
    kept = other.read_bytes()
    other.write_bytes(kept + b" ")
    changed = assets.up(ok=False)
    assert changed.returncode != 0 and "template.jinja is not the file that was signed" in changed.stderr
    assert "template.jinja" in assets.verify().stderr
    other.write_bytes(kept)

    assets.tie("assets", "keygen", "--key", str(assets.folder / "stranger"))
    assert assets.tie("assets", "keygen", "--key", str(assets.folder / "operator"), ok=False).returncode != 0, "a key is never written over"
    assets.tie("assets", "sign", "--key", str(assets.folder / "stranger.key"))
    stranger = assets.up(ok=False)
    assert stranger.returncode != 0 and "not that of this node's operator" in stranger.stderr
    assets.sign()
    assets.up()

    # An update that nobody signed is refused, the old version stays in service; signed it is taken.
    prompt = assets.folder / "prompt.txt"
    prompt.write_text("You are a careful assistant. " * 20)
    assets.tie("node", "prompt", "add", str(prompt), "--id", "careful", "--model", support.MODEL)
    assets.tie("node", "reload", ok=False)
    refused = assets.status()
    assert refused.startswith("node        ready") and "refused" in refused and "not in the signed manifest" in refused, refused
    assets.sign()
    assets.tie("node", "reload")
    limit = time.monotonic() + 30
    while "refused" in assets.status() and time.monotonic() < limit:
        time.sleep(0.2)
    taken = assets.status()
    assert taken.startswith("node        ready") and "refused" not in taken, taken
    assert (assets.run / "stage/app-assets/prompts/careful.json").exists()
