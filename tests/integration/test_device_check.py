"""`./dev device-check` without a GPU: its script and its program over the emulated driver, at small sizes. What only a GPU can tell (that the kernels' binary runs, speeds)
stays untold."""
import json
import pathlib
import subprocess
import sys

import pytest

from runtime_process import BIN, ROOT

SCRIPT = ROOT / "tools/device_check.py"
DRIVER = BIN.parent / "testing/libtie_fake_cuda.so"


def run(*words):
    return subprocess.run([sys.executable, SCRIPT, *map(str, words)], capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def emulated():
    if not DRIVER.exists() or not (BIN / "device_check").exists():
        pytest.skip(f"no {DRIVER.name} in {DRIVER.parent}: ./dev build")
    return ["--program", BIN / "device_check", "--driver", DRIVER, "--quick"]


def test_the_checks_pass_on_the_emulated_driver_and_write_json(emulated, tmp_path):
    done = run("--out", tmp_path, "--only", "units,models,graphs,ipc,kernels,speed", *emulated)
    found = json.loads((tmp_path / "device-check.json").read_text())
    assert done.returncode == 0, done.stdout + json.dumps(found, indent=1)
    assert [case["weights"] for case in found["models"]["cases"]] == ["q4_k", "q4_k"]
    assert found["graphs"]["captured"] == 1
    assert all("portable" in report for report in found["units"]["reports"])
    assert {case["kernel"] for case in found["kernels"]["cases"]} == {"product", "attention"}
    assert {row["model"] for row in found["fractions"]} == {"1b-bf16", "1b-q4"}


def test_a_failing_step_is_told_and_fails_the_whole(emulated, tmp_path):
    done = run("--out", tmp_path, "--only", "graphs", "--program", BIN / "device_check", "--driver", "libnowhere.so", "--quick")
    assert done.returncode == 1
    assert "no CUDA driver" in json.loads((tmp_path / "device-check.json").read_text())["graphs"]["error"]


def test_an_unknown_step_is_refused(tmp_path):
    done = run("--out", tmp_path, "--only", "everything")
    assert done.returncode == 2 and "no such step" in done.stderr
    assert not (pathlib.Path(tmp_path) / "device-check.json").exists()
