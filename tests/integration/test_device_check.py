"""`./dev device-check` without a GPU: its script and its program over the emulated driver, at small sizes. What only a GPU can tell (that the kernels' binary runs, speeds)
stays untold. That a case which faults or hangs takes nothing else with it is shown with a program that does so."""
import json
import pathlib
import subprocess
import sys

import pytest

from runtime_process import BIN, ROOT

SCRIPT = ROOT / "tools/device_check.py"
DRIVER = BIN.parent / "testing/libtie_fake_cuda.so"

# Three cases: the first ends its process (once its result would be due), the second answers, the third hangs.
TROUBLED = """#!/usr/bin/env python3
import json, os, sys, time
if "--list" in sys.argv:
    print(json.dumps({"names": ["faults", "answers", "hangs", "last"]}))
    sys.exit(0)
skip = sys.argv[sys.argv.index("--skip") + 1].split(",")
for name in ["faults", "answers", "hangs", "last"]:
    if name in skip:
        continue
    if name == "faults":
        os.abort()
    if name == "hangs":
        time.sleep(600)
    print(json.dumps({"case": name, "ok": True}), flush=True)
"""


def run(*words):
    return subprocess.run([sys.executable, SCRIPT, *map(str, words)], capture_output=True, text=True, timeout=300)


def found_in(folder):
    return json.loads((folder / "device-check.json").read_text())


@pytest.fixture(scope="module")
def emulated():
    if not DRIVER.exists() or not (BIN / "device_check").exists():
        pytest.skip(f"no {DRIVER.name} in {DRIVER.parent}: ./dev build")
    return ["--program", BIN / "device_check", "--driver", DRIVER, "--quick"]


def test_the_checks_pass_on_the_emulated_driver_and_write_json(emulated, tmp_path):
    done = run("--out", tmp_path, "--only", "units,models,graphs,ipc,kernels,speed", *emulated)
    found = found_in(tmp_path)
    assert done.returncode == 0, done.stdout + json.dumps(found, indent=1)
    assert [case["case"] for case in found["models"]["cases"]] == ["gemma3-64-q4_k", "phi3-96-bf16"]
    assert found["graphs"]["cases"][0]["captured"] == 1
    assert all("portable" in case["report"] for case in found["units"]["cases"]) and len(found["units"]["cases"]) == 9
    assert {k["kernel"] for case in found["kernels"]["cases"] for k in case["kernels"]} == {"copy", "fingerprint", "row", "product", "attention"}
    assert {row["model"] for row in found["fractions"] if "model" in row} == {"1b-bf16", "1b-q4"}
    # The emulated copy is the yardstick when PyTorch has given none.
    assert all("decode_1_of_copy_bandwidth" in row for row in found["fractions"] if "model" in row)


def test_a_failing_step_is_told_and_fails_the_whole(emulated, tmp_path):
    done = run("--out", tmp_path, "--only", "graphs,units", "--program", BIN / "device_check", "--driver", "libnowhere.so", "--quick")
    found = found_in(tmp_path)
    assert done.returncode == 1
    assert "no CUDA driver" in found["graphs"]["cases"][0]["error"]
    assert "no CUDA driver" in found["units"]["error"]


def test_what_faults_or_hangs_takes_nothing_else_with_it(tmp_path):
    program = tmp_path / "troubled"
    program.write_text(TROUBLED)
    program.chmod(0o755)
    done = run("--out", tmp_path, "--only", "units", "--program", program, "--limit-s", "20")
    cases = {case["case"]: case for case in found_in(tmp_path)["units"]["cases"]}
    assert done.returncode == 1
    assert cases["faults"]["error"] == "ended its process with status -6"
    assert cases["answers"]["ok"]
    assert cases["hangs"]["error"] == "did not end in time" or "time" in cases["hangs"]["error"]
    assert set(cases) == {"faults", "answers", "hangs", "last"}


# Never a whole line, and more of it than is read: there is always something to read.
FLOOD = """#!/bin/sh
exec tr '\\0' x < /dev/zero
"""


def test_a_flood_of_output_is_cut_off(tmp_path):
    program = tmp_path / "flood"
    program.write_text(FLOOD)
    program.chmod(0o755)
    begin = f"import sys; sys.path.insert(0, {str(SCRIPT.parent)!r}); import device_check; status, out, err, _ = device_check.run([{str(program)!r}], 2); print(status, err)"
    done = subprocess.run([sys.executable, "-c", begin], capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("None cut off"), done.stdout + done.stderr


def test_a_missing_program_is_told(tmp_path):
    done = run("--out", tmp_path, "--only", "units", "--program", tmp_path / "nothing")
    assert done.returncode == 1 and found_in(tmp_path)["units"]["error"]


def test_an_unknown_step_is_refused(tmp_path):
    done = run("--out", tmp_path, "--only", "everything")
    assert done.returncode == 2 and "no such step" in done.stderr
    assert not (pathlib.Path(tmp_path) / "device-check.json").exists()
