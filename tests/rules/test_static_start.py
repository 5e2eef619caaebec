"""What cmake/static_start.py does to a program that it does not know: nothing."""
import pathlib
import shutil
import sys

import check_rules

sys.path.insert(0, str(check_rules.ROOT / "cmake"))
import static_start  # noqa: E402


def untouched(tmp_path, libc):
    program = tmp_path / "program"
    shutil.copy("/bin/true", program)
    assert not static_start.shorten(program, libc)
    return program.read_bytes() == pathlib.Path("/bin/true").read_bytes()


def test_a_program_without_those_functions_stays_as_it_is(tmp_path):
    assert untouched(tmp_path, static_start.KNOWN_LIBC)


def test_another_libc_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(static_start, "functions", lambda program: {name: (0, 64) for name in static_start.BODIES})
    assert untouched(tmp_path, "glibc 2.41")


def test_a_function_that_asks_the_processor_nothing_is_not_the_one(tmp_path, monkeypatch):
    monkeypatch.setattr(static_start, "functions", lambda program: {name: (0, 16) for name in static_start.BODIES})
    assert untouched(tmp_path, static_start.KNOWN_LIBC)


def test_a_known_function_becomes_a_constant_and_nothing_else_changes(tmp_path, monkeypatch):
    program, before = tmp_path / "program", b"head" + b"\x90\x0f\xa2" * 4 + b"mid" + b"\x0f\xa2\x90" * 2 + b"tail"
    program.write_bytes(before)
    program.chmod(0o755)
    monkeypatch.setattr(static_start, "functions", lambda path: {"handle_intel": (4, 12), "get_common_cache_info": (19, 6)})
    assert static_start.shorten(program, static_start.KNOWN_LIBC)
    assert program.read_bytes() == b"head" + bytes.fromhex("b800002000c3") + b"\xcc" * 6 + b"mid" + b"\xc3" + b"\xcc" * 5 + b"tail"
    assert program.stat().st_mode & 0o777 == 0o755
