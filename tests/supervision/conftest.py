import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
import support  # noqa: E402


@pytest.fixture(scope="module")
def place():
    if not (support.BUILD / "dist").exists():
        pytest.skip(f"no installed tree in {support.BUILD}: ./dev build")
    if not support.model_file():
        pytest.skip("no SmolLM2 model file: ./dev model")
    with support.real_node() as node:
        yield node
