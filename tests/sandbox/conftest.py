import os
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import sandbox_node  # noqa: E402


@pytest.fixture
def make_node(tmp_path_factory):
    """A factory of running nodes; each is stopped and removed afterwards."""
    if not (sandbox_node.HELPERS / "attacker").exists():
        pytest.skip(f"the helpers are not built in {sandbox_node.BUILD}")
    nodes = []

    def make(start=True, **options):
        node = sandbox_node.SandboxNode(tmp_path_factory.mktemp("node"), **options)
        nodes.append(node)
        if start:
            node.up()
        return node

    yield make
    for node in nodes:
        node.clean()


@pytest.fixture(scope="session")
def is_root():
    return os.geteuid() == 0
