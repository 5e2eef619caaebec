"""The systemd profile's staging script, killed before and in the middle of each of its steps: the next run ends what it began, and no version that waits
for its runtime is lost. The commands that change files are stood in for by ones that kill the script at the step that a test names."""
import hashlib
import os
import pathlib
import shutil
import subprocess
import tempfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "deploy/tie-stage-assets"
STEP = """#!/bin/sh
name=$(basename "$0")
for last; do :; done
echo $name >> "$STEPS"
[ "$(wc -l < "$STEPS")" = "$KILL_AT" ] || exec /bin/$name "$@"
half() { find "$last" -type f | sort | head -1 | while read -r file; do /bin/rm -f "$file"; done; }
case $KILL_HOW-$name in
  half-rm) half ;;
  half-cp) /bin/cp "$@"; half ;;
esac
kill -9 $PPID
"""
FILES = ("tokenizer.img", "template.jinja", "model.toml")


class Staging:
    def __init__(self, folder):
        self.source, self.run, self.prefix, self.steps = folder / "source", folder / "run", folder / "prefix", folder / "steps"
        for made in (self.run, self.prefix / "bin", folder / "tools"):
            made.mkdir(parents=True)
        (self.prefix / "bin/tie").write_text("#!/bin/sh\necho the release\n")
        self.tools = folder / "tools"
        for name in ("mv", "rm", "cp", "mkdir", "rmdir", "chmod"):
            (self.tools / name).write_text(STEP)
        for tool in (*self.tools.iterdir(), self.prefix / "bin/tie"):
            tool.chmod(0o755)

    def copy(self, other):
        for mine, its in ((self.source, other.source), (self.run, other.run)):
            shutil.copytree(its, mine, dirs_exist_ok=True)

    def put(self, version):
        for model in "ab":
            folder = self.source / "models" / model
            folder.mkdir(parents=True, exist_ok=True)
            for name in (*FILES, "weights.gguf"):
                (folder / name).write_text("" if name == "model.toml" else f"{model} {name} {version}")
        (self.source / "prompts").mkdir(exist_ok=True)
        (self.source / "prompts/p.json").write_text(version)

    def call(self, *args, kill_at=0, how="before"):
        """True when it ran to its end."""
        self.steps.write_text("")
        env = {**os.environ, "PATH": f"{self.tools}:{os.environ['PATH']}", "TIE_RUN": str(self.run), "TIE_ASSETS": str(self.source), "TIE_PREFIX": str(self.prefix),
               "TIE_ASSETS_KEY": "/nonexistent", "TIE_TOKEN_ISSUER_FILE": "/nonexistent", "STEPS": str(self.steps), "KILL_AT": str(kill_at), "KILL_HOW": how}
        rc = subprocess.run(["sh", SCRIPT, *args], env=env, timeout=60).returncode
        assert rc in (0, -9), rc
        return rc == 0

    def stage(self, **kill):
        return self.call("--no-units", **kill)

    def apply(self, **kill):
        return self.call("--apply", **kill)

    def version(self, model, root="app-assets", name="tokenizer.img"):
        return (self.run / root / "models" / model / name).read_text().split()[-1]

    def serves(self, model, version):
        """What the owner writes when it hands out that version."""
        (self.run / "served").mkdir(exist_ok=True)
        lines = [f"{name} {hashlib.sha256(f'{model} {name} {version}'.encode()).hexdigest()}\n" for name in FILES[:2]]
        (self.run / "served" / model).write_text("".join(lines))

    def check(self, a, b):
        assert {name: self.version("a", name=name) for name in FILES[:2]} == dict.fromkeys(FILES[:2], a)
        assert {name: self.version("b", name=name) for name in FILES[:2]} == dict.fromkeys(FILES[:2], b)
        assert all((self.run / "app-assets/models" / model / "model.toml").exists() for model in "ab")
        assert not (self.run / "app-assets/models/a/weights.gguf").exists()


@pytest.fixture
def make():
    folder = pathlib.Path(tempfile.mkdtemp(prefix="tie-stage-", dir="/dev/shm"))
    made = []

    def new():
        made.append(Staging(folder / str(len(made))))
        return made[-1]

    yield new
    shutil.rmtree(folder)


def a_second_version_that_is_half_refused(staging):
    staging.put("v1")
    assert staging.stage()
    for model in "ab":
        staging.serves(model, "v1")
    staging.put("v2")
    assert staging.stage()
    staging.serves("a", "v2")


def at_each_step(make, prepare, begin):
    """Prepares once, then yields a copy for each place at which `begin` can be killed, when it was."""
    ready, whole = make(), make()
    prepare(ready)
    whole.copy(ready)
    assert begin(whole)
    steps = whole.steps.read_text().split()
    assert len(steps) > 10, "the steps are not those of the script"
    for at, step in enumerate(steps, 1):
        for how in ("before", "half") if step in ("rm", "cp") else ("before",):
            staging = make()
            staging.copy(ready)
            assert not begin(staging, kill_at=at, how=how)
            yield staging


def test_a_version_that_waits_is_shown_once_it_is_served(make):
    staging = make()
    a_second_version_that_is_half_refused(staging)
    staging.check("v1", "v1")
    assert staging.version("b", "assets") == "v2"
    for _ in range(2):
        assert staging.apply()
        staging.check("v2", "v1")
    staging.serves("b", "v2")
    assert staging.apply()
    staging.check("v2", "v2")
    assert (staging.run / "app-assets/prompts/p.json").read_text() == "v2"
    left = sorted(p.name for p in staging.run.iterdir() if p.is_dir())
    assert left == ["app-assets", "assets", "release", "served"], "nothing of it stays in memory"


def test_a_pipe_in_the_place_of_what_the_owner_says_is_not_waited_for(make):
    """The folder is the owner's, the script root's, and every runtime that starts waits for it."""
    staging = make()
    a_second_version_that_is_half_refused(staging)
    (staging.run / "served/a").unlink()
    os.mkfifo(staging.run / "served/a")
    assert staging.apply()
    staging.check("v2", "v1")


def test_showing_it_may_be_killed_at_any_step(make):
    for staging in at_each_step(make, a_second_version_that_is_half_refused, Staging.apply):
        assert staging.apply()
        staging.check("v2", "v1")
        staging.serves("b", "v2")
        assert staging.apply()
        staging.check("v2", "v2")


def test_staging_the_next_may_be_killed_at_any_step(make):
    def prepare(staging):
        a_second_version_that_is_half_refused(staging)
        staging.put("v3")

    reached = set()
    for staging in at_each_step(make, prepare, Staging.stage):
        assert staging.apply()
        version = staging.version("b", "assets")
        assert version == staging.version("a", "assets") == staging.version("b", "assets", "weights.gguf")
        reached.add(version)
        for model in "ab":
            staging.serves(model, version)
        assert staging.apply()
        staging.check(version, version)
    assert reached == {"v2", "v3"}


def test_the_first_staging_may_be_killed_at_any_step(make):
    for staging in at_each_step(make, lambda staging: staging.put("v1"), Staging.stage):
        assert staging.stage()
        staging.check("v1", "v1")
        assert (staging.run / "release/environment").read_text().startswith("TIE_RELEASE_ID=")
