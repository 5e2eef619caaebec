"""`tie node prove-stateless` on a real node: nothing is left of a canary, a leak beside the node is found in every form, and who may not look is told so.

Its detectors have their own tests (supervision/stateless_proof); here they run against the processes, memfds and files of a node."""
import os
import shutil
import subprocess

import httpx
import pytest

import support

FORMS = ["text (UTF-8)", "text (JSON-escaped)", "token ids (int32)", "token ids (int64)", "request key (DEK)", "turn key", "K rows", "V rows"]

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="reads the memory of other processes: needs root")


def prove(place, *words, before=()):
    pid = place.processes("tie-model-owner")[0]
    owner = open(f"/proc/{pid}/cmdline", "rb").read().split(b"\0")
    assets = owner[owner.index(b"--assets") + 1].decode()
    command = [*before, str(support.tie_program()), "node", "prove-stateless", "--node", place.node, "--run-dir", str(place.run_dir), "--assets", assets, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=180)


def lines_of(output, form):
    return [line for line in output.splitlines() if line.startswith("  " + form.ljust(22))]


@as_root
def test_nothing_of_a_canary_is_left(place):
    done = prove(place)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all 8 found the leak of their form" in done.stdout
    # The control: a request in flight is seen where it has to be.
    seen = done.stdout.split("in flight")[1].split("detectors")[0]
    for form, owner in [("text (UTF-8)", "tie-cloud-app"), ("token ids (int32)", "afm-runtime"), ("K rows", "afm-runtime"), ("V rows", "afm-runtime"), ("request key (DEK)", "cb_jobhelper"), ("turn key", "tie-cloud-app")]:
        assert any(form in line and owner in line for line in seen.splitlines()), (form, seen)
    for form in FORMS:
        assert lines_of(done.stdout, form)[-1].endswith("not found"), done.stdout
    assert "NOT SEARCHED" not in done.stdout


@as_root
def test_right_after_its_key_was_destroyed_it_waits_for_the_next(place):
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(place.run_dir / "wsd-operator/wsd-operator.sock")), base_url="http://wsd", timeout=30) as face:
        for key in face.get("/keys").json()["keys"]:
            assert face.post("/destroy", json={"key_id": key["key_id"]}).status_code == 200
    done = prove(place)
    assert done.returncode == 0, done.stdout + done.stderr


@as_root
def test_a_leak_beside_the_node_is_found_in_every_form_and_place(place):
    done = prove(place, "--with-leak")
    assert done.returncode == 1, done.stdout + done.stderr
    after = done.stdout.split("after the recycle")[1]
    for form in FORMS:
        found = lines_of(after, form)
        assert all("FOUND" in line for line in found), after
        for where in ["memory of", "memfd:planted-leak", "file "]:
            assert any(where in line for line in found), (form, where, after)
    assert "THE NODE KEEPS PARTS OF A REQUEST" in done.stdout


@as_root
def test_who_may_not_look_is_told_what_is_missing(place):
    if not shutil.which("setpriv"):
        pytest.skip("no setpriv (util-linux)")
    user = prove(place, before=["setpriv", "--reuid", "65534", "--clear-groups"])
    assert user.returncode == 3 and "root" in user.stderr, user.stderr
    without = prove(place, before=["setpriv", "--bounding-set", "-sys_ptrace", "--inh-caps", "-sys_ptrace"])
    assert without.returncode == 3 and "CAP_SYS_PTRACE" in without.stderr, without.stdout + without.stderr


@as_root
def test_without_a_node_nothing_is_proved(place, tmp_path):
    done = subprocess.run([str(support.tie_program()), "node", "prove-stateless", "--run-dir", str(tmp_path / "none")], capture_output=True, text=True, timeout=30)
    assert done.returncode == 3 and "no node runs" in done.stderr
