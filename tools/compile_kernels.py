#!/usr/bin/env python3
"""Compiles the GPU kernels and reads what the assembler says of them: registers, stack, spills, waits that it had to add.

  tools/compile_kernels.py --report FILE [--strict] -- NVCC ARGS...

Runs the command with the assembler's report, writes it as JSON, and with --strict fails where a kernel would be slow or empty on a GPU without any test noticing: a spill or a
stack in a kernel that has none by its design, wgmma made to wait for each product, a kernel of one GPU's units that came out empty for that GPU.
"""
import argparse
import json
import pathlib
import re
import subprocess
import sys

# Sine and cosine of huge angles, which never come (angles are below a turn), keep a table on the stack.
STACK_BYTES = {"tie_finish_heads": 32}
# Which GPU's units a kernel is made of; for another GPU it is empty on purpose, with a handful of registers.
UNITS = {"sm90": "sm_90a", "sm100": "sm_100a"}
EMPTY_REGISTERS = 16
ENTRY = re.compile(r"Compiling entry function '(\w+)' for '(\w+)'")
STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")
REMARK = re.compile(r"\bwarning\b|\(C75\d\d\)|Potential Performance Loss|serializ", re.IGNORECASE)


def kernels_in(text):
    """{GPU: {kernel: {"registers", "stack", "spilled"}}}, and the lines that speak of trouble."""
    found, remarks, own = {}, [], None
    for line in text.splitlines():
        if match := ENTRY.search(line):
            own = found.setdefault(match[2], {}).setdefault(match[1], {})
        elif (match := STACK.search(line)) and own is not None:
            own.update(stack=int(match[1]), spilled=int(match[2]) + int(match[3]))
        elif (match := USED.search(line)) and own is not None:
            own["registers"] = int(match[1])
        elif REMARK.search(line):
            remarks.append(line.strip())
    return found, remarks


def faults_of(found, remarks):
    faults = [f"the compiler warns: {line}" for line in remarks]
    if not found:
        faults.append("the assembler has reported no kernel")
    for gpu, kernels in found.items():
        for name, k in kernels.items():
            if "registers" not in k or "stack" not in k:
                faults.append(f"{name} for {gpu}: the assembler's report is not understood")
                continue
            if k["spilled"]:
                faults.append(f"{name} for {gpu}: {k['spilled']} bytes of registers are spilled")
            if k["stack"] > STACK_BYTES.get(name, 0):
                faults.append(f"{name} for {gpu}: a stack of {k['stack']} bytes (an array whose index is not known when it is compiled?)")
            units = next((own for word, own in UNITS.items() if f"_{word}_" in name), None)
            if units == gpu and k["registers"] <= EMPTY_REGISTERS:
                faults.append(f"{name} for {gpu}: empty")
    return faults


def main(arguments):
    parser = argparse.ArgumentParser(description="Compiles the GPU kernels and reads the assembler's report.")
    parser.add_argument("--report", required=True)
    parser.add_argument("--strict", action="store_true")
    parser.add_argument("command", nargs="+", help="-- NVCC ARGS...")
    options = parser.parse_args(arguments)
    # One GPU after another: their reports would mix.
    done = subprocess.run([*options.command, "--threads", "1", "-Xptxas", "-v"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False)
    found, remarks = kernels_in(done.stdout)
    if done.returncode != 0:
        sys.stderr.write(done.stdout)
        return done.returncode
    pathlib.Path(options.report).write_text(json.dumps({"kernels": found, "remarks": remarks}, indent=1) + "\n")
    faults = faults_of(found, remarks)
    for fault in faults:
        print(("" if options.strict else "note: ") + fault, file=sys.stderr)
    return 1 if faults and options.strict else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
