"""`./dev bench engine` and `peers`: bones alone against the limits of the machine, and against llama.cpp on the same file.

A figure that more than 3 % of foreign load or steal disturbed is measured again, up to three times; the least disturbed one is kept and its load is written down.
"""
import contextlib
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
QUIET_PERCENT = 3.0
TRIES = 3

DECODE = [f"decode batch {batch} depth 0" for batch in (1, 4, 8, 16, 32)] + [f"decode batch {batch} depth 2048" for batch in (1, 8)]
PREFILL = [f"prefill {length}" for length in (32, 128, 512, 2048, 8000)]


class Machine:
    """Share of all cores that others (foreign) and the hypervisor (steal) took while a block of code ran."""

    @staticmethod
    def _now():
        fields = [int(v) for v in open("/proc/stat").readline().split()[1:9]]
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        busy = (fields[0] + fields[1] + fields[2] + fields[5] + fields[6]) / os.sysconf("SC_CLK_TCK")
        return time.monotonic(), busy - used.ru_utime - used.ru_stime, fields[7] / os.sysconf("SC_CLK_TCK")

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
    peak = top.get("amx_int8_gops", top["int8_gops"]) if figure["kernels"] == "amx" else top["int8_gops"]
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


PEER_NAMES = ["prefill 512", "prefill 2048", "decode batch 1 depth 0", "decode batch 1 depth 2048", "decode batch 8 depth 0", "decode batch 32 depth 0"]


def peer_run(python, model, threads, flash):
    best, machine = None, Machine()
    for _ in range(2):
        with machine.watch():
            text = subprocess.run([python, HERE / "peer_llama.py", model, str(threads), str(flash)], capture_output=True, text=True, check=True).stdout
        if best is None or machine.disturbance() < best[0]:
            best = (machine.disturbance(), json.loads(text.splitlines()[-1]), machine.foreign, machine.steal)
        if machine.disturbance() <= QUIET_PERCENT:
            break
    return best[1], {"foreign_percent": best[2], "steal_percent": best[3]}


def bench_peers(options, place, python, peer):
    ours, theirs, loads = {n: [] for n in PEER_NAMES}, {(n, flash): [] for n in PEER_NAMES for flash in (0, 1)}, []
    for number in range(options.repeat):  # interleaved: A, B, C, A, B, C …
        print(f"round {number + 1} of {options.repeat}", file=sys.stderr, flush=True)
        for name in PEER_NAMES:
            figure = engine_figure(place.bin / "engine_bench", options.model, place.threads, name)
            ours[name].append(figure["tokens_per_s"])
            loads.append({k: figure[k] for k in ("foreign_percent", "steal_percent")})
        for flash in (0, 1):
            figures, load = peer_run(python, options.model, place.threads, flash)
            loads.append(load)
            for name in PEER_NAMES:
                theirs[(name, flash)].append(figures[name])
    result, rows = {}, []
    for name in PEER_NAMES:
        best = max(statistics.median(theirs[(name, flash)]) for flash in (0, 1))
        mine = statistics.median(ours[name])
        result[name] = {"tie": mine, "llama_cpp": best, "ratio": mine / best}
        rows.append([name, f"{mine:.0f}", f"{best:.0f}", f"{mine / best:.1f}x"])
    worst = max(load["foreign_percent"] + load["steal_percent"] for load in loads)
    title = f"{options.model.name} against {peer}, the better of flash attention on and off, medians of {options.repeat}, {place.threads} threads, foreign load and steal at most {worst:.0f} % in a run"
    place.table(title, ["figure", "tie tok/s", "peer tok/s", "ratio"], rows)
    return {"peers": result, "peers_load": loads}
