import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
import support  # noqa: E402


@pytest.fixture(scope="module")
def node():
    if not (support.BUILD / "dist").exists() or not support.model_file():
        pytest.skip("no installed tree, or no model: ./dev build, ./dev model")
    with support.real_node() as place:
        yield place
