"""docs/claims.md names only tests that exist, and names one for every claim."""
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
GTEST = re.compile(r"^(?:TYPED_)?TEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\)", re.MULTILINE)
PYTEST = re.compile(r"^(?:async )?def (test_\w+)\(|^from \w+ import (test_\w+)", re.MULTILINE)
RUST = re.compile(r"#\[test\]\s*fn (\w+)\(")


def claims(text):
    """(claim, names of its tests) of each row of the tables."""
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if len(cells) == 3 and cells[0] not in ("claim", "---"):
            yield cells[0], re.findall(r"`([^`]+)`", cells[1])


def existing_tests(root):
    names = set()
    for source in (*root.glob("src/**/*_test.cc"), *root.glob("tests/**/*_test.cc")):
        names |= {f"{suite}.{name}" for suite, name in GTEST.findall(source.read_text())}
    for source in root.glob("tests/**/test_*.py"):
        names |= {f"{source.relative_to(root)}::{one or other}" for one, other in PYTEST.findall(source.read_text())}
    for source in root.glob("rust/**/*.rs"):
        if "target" not in source.parts:
            names |= set(RUST.findall(source.read_text()))
    return names


def test_every_claim_names_tests_that_exist():
    rows, exist = list(claims((ROOT / "docs/claims.md").read_text())), existing_tests(ROOT)
    assert len(rows) > 30
    for claim, tests in rows:
        assert tests, f"no test is named for: {claim}"
        for test in tests:
            assert test in exist, f"{claim}: there is no test {test}"


def test_the_check_sees_a_test_that_does_not_exist(tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "src/a_test.cc").write_text("TEST(Real, Thing) {}\n")
    assert existing_tests(tmp_path) == {"Real.Thing"}
    assert list(claims("| claim | tests | open |\n|---|---|---|\n| c | `Real.Thing` `No.Thing` | |\n")) == [("c", ["Real.Thing", "No.Thing"])]
