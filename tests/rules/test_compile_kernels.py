"""tools/compile_kernels.py on what the assembler says, with a compiler that is a script."""
import importlib.util
import json
import pathlib
import subprocess
import sys

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "tools/compile_kernels.py"
spec = importlib.util.spec_from_file_location("compile_kernels", SCRIPT)
compile_kernels = importlib.util.module_from_spec(spec)
spec.loader.exec_module(compile_kernels)


def report(name="tie_gemm_sm90_bf16", gpu="sm_90a", stack=0, spilled=0, registers=90, remark=""):
    return (f"ptxas info    : 24 bytes gmem\nptxas info    : Compiling entry function '{name}' for '{gpu}'\nptxas info    : Function properties for {name}\n"
            f"    {stack} bytes stack frame, {spilled} bytes spill stores, {spilled} bytes spill loads\n"
            f"ptxas info    : Used {registers} registers, used 1 barriers\n{remark}\n")


def faults(text):
    return compile_kernels.faults_of(*compile_kernels.kernels_in(text))


def test_a_good_report_has_no_fault():
    assert faults(report() + report("tie_gemm_sm90_bf16", "sm_100a", registers=4) + report("tie_finish_heads", stack=32)) == []


def test_what_would_be_slow_or_empty_is_a_fault():
    assert "16 bytes of registers are spilled" in faults(report(spilled=8))[0]
    assert "a stack of 8 bytes" in faults(report(stack=8))[0]
    assert "a stack of 40 bytes" in faults(report("tie_finish_heads", stack=40))[0]
    assert faults(report(registers=4)) == ["tie_gemm_sm90_bf16 for sm_90a: empty"]
    assert faults(report("tie_gemm_sm100_q4", "sm_100a", registers=4)) == ["tie_gemm_sm100_q4 for sm_100a: empty"]
    serialised = "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to non wgmma instructions"
    assert "serialized" in faults(report(remark=serialised))[0]
    assert faults("nothing") == ["the assembler has reported no kernel"]
    assert "not understood" in faults("Compiling entry function 'tie_x' for 'sm_90a'\n")[0]


def compiled(tmp_path, text, status, *strict):
    compiler = tmp_path / "compiler"
    compiler.write_text(f"#!{sys.executable}\nimport sys\nsys.stderr.write({text!r})\nassert sys.argv[-2:] == ['-Xptxas', '-v']\nsys.exit({status})\n")
    compiler.chmod(0o755)
    return subprocess.run([sys.executable, SCRIPT, "--report", tmp_path / "report.json", *strict, "--", compiler, "-O3"], capture_output=True, text=True, timeout=60)


def test_strict_fails_and_otherwise_it_is_a_note(tmp_path):
    assert compiled(tmp_path, report(spilled=8), 0, "--strict").returncode == 1
    noted = compiled(tmp_path, report(spilled=8), 0)
    assert noted.returncode == 0 and noted.stderr.startswith("note: tie_gemm_sm90_bf16")
    assert json.loads((tmp_path / "report.json").read_text())["kernels"]["sm_90a"]["tie_gemm_sm90_bf16"]["registers"] == 90
    failed = compiled(tmp_path, "error: no such header", 2, "--strict")
    assert failed.returncode == 2 and "no such header" in failed.stderr
