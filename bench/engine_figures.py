"""`./dev bench engine`: bones alone against the limits of the machine; and what peers.py needs of it.

A figure that more than 3 % of foreign load or steal disturbed is measured again, up to three times; the least disturbed one is kept and its load is written down.
"""
import contextlib
import json
import os
import resource
import subprocess
import time

QUIET_PERCENT = 3.0
TRIES = 3

DECODE = [f"decode batch {batch} depth 0" for batch in (1, 4, 8, 16, 32)] + [f"decode batch {batch} depth 2048" for batch in (1, 8)]
PREFILL = [f"prefill {length}" for length in (32, 128, 512, 2048, 8000)]


class Machine:
    """Share of all cores that others (foreign) and the hypervisor (steal) took while a block of code ran. Ours are the children that ended, and the seconds that `running` says."""

    def __init__(self, running=lambda: 0.0):
        self.running = running

    def _now(self):
        fields = [int(v) for v in open("/proc/stat").readline().split()[1:9]]
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        busy = (fields[0] + fields[1] + fields[2] + fields[5] + fields[6]) / os.sysconf("SC_CLK_TCK")
        return time.monotonic(), busy - used.ru_utime - used.ru_stime - self.running(), fields[7] / os.sysconf("SC_CLK_TCK")

    @contextlib.contextmanager
    def watch(self):
        before = self._now()
        yield
        after = self._now()
        core_seconds = (after[0] - before[0]) * os.cpu_count()
        self.foreign = max(0.0, 100 * (after[1] - before[1]) / core_seconds)
        self.steal = 100 * (after[2] - before[2]) / core_seconds

    def disturbance(self):
        return self.foreign + self.steal


def engine_figure(binary, model, threads, name, repeat=1, seconds=0.4):
    """One figure of engine_bench, None when the model's context is too short for it."""
    out = binary.parent.parent / "engine-bench.jsonl"
    command = [binary, "--gguf", model, "--threads", str(threads), "--repeat", str(repeat), "--seconds", str(seconds), "--json", out, "--exactly", name]
    best = None
    for _ in range(TRIES):
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        lines = out.read_text().splitlines()
        if not lines:
            return None
        figure = json.loads(lines[0])
        if best is None or figure["foreign_percent"] + figure["steal_percent"] < best["foreign_percent"] + best["steal_percent"]:
            best = figure
        if best["foreign_percent"] + best["steal_percent"] <= QUIET_PERCENT:
            break
    return best


def fractions(figure, top):
    """Of the read bandwidth, and of the int8 peak (products of the layers and, in decode, the head)."""
    read = 100 * figure["gb_per_s"] / top["read_gb_s"]
    peak = top["amx_int8_gops" if figure["kernels"] == "amx" else "int8_gops"]
    int8 = 100 * figure["gop_per_s"] / peak
    return (f"{read:.0f} %" if figure["name"].startswith("decode") else ""), f"{int8:.0f} %"


def bench_engine(options, place):
    figures, rows, top = {}, [], None
    for name in DECODE + PREFILL:
        figure = engine_figure(place.bin / "engine_bench", options.model, place.threads, name, options.repeat)
        if top is None:  # of a working set as large as this model
            top = place.limits(round(figure["weight_mb"]))[place.threads]
        if figure is None:
            continue
        figures[name] = figure
        rows.append([name, f"{figure['tokens_per_s']:.0f}", f"{figure['step_ms']:.2f}", *fractions(figure, top), f"{figure['foreign_percent']:.0f} + {figure['steal_percent']:.0f} %"])
    title = f"engine, {options.model.name}, {place.threads} threads, kernels {figures['prefill 512']['kernels']}, {figures['prefill 512']['weight_mb']:.0f} MB of weights a step; limits: {top['read_gb_s']:.1f} GB/s of as much memory, int8 {top['int8_gops']:.0f} GOP/s"
    place.table(title, ["figure", "tokens/s", "ms/step", "of read", "of int8", "foreign + steal"], rows)
    return {"limits": top, "engine": figures}
