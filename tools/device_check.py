#!/usr/bin/env python3
"""Builds bones with its GPU kernels on this machine, checks them and measures them; writes device-check.json.

For a bare machine with an NVIDIA GPU: Python, CMake, ninja, a C++23 compiler and nvcc; PyTorch for the yardsticks if it is there. The headers of fmt and nlohmann-json come from
the system, from PyTorch or from build/device-headers (`./dev build cuda` elsewhere puts them there). Where this machine's compiler is too old, what `./dev build cuda` has built
(build/cuda) is used instead. Every step has a limit, the whole has one (480 s), and the JSON is written after each step, so that a run that is cut short still tells something.

  tools/device_check.py [--out DIR] [--only STEP,...] [--driver LIB --quick]   (the last two: the emulated driver, in tests)
"""
import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
WHOLE_LIMIT_S = 480
STEPS = ["machine", "build", "yardsticks", "units", "models", "graphs", "ipc", "sanitizer", "kernels", "speed"]
LIMITS_S = {"machine": 20, "build": 200, "yardsticks": 40, "units": 30, "models": 90, "graphs": 30, "ipc": 30, "sanitizer": 90, "kernels": 30, "speed": 120}

# The yardsticks: what this very GPU does when somebody else's library drives it.
TORCH = """
import json, torch, time
def best(f, n):
    f(); torch.cuda.synchronize(); t = time.perf_counter()
    for _ in range(n): f()
    torch.cuda.synchronize(); return (time.perf_counter() - t) / n
a = torch.empty(1 << 30, dtype=torch.uint8, device="cuda"); b = torch.empty_like(a)
copy = 2 * a.numel() / best(lambda: b.copy_(a), 20) / 1e9
x = torch.randn(8192, 8192, dtype=torch.bfloat16, device="cuda"); y = torch.randn_like(x)
peak = 2 * 8192 ** 3 / best(lambda: x @ y, 20) / 1e12
h = torch.empty(1 << 28, dtype=torch.uint8, pin_memory=True); d = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")
print(json.dumps({"ok": True, "gpu": torch.cuda.get_device_name(), "copy_gb_s": copy, "bf16_tflop_s": peak, "pinned_to_gpu_gb_s": h.numel() / best(lambda: d.copy_(h, non_blocking=True), 10) / 1e9}))
"""


def run(words, limit_s, **more):
    """Exit status (None: cut off), output, seconds."""
    began = time.monotonic()
    try:
        done = subprocess.run([str(w) for w in words], capture_output=True, text=True, timeout=limit_s, cwd=ROOT, **more)
        return done.returncode, done.stdout, done.stderr, time.monotonic() - began
    except subprocess.TimeoutExpired as late:
        return None, (late.stdout or b"").decode(errors="replace"), f"cut off after {limit_s:.0f} s", time.monotonic() - began
    except OSError as error:
        return None, "", str(error), time.monotonic() - began


def last_json(text):
    for line in reversed(text.splitlines()):
        try:
            return json.loads(line)
        except ValueError:
            continue
    return None


def step_of(words, limit_s):
    """A step whose program prints one JSON object."""
    status, out, err, seconds = run(words, limit_s)
    found = last_json(out) or {}
    found["ok"] = bool(found.get("ok")) and status == 0
    found["seconds"] = round(seconds, 1)
    if not found["ok"] and err:
        found["stderr"] = err[-2000:]
    return found


