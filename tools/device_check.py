#!/usr/bin/env python3
"""Builds bones with its GPU kernels on this machine, checks them and measures them; writes device-check.json.

For a bare machine with an NVIDIA GPU: Python, CMake, ninja, a C++23 compiler and nvcc; PyTorch for the yardsticks if it is there. The headers of fmt and nlohmann-json come from
the system, from a Python package or from build/device-headers (`./dev build cuda` elsewhere puts them there). What cannot be built here is taken from build/cuda, where
`./dev build cuda` has left it. Nothing stops the rest: each step has a limit and each case in it, a case that fails, faults or hangs is told and the others run in a new process,
models that fail run again without the GPU's own units, and the JSON is written after each case, so that a run that is cut short still tells something.

  tools/device_check.py [--out DIR] [--only STEP,...] [--limit-s S] [--driver LIB --quick]   (the last two: the emulated driver, in tests)
"""
import argparse
import json
import os
import pathlib
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
# What tells most comes first. Seconds: of a step, and of a case in it.
STEPS = {"machine": 30, "build": 200, "units": 60, "kernels": 60, "yardsticks": 90, "graphs": 40, "ipc": 40, "speed": 100, "models": 110, "sanitizer": 100}
CASE_LIMIT_S = {"units": 25, "kernels": 25, "graphs": 30, "ipc": 30, "speed": 45, "models": 25}

# The yardsticks: what this very GPU does when somebody else's library drives it. Random numbers: zeros cost less power, and clocks rise.
TORCH = """
import json, torch, time
def best(f, n):
    f(); torch.cuda.synchronize(); t = time.perf_counter()
    for _ in range(n): f()
    torch.cuda.synchronize(); return (time.perf_counter() - t) / n
a = torch.randint(0, 255, (1 << 30,), dtype=torch.uint8, device="cuda"); b = torch.empty_like(a)
copy = 2 * a.numel() / best(lambda: b.copy_(a), 20) / 1e9
x = torch.randn(8192, 8192, dtype=torch.bfloat16, device="cuda"); y = torch.randn_like(x)
peak = 2 * 8192 ** 3 / best(lambda: x @ y, 20) / 1e12
h = torch.empty(1 << 28, dtype=torch.uint8, pin_memory=True); d = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")
pinned = h.numel() / best(lambda: d.copy_(h, non_blocking=True), 10) / 1e9
print(json.dumps({"ok": True, "gpu": torch.cuda.get_device_name(), "copy_gb_s": copy, "bf16_tflop_s": peak, "pinned_to_gpu_gb_s": pinned}))
"""


class Program:
    """A program with everything it starts: read a line at a time, ended whole."""

    def __init__(self, words):
        self.err = tempfile.TemporaryFile()
        self.process = subprocess.Popen([str(w) for w in words], stdout=subprocess.PIPE, stderr=self.err, stdin=subprocess.DEVNULL, cwd=ROOT, start_new_session=True)
        self.rest = b""

    def lines(self, limit_of_line):
        """Each line as it comes; stops when the program ends or `limit_of_line()` seconds pass without one."""
        with selectors.DefaultSelector() as waits:
            waits.register(self.process.stdout, selectors.EVENT_READ)
            until = time.monotonic() + limit_of_line()
            while (left := until - time.monotonic()) > 0 and waits.select(left):
                more = os.read(self.process.stdout.fileno(), 1 << 16)
                if not more:
                    return
                *whole, self.rest = (self.rest + more).split(b"\n")
                for line in whole:
                    yield line.decode(errors="replace")
                    until = time.monotonic() + limit_of_line()
        self.cut_off = True

    cut_off = False

    def end(self):
        """Exit status (None: it was cut off), what it said on stderr."""
        if not self.cut_off:
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.cut_off = True
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            pass  # in the driver, for as long as the GPU likes
        self.process.stdout.close()
        self.err.seek(0)
        said = self.err.read().decode(errors="replace")
        return (None if self.cut_off else self.process.returncode), said


def run(words, limit_s):
    """Exit status (None: cut off or not to be started), stdout, stderr, seconds."""
    began = time.monotonic()
    try:
        program = Program(words)
    except OSError as error:
        return None, "", str(error), 0.0
    until = began + limit_s
    out = "\n".join(program.lines(lambda: until - time.monotonic())) + "\n" + program.rest.decode(errors="replace")
    status, err = program.end()
    return status, out, err if status is not None else f"cut off after {limit_s:.0f} s\n" + err, time.monotonic() - began


