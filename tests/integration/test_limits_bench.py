"""What `./dev bench limits` prints: its JSON is what every other figure is a fraction of. That the fields are there and possible, never how large they are."""
import importlib.util
import json
import math
import pathlib
import subprocess
import sys

import pytest

from runtime_process import BIN, ROOT

PROGRAM = BIN / "limits_bench"
# What the CPU must have for a peak to be measured, as /proc/cpuinfo spells it. AMX also wants the kernel's leave, so there a null may be.
NEEDS = {
    "avx2_int8_gops": {"avx2", "fma"},
    "avx2_fp32_gflops": {"avx2", "fma"},
    "avx512_int8_gops": {"avx512f", "avx512bw", "avx512_vnni"},
    "avx512_bf16_gflops": {"avx512f", "avx512bw", "avx512_bf16"},
    "avx512_fp32_gflops": {"avx512f", "avx512bw"},
    "amx_int8_gops": {"amx_tile", "amx_int8"},
    "amx_bf16_gflops": {"amx_tile", "amx_bf16"},
}
MOST = 1e7  # of any figure: a thousand times a large server of today


def cpu_flags():
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    return set(next((line for line in lines if line.startswith("flags")), "").split())


def run(*arguments):
    if not PROGRAM.exists():
        pytest.skip(f"not built in {BIN}")
    if "avx2" not in cpu_flags():
        pytest.skip("this CPU has no AVX2")
    return subprocess.run([PROGRAM, "--mb", "4", *arguments], capture_output=True, text=True, check=True, timeout=300).stdout


def bench():
    before = list(sys.path)
    spec = importlib.util.spec_from_file_location("tie_bench_run", ROOT / "bench/run.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.path[:] = before
    return module


def test_the_json_has_every_field_for_one_and_for_all_threads():
    lines = [json.loads(line) for line in run("--json", "--threads", "2").splitlines()]
    assert [line["threads"] for line in lines] == [1, 2]
    flags = cpu_flags()
    for line in lines:
        assert set(line) == {"threads", "mb", "read_gb_s", *NEEDS}
        assert line["mb"] == 4
        assert 0 < line["read_gb_s"] < MOST
        for key, needs in NEEDS.items():
            if line[key] is None:
                assert not needs <= flags or key.startswith("amx"), f"{key} is missing, and this CPU has {needs}"
            else:
                assert needs <= flags, f"{key} on a CPU that has not {needs}"
                assert math.isfinite(line[key]) and 0 < line[key] < MOST
    assert {key for key in NEEDS if lines[0][key] is None} == {key for key in NEEDS if lines[1][key] is None}
    # The same names in the table of `./dev bench limits`.
    module = bench()
    assert set(module.PEAKS.values()) == set(NEEDS)
    rows = module.limit_rows({4: {line["threads"]: line for line in lines}})
    assert len(rows) == 1 + len(NEEDS) and all(len(row) == 3 for row in rows)


def test_one_thread_alone_is_one_line():
    assert len(run("--json", "--threads", "1").splitlines()) == 1


def test_a_person_reads_the_same_peaks():
    text = run("--threads", "1")
    assert text.startswith("1 thread(s): read ") and "of a 4 MB memfd" in text
    peaks = text.splitlines()[1:]
    assert len(peaks) == len(NEEDS)
    assert all(line.endswith(("GOP/s", "GFLOP/s", "not on this CPU")) for line in peaks), text
