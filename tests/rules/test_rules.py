"""The rules of the house as tests: includes, and the symbols of the finished programs."""
import pathlib
import subprocess

import pytest

import check_rules
from rooms import PROGRAM_RULES

ROOT = check_rules.ROOT
PROGRAMS = ROOT / "build/release/dist/libexec/tie"


def sources():
    return [p for p in check_rules.tracked("src/**") if p.suffix in (".h", ".cc")]


def test_no_room_includes_what_it_may_not_use():
    assert check_rules.include_breaches(sources()) == []


def test_the_include_check_sees_a_breach():
    without = {room: set() for room in check_rules.ROOMS}
    assert len(check_rules.include_breaches(sources(), without)) > 20


def demangled_symbols(program):
    text = subprocess.run(["nm", "-C", "--defined-only", str(program)], capture_output=True, text=True, check=True).stdout
    undefined = subprocess.run(["nm", "-CD", str(program)], capture_output=True, text=True).stdout
    return text + undefined


@pytest.mark.parametrize("name", sorted(PROGRAM_RULES))
def test_a_finished_program_carries_only_what_it_may(name):
    program = PROGRAMS / name
    assert program.exists(), f"{name} is not installed: ./dev build"
    symbols = demangled_symbols(program)
    rule = PROGRAM_RULES[name]
    assert [word for word in rule["never"] if word in symbols] == []
    assert [word for word in rule["must"] if word not in symbols] == []


def test_each_program_links_at_most_one_rust_library():
    for program in sorted(PROGRAMS.iterdir()):
        symbols = subprocess.run(["nm", "--defined-only", str(program)], capture_output=True, text=True).stdout
        linked = [name for name in ("edge_kem", "edge_text", "edge_runtime") if f" {name}_" in symbols]
        assert len(linked) <= 1, f"{program.name} links {linked}"


def test_no_paths_or_hosts_of_a_build_machine_in_the_tree():
    hosts = "|".join(["crates" + "[.]io", "pypi" + "[.]org", "registry" + "[.]npmjs", "deb" + "[.]debian"])
    found = subprocess.run(["git", "grep", "-nIE", hosts, "--", ".", ":!*.lock", ":!*lock.json"], cwd=ROOT, capture_output=True, text=True).stdout
    assert found == ""
