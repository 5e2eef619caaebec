import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
import support  # noqa: E402


@pytest.fixture(scope="module")
def place():
    support.need_node()
    with support.real_node() as node:
        yield node
