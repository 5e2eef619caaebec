"""The house rules that need no build: includes against the table of rooms, file sizes, header comments, READMEs. Prints each breach; exit 1 if any."""
import pathlib
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from rooms import ROOMS  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
MAX_LINES = 500
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"')
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")


def tracked(pattern):
    text = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard", pattern], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / line for line in text.splitlines() if (ROOT / line).exists()]


def room_of(relative):
    """The longest room name that is a prefix of a path below src/."""
    best = ""
    for room in ROOMS:
        if (relative == room or relative.startswith(room + "/")) and len(room) > len(best):
            best = room
    return best


def include_breaches(files, rooms=None):
    rooms = rooms or ROOMS
    breaches = []
    for path in files:
        relative = str(path.relative_to(ROOT / "src"))
        room = room_of(relative)
        if not room:
            breaches.append(f"{relative}: in no room of tests/rules/rooms.py")
            continue
        test = path.name.endswith(("_test.cc", "_fuzz.cc")) or "/testing/" in relative
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            found = INCLUDE.match(line)
            if not found:
                continue
            target = found.group(1)
            if target.endswith(".pb.h"):
                other = "proto"
            else:
                other = room_of(target)
            if not other or other == room or other in rooms[room]:
                continue
            if test:
                continue
            breaches.append(f"{relative}:{number}: room {room} may not include {target}")
    return breaches


def size_breaches(files):
    breaches = []
    for path in files:
        lines = path.read_text(errors="replace").splitlines()
        excused = any("over 500 lines because" in line for line in lines[:12])
        if len(lines) > MAX_LINES and not excused:
            breaches.append(f"{path.relative_to(ROOT)}: {len(lines)} lines; split it by idea or say in its first lines 'over 500 lines because …'")
    return breaches


def header_breaches(files):
    return [f"{p.relative_to(ROOT)}: a header opens with a comment that says what it is" for p in files
            if p.suffix == ".h" and not any("//" in line for line in p.read_text(errors="replace").splitlines()[:4])]


def readme_breaches(files):
    folders = {}
    for path in files:
        folders.setdefault(path.parent, []).append(path)
    return [f"{folder.relative_to(ROOT)}: a folder of {len(paths)} files wants a README.md" for folder, paths in folders.items()
            if len(paths) >= 3 and folder.name != "testing" and not (folder / "README.md").exists()]


def unfinished_breaches(files):
    return [f"{p.relative_to(ROOT)}:{n}: unfinished work marked" for p in files
            for n, line in enumerate(p.read_text(errors="replace").splitlines(), 1) if UNFINISHED.search(line)]


def main():
    sources = [p for p in tracked("src/**") if p.suffix in (".h", ".cc")]
    breaches = include_breaches(sources) + size_breaches(sources) + header_breaches(sources) + readme_breaches(sources) + unfinished_breaches(sources)
    for breach in breaches:
        print(breach)
    print(f"{len(sources)} files checked, {len(breaches)} breaches")
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main())