class Check:
    def __init__(self, options):
        self.options = options
        self.program = pathlib.Path(options.program) if options.program else ROOT / "build/device/bin/device_check"
        self.fatbin = ROOT / "build/device/tie_kernels.fatbin"

    def device_check(self, command, limit_s, *before):
        words = [*before, self.program, command]
        if self.options.driver:
            words += ["--driver", self.options.driver]
        else:
            words += ["--kernels", self.fatbin]
        return step_of(words + (["--quick"] if self.options.quick else []), limit_s)

    def machine(self, limit_s):
        _, gpu, err, _ = run(["nvidia-smi", "--query-gpu=name,driver_version,memory.total,clocks.max.sm", "--format=csv,noheader"], limit_s)
        versions = {name: run([name, "--version"], 5)[1].strip().splitlines()[-1:] for name in ("nvcc", "cmake", "ninja", "g++")}
        return {"ok": bool(gpu.strip()), "gpu": gpu.strip() or err, "versions": versions, "cpus": os.cpu_count()}

    def headers(self):
        for folder in [pathlib.Path("/usr/include"), ROOT / "build/device-headers", *pathlib.Path(sys.prefix).glob("lib/python3*/*-packages/torch/include")]:
            if (folder / "fmt/format.h").exists() and (folder / "nlohmann/json.hpp").exists():
                return folder
        return ROOT / "build/device-headers"

    def build(self, limit_s):
        nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
        began = time.monotonic()
        configure = ["cmake", "-S", ".", "-B", "build/device", "-G", "Ninja", "-DTIE_BONES_ALONE=ON", "-DCMAKE_BUILD_TYPE=Release", "-DTIE_TESTS=OFF",
                     f"-DTIE_HEADERS={self.headers()}", f"-DTIE_NVCC={nvcc}", f"-DTIE_CUDA_ARCHITECTURES={self.options.arch}"]
        status, out, err, _ = run(configure, 30)
        if status == 0:
            status, out, err, _ = run(["cmake", "--build", "build/device", "--target", "device_check", "tie_cuda_kernels", "-j", str(os.cpu_count())], limit_s - 30)
        found = {"ok": status == 0, "where": "built here", "seconds": round(time.monotonic() - began, 1)}
        if status != 0:
            found["said"] = (out + err)[-3000:]
            ready = ROOT / "build/cuda/bin/device_check"
            if ready.exists():
                self.program, self.fatbin = ready, ROOT / "build/cuda/tie_kernels.fatbin"
                found.update(ok=True, where="taken along from another machine")
        return found

    def yardsticks(self, limit_s):
        return step_of([sys.executable, "-c", TORCH], limit_s)

    def units(self, limit_s):
        return self.device_check("units", limit_s)

    def models(self, limit_s):
        return self.device_check("models", limit_s)

    def graphs(self, limit_s):
        return self.device_check("graphs", limit_s)

    def ipc(self, limit_s):
        return self.device_check("ipc", limit_s)

    def sanitizer(self, limit_s):
        tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
        if not pathlib.Path(tool).exists():
            return {"ok": False, "skipped": "no compute-sanitizer on this machine"}
        runs = {f"{name} of {command}": self.device_check(command, limit_s / 3, tool, "--tool", name, "--error-exitcode", "9")
                for name, command in (("memcheck", "graphs"), ("racecheck", "graphs"), ("memcheck", "units"))}
        return runs | {"ok": True}

    def kernels(self, limit_s):
        return self.device_check("kernels", limit_s)

    def speed(self, limit_s):
        return self.device_check("speed", limit_s)


def fractions(found):
    """The figures of the issue: decode of one sequence by copy bandwidth, prefill by the dense peak, both of this machine."""
    yard, out = found.get("yardsticks", {}), []
    for model in found.get("speed", {}).get("models", []):
        row = {"model": model["model"], "decode_1_tok_s": model["decode"][0]["tok_s"], "prefill_tok_s": model["prefill"]["tok_s"]}
        if yard.get("copy_gb_s"):
            row["decode_1_of_copy_bandwidth"] = model["decode"][0]["weights_gb_s"] / yard["copy_gb_s"]
        if yard.get("bf16_tflop_s"):
            row["prefill_of_bf16_peak"] = model["prefill"]["tflop_s"] / yard["bf16_tflop_s"]
        out.append(row)
    for case in found.get("kernels", {}).get("cases", []) if yard.get("bf16_tflop_s") else []:
        out.append({**case, "of_bf16_peak": case["tflop_s"] / yard["bf16_tflop_s"]})
    return out


def main(arguments):
    parser = argparse.ArgumentParser(description="Checks and measures the GPU kernels on this machine.")
    parser.add_argument("--out", default=os.environ.get("OUT", "."), help="folder of device-check.json (default: $OUT)")
    parser.add_argument("--only", default=",".join(STEPS), help="steps, by comma: " + " ".join(STEPS))
    parser.add_argument("--arch", default="90a", help="the GPU's architecture for nvcc")
    parser.add_argument("--program", help="a device_check that is built already")
    parser.add_argument("--driver", help="another driver library: the emulated one, in tests")
    parser.add_argument("--quick", action="store_true", help="small sizes")
    options = parser.parse_args(arguments)
    steps = options.only.split(",")
    unknown = [s for s in steps if s not in STEPS]
    if unknown:
        parser.error("no such step: " + ", ".join(unknown))
    check, found, began = Check(options), {}, time.monotonic()
    out = pathlib.Path(options.out) / "device-check.json"
    for step in steps:
        left = WHOLE_LIMIT_S - (time.monotonic() - began)
        limit = min(LIMITS_S[step], left)
        found[step] = getattr(check, step)(limit) if limit > 5 else {"ok": False, "skipped": "no time was left"}
        found["seconds"] = round(time.monotonic() - began, 1)
        found["fractions"] = fractions(found)
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(found, indent=1) + "\n")
        print(f"{step:<11} {'ok' if found[step].get('ok') else 'NOT OK'}  {found[step].get('skipped', '')}", flush=True)
    for row in found["fractions"]:
        print(json.dumps(row))
    return 0 if all(found[s].get("ok") or found[s].get("skipped") for s in steps) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