def objects(text):
    """The JSON objects among the lines."""
    for line in text.splitlines():
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict):
            yield found


class Check:
    def __init__(self, options):
        self.options = options
        self.program = pathlib.Path(options.program) if options.program else ROOT / "build/device/bin/device_check"
        self.fatbin = ROOT / "build/device/tie_kernels.fatbin"
        self.found = {}
        self.began = time.monotonic()

    # ---- running and keeping ----

    def left(self):
        return self.options.limit_s - (time.monotonic() - self.began)

    def save(self):
        self.found["seconds"] = round(time.monotonic() - self.began, 1)
        self.found["fractions"] = fractions(self.found)
        out = pathlib.Path(self.options.out) / "device-check.json"
        out.parent.mkdir(parents=True, exist_ok=True)
        part = out.with_suffix(".part")
        part.write_text(json.dumps(self.found, indent=1) + "\n")
        part.replace(out)

    def words(self, command):
        more = ["--driver", self.options.driver] if self.options.driver else ["--kernels", self.fatbin]
        return [self.program, command, *more] + (["--quick"] if self.options.quick else [])

    def cases(self, command, limit_s):
        """Every case of a command; one that ends its process is told, and a new process runs those after it."""
        until = time.monotonic() + limit_s
        status, out, err, _ = run(self.words(command) + ["--list"], min(limit_s, 30))
        names = next((o["names"] for o in objects(out) if "names" in o), None)
        if names is None:
            return {"ok": False, "error": err[-2000:] or f"the program could not be asked for its cases: {out[-500:]}"}
        done = {}
        self.found[command] = {"ok": False, "cases": []}
        while len(done) < len(names):
            if until - time.monotonic() < 2:
                break
            before, general = len(done), None
            program = Program(self.words(command) + ["--skip", ",".join(done)])
            for line in program.lines(lambda: min(CASE_LIMIT_S[command], until - time.monotonic())):
                for case in objects(line):
                    if case.get("case") in names:
                        done[case["case"]] = case
                    elif "error" in case:
                        general = case["error"]
                self.found[command]["cases"] = list(done.values())
                self.save()
            status, err = program.end()
            if general and len(done) == before:
                return {"ok": False, "error": general, "stderr": err[-2000:]}
            missing = [n for n in names if n not in done]
            if missing and (len(done) == before or status not in (0, 1)):
                why = "did not end in time" if status is None else f"ended its process with status {status}"
                done[missing[0]] = {"case": missing[0], "ok": False, "error": why, "stderr": err[-2000:]}
        for name in names:
            done.setdefault(name, {"case": name, "ok": False, "error": "no time was left"})
        return {"ok": all(done[n].get("ok") for n in names), "cases": [done[n] for n in names]}

    def without_units(self, command, found, limit_s):
        """The failed cases once more, by portable kernels alone."""
        until = time.monotonic() + limit_s
        failed = [c for c in found.get("cases", []) if not c.get("ok")]
        for case in failed[:4]:
            left = until - time.monotonic()
            if left < 5:
                return
            others = [c["case"] for c in found["cases"] if c is not case]
            _, out, err, _ = run(self.words(command) + ["--portable", "--skip", ",".join(others)], min(left, CASE_LIMIT_S[command]))
            case["portable"] = next((o for o in objects(out) if o.get("case") == case["case"]), {"ok": False, "error": err[-500:]})

    # ---- the steps ----

    def machine(self, limit_s):
        _, gpu, err, _ = run(["nvidia-smi", "--query-gpu=name,driver_version,memory.total,clocks.max.sm,compute_cap", "--format=csv,noheader"], limit_s)
        versions = {name: run([name, "--version"], 5)[1].strip().splitlines()[-1:] for name in ("nvcc", "cmake", "ninja", "g++")}
        return {"ok": bool(gpu.strip()), "gpu": gpu.strip() or err, "versions": versions, "cpus": os.cpu_count()}

    def headers(self):
        """Folders with fmt and nlohmann-json, whichever has them."""
        places = [pathlib.Path("/usr/include"), pathlib.Path("/usr/local/include"), ROOT / "build/device-headers"]
        for packages in {p for p in sys.path if p.endswith("-packages")}:
            places += pathlib.Path(packages).glob("*/include")
        found = []
        for header in ("fmt/format.h", "nlohmann/json.hpp"):
            found += [str(p) for p in places if (p / header).exists()][:1]
        return list(dict.fromkeys(found))

    def arch(self):
        if self.options.arch:
            return self.options.arch
        capability = self.found.get("machine", {}).get("gpu", "").splitlines()[:1]
        return "100a" if capability and capability[0].rstrip().endswith("10.0") else "90a"

    def build(self, limit_s):
        nvcc = next((n for n in (shutil.which("nvcc"), "/usr/local/cuda/bin/nvcc", ROOT / "build/cuda-toolchain/nvidia/cu13/bin/nvcc") if n and pathlib.Path(n).exists()), "nvcc")
        began = time.monotonic()
        configure = ["cmake", "-S", ".", "-B", "build/device", "-G", "Ninja", "-DTIE_BONES_ALONE=ON", "-DCMAKE_BUILD_TYPE=Release", "-DTIE_TESTS=OFF",
                     "-DCMAKE_CXX_FLAGS_RELEASE=-O2 -DNDEBUG", f"-DTIE_HEADERS={';'.join(self.headers())}", f"-DTIE_NVCC={nvcc}", f"-DTIE_CUDA_ARCHITECTURES={self.arch()}"]
        status, out, err, _ = run(configure, 40)
        if status == 0:
            status, out, err, _ = run(["cmake", "--build", "build/device", "--target", "device_check", "tie_cuda_kernels", "-j", str(os.cpu_count()), "--", "-k", "0"], limit_s - 40)
        found = {"ok": status == 0, "where": "built here", "arch": self.arch(), "seconds": round(time.monotonic() - began, 1)}
        report = ROOT / "build/device/tie_kernels.json"
        if report.exists():  # registers and spills by this machine's compiler
            found["notable"] = {f"{name} {gpu}": k for gpu, kernels in json.loads(report.read_text())["kernels"].items() for name, k in kernels.items()
                                if k.get("spilled") or k.get("stack") or "_sm90_" in name or "_sm100_" in name}
        if status == 0:
            return found
        found["said"] = (out + err)[-4000:]
        taken = []
        for name in ("bin/device_check", "tie_kernels.fatbin"):
            here, ready = ROOT / "build/device" / name, ROOT / "build/cuda" / name
            if not here.exists() and ready.exists():
                taken.append(name)
                here = ready
            found[name] = str(here) if here.exists() else "missing"
            if name == "bin/device_check" and not self.options.program:
                self.program = here
            elif name != "bin/device_check":
                self.fatbin = here
        found.update(ok="missing" not in found.values(), where="taken along from another machine: " + ", ".join(taken) if taken else "built in part")
        return found

    def yardsticks(self, limit_s):
        status, out, err, seconds = run([sys.executable, "-c", TORCH], limit_s)
        found = next(objects(out), {"ok": False, "skipped": "no PyTorch here"} if "No module named" in err else {"ok": False, "stderr": err[-2000:]})
        return found | {"seconds": round(seconds, 1)}

    def checked(self, command, limit_s, again=False):
        began = time.monotonic()
        found = self.cases(command, limit_s * (0.75 if again else 1))
        if again:
            self.without_units(command, found, limit_s - (time.monotonic() - began))
        return found | {"seconds": round(time.monotonic() - began, 1)}

    def units(self, limit_s):
        return self.checked("units", limit_s)

    def kernels(self, limit_s):
        return self.checked("kernels", limit_s)

    def graphs(self, limit_s):
        return self.checked("graphs", limit_s, again=True)

    def ipc(self, limit_s):
        return self.checked("ipc", limit_s, again=True)

    def models(self, limit_s):
        return self.checked("models", limit_s, again=True)

    def speed(self, limit_s):
        return self.checked("speed", limit_s, again=True)

    def sanitizer(self, limit_s):
        tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
        if not pathlib.Path(tool).exists():
            return {"ok": False, "skipped": "no compute-sanitizer on this machine"}
        found = {"ok": True}
        until = time.monotonic() + limit_s
        runs = [("memcheck", "graphs"), ("racecheck", "graphs"), ("memcheck", "units"), ("synccheck", "units")]
        for i, (name, command) in enumerate(runs):
            share = (until - time.monotonic()) / (len(runs) - i)
            status, out, err, seconds = run([tool, "--tool", name, "--error-exitcode", "9", *self.words(command)], share)
            said = [line for line in (out + err).splitlines() if line.startswith("=========")]
            one = {"ok": status == 0, "seconds": round(seconds, 1), "said": said[-12:]}
            if any("Device not supported" in line for line in said):
                return {"ok": False, "skipped": "compute-sanitizer does not support this device", "said": said[-5:]}
            if status is None:
                one["skipped"] = "did not end in time"
            found[f"{name} of {command}"] = one
            found["ok"] = found["ok"] and (status == 0 or status is None)
        return found

    def run(self, steps):
        for step in steps:
            limit = min(STEPS[step], self.left() - 3)
            try:
                self.found[step] = getattr(self, step)(limit) if limit > 5 else {"ok": False, "skipped": "no time was left"}
            except Exception as error:  # pylint: disable=broad-except
                self.found[step] = {"ok": False, "error": f"this script failed: {error!r}"}
            self.save()
            one = self.found[step]
            failed = [c["case"] for c in one.get("cases", []) if not c.get("ok")]
            print(f"{step:<11} {'ok' if one.get('ok') else 'NOT OK'}  {one.get('skipped') or one.get('error') or ' '.join(failed)}", flush=True)


