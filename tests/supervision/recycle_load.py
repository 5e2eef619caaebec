"""Recycles of a real node, with or without requests running against it, and what is there before and after. Used by `./dev bench recycle` and by test_recycles.py."""
import collections
import contextlib
import os
import pathlib
import re
import subprocess

import support
from test_faults import Load, memfds, processes, wait_ready


def descriptors(place):
    """Open sockets and memfds of the node's daemons, by program and kind. Per-request programs come and go; they are counted as processes. The store's memfds are
    conversations, which it keeps for a while and up to its capacity."""
    count = collections.Counter()
    for pid, program in processes(place).items():
        if program in ("tie-cloud-app", "cb_jobhelper"):
            continue
        with contextlib.suppress(OSError):
            for fd in pathlib.Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    target = os.readlink(fd)
                    for kind in ("socket:", "/memfd:"):
                        count[program, kind] += target.startswith(kind) and (program, kind) != ("cache_stored", "/memfd:")
    return count


def inventory(place):
    return {"processes": collections.Counter(processes(place).values()), "memfds": memfds(place), "descriptors": descriptors(place)}


def leaks(before, after, slack=4):
    """What has grown. A daemon may keep a few sockets more or less than at one other moment; a leak grows with every recycle."""
    grown = []
    if after["processes"] != before["processes"]:
        grown.append(f"processes {dict(before['processes'])} -> {dict(after['processes'])}")
    if sum(after["memfds"].values()) > sum(before["memfds"].values()):
        grown.append(f"memfds {dict(before['memfds'])} -> {dict(after['memfds'])}")
    for key, now in after["descriptors"].items():
        if now > before["descriptors"][key] + slack:
            grown.append(f"{key[1]} of {key[0]}: {before['descriptors'][key]} -> {now}")
    return grown


def recycle_once(place):
    """Milliseconds from busy to ready."""
    command = [str(support.tie_program()), "node", "--socket", f"{place.run_dir}/controller/controller.sock", "recycle"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stdout + done.stderr
    value, unit = re.search(r"the last took ([\d.]+) (ms|s)\b", done.stdout).groups()
    return float(value) * (1000 if unit == "s" else 1)


def recycles(place, count, clients, progress=lambda done, count, last_ms: None):
    """(times in ms, outcomes of the requests, what leaked). `progress` hears of each recycle."""
    wait_ready(place)
    before = inventory(place)
    times, outcomes = [], collections.Counter()

    def recycle_all():
        for _ in range(count):
            times.append(recycle_once(place))
            progress(len(times), count, times[-1])

    if clients:
        with Load(place, clients) as load:
            recycle_all()
        outcomes = load.outcomes
        outcomes["strange"] += len(load.strange) - load.outcomes["strange"]
    else:
        recycle_all()
    wait_ready(place)
    return times, outcomes, settled_leaks(place, before)


def settled_leaks(place, before, seconds=20):
    import time

    limit = time.monotonic() + seconds
    while (grown := leaks(before, inventory(place))) and time.monotonic() < limit:
        time.sleep(0.5)
    return grown


def lost(outcomes):
    """Requests that got neither a whole answer nor an error that may be retried."""
    return sum(outcomes[name] for name in ("error in the stream", "cut", "hangs", "strange"))
