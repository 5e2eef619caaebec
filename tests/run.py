"""Runs the test suites and adds up what they say. Called by `./dev test`; needs a built tree and the Python environment of `./dev deps --tests`.

Suites: unit (GoogleTest programs), asan (the same, sanitized), rust (cargo test), rules (house rules, link rules), integration, sandbox, e2e, golden
(pytest), supervision (faults and recycles under load, the search for what requests left, signed assets, metrics), fuzz (each target for a few seconds); by name only: tsan (what shares memory without locks, under ThreadSanitizer), systemd (boots the Debian package), leaks (timing between users, sizes on the wire). The last line is `N passed, N failed, N skipped`; before it, what was skipped and why.
TIE_REQUIRE_ALL=1 makes a skip a failure.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET

ROOT = pathlib.Path(__file__).resolve().parent.parent
SUITES = ["rules", "unit", "rust", "integration", "sandbox", "golden", "e2e", "supervision", "fuzz"]
EXTRA_SUITES = ["asan", "tsan", "systemd", "leaks"]  # by name only: a boot of the Debian package; timing and size measurements
TSAN_PROGRAMS = ["bones_ranks_test"]  # threads over one memory without locks
PROGRAM_LIMIT_S = 900
# A fixed seed: the same inputs in every run, so that a change is judged by what it did. `./dev fuzz` explores.
FUZZ_OPTIONS = ["-max_total_time=5", "-seed=20261130", "-rss_limit_mb=2048", "-timeout=10"]
# The daemons are not dumpable, so the leak checker, which traces its own process, fails in them.
SANITIZED_ENVIRONMENT = {"key_daemons_test": {"ASAN_OPTIONS": "detect_leaks=0"}}


class Tally:
    def __init__(self):
        self.passed = 0
        self.failed = []
        self.skipped = []

    def add(self, other):
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped


def run_gtest(program, name_filter, label, before=()):
    tally = Tally()
    with tempfile.NamedTemporaryFile(suffix=".json") as report:
        command = [*before, str(program), f"--gtest_output=json:{report.name}", "--gtest_brief=1"]
        if name_filter:
            command.append(f"--gtest_filter=*{name_filter}*")
        started = time.time()
        environment = dict(os.environ, **(SANITIZED_ENVIRONMENT.get(program.name, {}) if label else {}))
        try:
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=PROGRAM_LIMIT_S, cwd=ROOT, env=environment)
            code, output = done.returncode, done.stdout + done.stderr
        except subprocess.TimeoutExpired as late:
            code, output = -1, f"over {PROGRAM_LIMIT_S} s\n{late.stdout or ''}"
        try:
            data = json.load(open(report.name))
        except ValueError:
            data = {"testsuites": []}
    seen_failure = False
    for suite in data.get("testsuites", []):
        for case in suite["testsuite"]:
            full = f"{label}{program.name}: {suite['name']}.{case['name']}"
            if case.get("failures"):
                seen_failure = True
                tally.failed.append(full)
            elif case.get("result") == "SKIPPED":
                reasons = [line.strip() for line in output.splitlines() if "skip" in line.lower() and ".cc" not in line]
                tally.skipped.append((full, (case.get("skipped") or [{}])[0].get("message", "") or (reasons[0] if reasons else "")))
            elif case.get("result") == "COMPLETED":
                tally.passed += 1
    if code != 0 and not seen_failure:
        tally.failed.append(f"{label}{program.name}: exit code {code}")
    mark = "ok " if code == 0 else "FAIL"
    print(f"  {mark} {label}{program.name} ({tally.passed} passed, {time.time() - started:.1f} s)", flush=True)
    if code != 0:
        print(output[-6000:], flush=True)
    return tally


def run_programs(folder, name_filter, label="", leave_out=()):
    tally = Tally()
    programs = sorted(p for p in folder.glob("*") if p.is_file() and os.access(p, os.X_OK) and p.name not in leave_out)
    if not programs:
        tally.failed.append(f"no test programs in {folder.relative_to(ROOT)}: build first")
        return tally
    with concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
        for one in pool.map(lambda p: run_gtest(p, name_filter, label), programs):
            tally.add(one)
    return tally


def run_tsan(name_filter):
    tally = Tally()
    for name in TSAN_PROGRAMS:
        program = ROOT / "build/tsan/tests" / name
        if not program.exists():
            tally.failed.append(f"tsan/{name} is not built: ./dev build tsan, or cmake --preset tsan && ninja -C build/tsan {name}")
            continue
        tally.add(run_gtest(program, name_filter, "tsan/", before=["setarch", "-R"]))  # its shadow memory does not fit every random layout
    return tally


def run_pytest(folder, name_filter):
    tally = Tally()
    if not any(folder.rglob("test_*.py")):
        return tally
    with tempfile.NamedTemporaryFile(suffix=".xml") as report:
        command = [sys.executable, "-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider", f"--junitxml={report.name}", "-x" if os.environ.get("TIE_FAIL_FAST") else "-q", str(folder)]
        if name_filter:
            command += ["-k", name_filter]
        env = dict(os.environ, PYTHONDONTWRITEBYTECODE="1")
        code = subprocess.run(command, cwd=ROOT, env=env).returncode
        try:
            cases = list(ET.parse(report.name).getroot().iter("testcase"))
        except ET.ParseError:
            cases = []
    seen_failure = False
    for case in cases:
        full = f"{case.get('classname')}.{case.get('name')}"
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            seen_failure = True
            tally.failed.append(full)
        elif skipped is not None:
            tally.skipped.append((full, skipped.get("message", "")))
        else:
            tally.passed += 1
    if code not in (0, 5) and not seen_failure:
        tally.failed.append(f"pytest {folder.relative_to(ROOT)}: exit code {code}")
    return tally


def run_rust(name_filter):
    tally = Tally()
    command = ["cargo", "test", "--release", "--locked", "--workspace", "--target-dir", str(ROOT / "build/rust-target/tests")]
    command += ([name_filter] if name_filter else []) + ["--", "--show-output"]
    done = subprocess.run(command, cwd=ROOT / "rust", capture_output=True, text=True, errors="replace")
    for line in done.stdout.splitlines():
        if " schemas, " in line or " masks, " in line:  # what the suites counted
            print("    " + line)
        if line.startswith("test ") and line.endswith("... ok"):
            tally.passed += 1
        elif line.startswith("test ") and line.endswith("FAILED"):
            tally.failed.append("rust: " + line[5:].split(" ...")[0])
        elif line.startswith("test ") and "... ignored" in line:
            tally.skipped.append(("rust: " + line[5:].split(" ...")[0], "ignored"))
    if done.returncode != 0:
        print((done.stdout + done.stderr)[-6000:])
        if not tally.failed:
            tally.failed.append(f"cargo test: exit code {done.returncode}")
    return tally


def run_fuzz(name_filter):
    tally = Tally()
    folder = ROOT / "build/fuzz/fuzz"
    if subprocess.run(["cmake", "--preset", "fuzz"], cwd=ROOT, capture_output=True).returncode != 0:
        tally.failed.append("fuzz: configuring failed")
        return tally
    if subprocess.run(["cmake", "--build", "--preset", "fuzz", "--target", "fuzz_all"], cwd=ROOT, stdout=subprocess.DEVNULL).returncode != 0:
        tally.failed.append("fuzz: the build failed")
        return tally
    for program in sorted(folder.glob("fuzz_*")):
        if name_filter and name_filter not in program.name:
            continue
        corpus = ROOT / "build/fuzz/corpus" / program.name
        corpus.mkdir(parents=True, exist_ok=True)
        seeds = [str(p) for p in [ROOT / "tests/data/fuzz" / program.name] if p.is_dir()]
        done = subprocess.run([str(program), *FUZZ_OPTIONS, str(corpus), *seeds],
                              cwd=ROOT / "build/fuzz", capture_output=True, text=True, errors="replace")
        if done.returncode == 0:
            tally.passed += 1
            print(f"  ok  {program.name}", flush=True)
        else:
            tally.failed.append(program.name)
            print(done.stderr[-4000:], flush=True)
    return tally


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", nargs="*", help=f"any of {' '.join(SUITES + EXTRA_SUITES)} (default: {' '.join(SUITES)})")
    parser.add_argument("-k", dest="name", help="only tests whose name contains this")
    parser.add_argument("--with-asan", action="store_true", help="run the sanitized unit tests too (./dev build asan first)")
    parser.add_argument("--check", action="store_true", help="look at these arguments and run nothing")
    options = parser.parse_args()
    unknown = [s for s in options.suites if s not in SUITES + EXTRA_SUITES]
    if unknown:
        parser.error(f"unknown suite {unknown[0]}; there are {' '.join(SUITES + EXTRA_SUITES)}")
    if options.check:
        return 0
    suites = options.suites or SUITES + (["asan"] if options.with_asan else [])

    total = Tally()
    for suite in suites:
        print(f"== {suite}", flush=True)
        started = time.time()
        if suite == "unit":
            tally = run_programs(ROOT / "build/release/tests", options.name)
        elif suite == "tsan":
            tally = run_tsan(options.name)
        elif suite == "asan":
            tally = run_programs(ROOT / "build/asan/tests", options.name, "asan/", leave_out={"bones_golden_test"})
        elif suite == "rust":
            tally = run_rust(options.name)
        elif suite == "fuzz":
            tally = run_fuzz(options.name)
        else:
            tally = run_pytest(ROOT / "tests" / suite, options.name)
        print(f"== {suite}: {tally.passed} passed, {len(tally.failed)} failed, {len(tally.skipped)} skipped ({time.time() - started:.0f} s)", flush=True)
        total.add(tally)

    if total.skipped:
        print("\nSkipped:")
        for name, why in total.skipped:
            print(f"  {name}: {' '.join(why.split())[:200]}")
    if os.environ.get("TIE_REQUIRE_ALL") == "1":
        total.failed += [f"skipped though everything is required: {name}" for name, _ in total.skipped]
    if total.failed:
        print("\nFailed:")
        for name in total.failed:
            print(f"  {name}")
    print(f"\n{total.passed} passed, {len(total.failed)} failed, {len(total.skipped)} skipped")
    return 1 if total.failed or total.passed == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