def fractions(found):
    """The figures of the issue: decode of one sequence by copy bandwidth, products and attention by the dense peak, both of this machine and this run."""
    yard, out = found.get("yardsticks", {}), []
    kernels = [{"case": case["case"], **k} for case in found.get("kernels", {}).get("cases", []) for k in case.get("kernels") or []]
    copy = yard.get("copy_gb_s") or next((k["gb_s"] for k in kernels if k["kernel"] == "copy"), None)
    peak = yard.get("bf16_tflop_s")
    for k in kernels:
        row = {"case": k["case"], "units": k["units"]}
        if "gb_s" in k:
            row |= {"gb_s": round(k["gb_s"], 1)} | ({"of_copy_bandwidth": round(k["gb_s"] / copy, 3)} if copy else {})
        else:
            row |= {"tflop_s": round(k["tflop_s"], 1)} | ({"of_bf16_peak": round(k["tflop_s"] / peak, 3)} if peak else {})
        out.append(row)
    for case in found.get("speed", {}).get("cases", []):
        for model, name in ((case, case["case"]), (case.get("portable", {}), case["case"] + ", portable kernels")):
            row = {"model": name}
            for d in model.get("decode") or []:
                row[f"decode_{d['batch']}_tok_s"] = round(d["tok_s"], 1)
                if copy and d["batch"] == 1:
                    row["decode_1_of_copy_bandwidth"] = round(d["weights_gb_s"] / copy, 3)
            if "prefill" in model:
                row["prefill_tok_s"] = round(model["prefill"]["tok_s"], 1)
                if peak:
                    row["prefill_of_bf16_peak"] = round(model["prefill"]["tflop_s"] / peak, 3)
            if len(row) > 1:
                out.append(row)
    return out


def main(arguments):
    parser = argparse.ArgumentParser(description="Checks and measures the GPU kernels on this machine.")
    parser.add_argument("--out", default=os.environ.get("OUT", "."), help="folder of device-check.json (default: $OUT)")
    parser.add_argument("--only", default=",".join(STEPS), help="steps, by comma: " + " ".join(STEPS))
    parser.add_argument("--limit-s", type=float, default=470, help="seconds for the whole")
    parser.add_argument("--arch", help="the GPU's architecture for nvcc (default: the machine's)")
    parser.add_argument("--program", help="a device_check that is built already")
    parser.add_argument("--driver", help="another driver library: the emulated one, in tests")
    parser.add_argument("--quick", action="store_true", help="small sizes")
    options = parser.parse_args(arguments)
    steps = options.only.split(",")
    unknown = [s for s in steps if s not in STEPS]
    if unknown:
        parser.error("no such step: " + ", ".join(unknown))
    check = Check(options)
    check.run(steps)
    for row in check.found["fractions"]:
        print(json.dumps(row))
    return 0 if all(check.found[s].get("ok") or check.found[s].get("skipped") for s in steps) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
