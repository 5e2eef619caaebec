"""A new version of a model that the owner refuses must not give its tokenizer to request processes, whoever stages them: the launcher reads the
same file (src/supervision/launcher/stage_test.cc); here the owner writes it and the script of the systemd profile follows it."""
import hashlib
import os
import pathlib
import shutil
import subprocess
import tempfile
import time

import pytest

from runtime_process import BIN, ROOT

LIMIT_S = 60
SCRIPT = ROOT / "deploy/tie-stage-assets"


class Node:
    def __init__(self, run):
        self.run = run
        self.assets = run / "assets"
        self.folder = self.assets / "models/m"
        self.folder.mkdir(parents=True)
        (run / "served").mkdir()
        self.process = None

    def put(self, seed, template, weights=True):
        new = self.run / "new.gguf"
        subprocess.run([BIN / "pack_model_images", "tiny", self.run / "unused", self.run / "tokenizer.new", "--context", "64", "--seed", str(seed), "--gguf", new], check=True)
        # Another version's image differs; the runtime is not started here.
        (self.run / "tokenizer.new").write_bytes((self.run / "tokenizer.new").read_bytes() + bytes([seed]))
        os.replace(self.run / "tokenizer.new", self.folder / "tokenizer.img")
        (self.folder / "template.jinja").write_text(template)
        (self.folder / "model.toml").write_text("")
        if weights:
            os.replace(new, self.folder / "weights.gguf")
        else:
            (self.folder / "weights.gguf").write_bytes(b"GGUF no model")

    def stage(self):
        """What the script does at its end: the next version of what requests read lies ready."""
        shutil.copytree(self.assets / "models", self.run / "app-assets.new/models", ignore=shutil.ignore_patterns("weights.gguf"), dirs_exist_ok=True)

    def start_runtime(self):
        """What systemd does before one starts."""
        subprocess.run(["sh", SCRIPT, "--apply"], check=True, env={**os.environ, "TIE_RUN": str(self.run)})

    def seen(self, name):
        return (self.run / "app-assets/models/m" / name).read_bytes()

    def served(self):
        path = self.run / "served/m"
        return dict(line.split() for line in path.read_text().splitlines()) if path.exists() else {}

    def owner(self):
        self.log = open(self.run / "owner.log", "wb")
        self.process = subprocess.Popen([BIN / "tie-model-owner", "--socket", self.run / "owner.sock", "--model-sockets", self.run / "weights", "--served", self.run / "served", "--assets", self.assets,
                                         "--watch-ms", "50", "--threads", "1"], stderr=self.log)


@pytest.fixture
def node():
    if not (BIN / "pack_model_images").exists():
        pytest.skip(f"not built in {BIN}")
    run = pathlib.Path(tempfile.mkdtemp(prefix="tie-served-", dir="/dev/shm"))
    made = Node(run)
    yield made
    if made.process:
        made.process.terminate()
        made.process.wait(timeout=LIMIT_S)
        made.log.close()
    shutil.rmtree(run)


def wait_for(condition):
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def digest(data):
    return hashlib.sha256(data).hexdigest()


def test_requests_get_the_tokenizer_of_the_version_that_is_served(node):
    node.put(1, "first")
    first = (node.folder / "tokenizer.img").read_bytes()
    node.stage()
    node.start_runtime()
    assert node.seen("tokenizer.img") == first, "before the owner has said anything it is what lies there"
    node.owner()
    wait_for(lambda: node.served().get("tokenizer.img") == digest(first))
    assert node.served()["template.jinja"] == digest(b"first")
    # workload_servicesd, a user of its own whose claims name what is served, reads it, too.
    said = node.run / "served/m"
    assert said.stat().st_mode & 0o777 == 0o644
    told = said.read_text()

    node.put(2, "second", weights=False)
    node.stage()
    for _ in range(2):  # as often as runtimes start meanwhile
        node.start_runtime()
        assert node.seen("tokenizer.img") == first and node.seen("template.jinja") == b"first"
    assert node.served()["tokenizer.img"] == digest(first) and said.read_text() == told

    # The same files with weights that can be loaded: what waited is taken now.
    second = (node.folder / "tokenizer.img").read_bytes()
    node.put(2, "second")
    assert (node.folder / "tokenizer.img").read_bytes() == second
    wait_for(lambda: node.served().get("tokenizer.img") == digest(second))
    node.start_runtime()
    assert node.seen("tokenizer.img") == second and node.seen("template.jinja") == b"second"
    assert not (node.run / "app-assets.new").exists()
