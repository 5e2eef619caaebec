import contextlib
import os
import pathlib
import sys

import openai
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import support  # noqa: E402


def program_or_skip():
    program = support.tie_program()
    if not program:
        pytest.skip(f"`tie` is not built in {support.BUILD}")
    return program


@pytest.fixture(scope="session")
def node():
    """The real node."""
    program_or_skip()
    if "TIE_E2E_NODE" in os.environ:
        node_port, proxy_port = (int(os.environ[name].rsplit(":", 1)[1]) for name in ("TIE_E2E_NODE", "TIE_E2E_PROXY"))
        yield support.Place(node_port, proxy_port, policy=os.environ.get("TIE_E2E_POLICY"), run_dir=os.environ.get("TIE_E2E_RUN_DIR"), model=os.environ.get("TIE_E2E_MODEL", support.MODEL))
        return
    support.need_node()
    with support.real_node() as place:
        yield place


@pytest.fixture(scope="session")
def fake(tmp_path_factory):
    """A pretended node that misbehaves on request, with a real proxy before it."""
    program_or_skip()
    program = support.fake_node_program()
    if not program:
        pytest.skip(f"the pretended node is not built in {support.BUILD}")
    port, proxy_port = support.free_port(), support.free_port()
    policy = tmp_path_factory.mktemp("fake") / "policy.toml"
    with contextlib.ExitStack() as stack:
        stack.enter_context(support.running([program, port, policy], port))
        command = [support.tie_program(), "proxy", "--listen", f"127.0.0.1:{proxy_port}", "--node", f"127.0.0.1:{port}", "--policy", policy]
        stack.enter_context(support.running(command, proxy_port))
        yield support.Place(port, proxy_port, policy=policy, model="test-model")


def client_of(place, **options):
    return openai.OpenAI(base_url=place.url + "/v1", api_key="unused", max_retries=options.pop("max_retries", 0), timeout=60, **options)


@pytest.fixture(scope="session")
def client(node):
    with client_of(node) as made:
        yield made


@pytest.fixture(scope="session")
def fake_client(fake):
    with client_of(fake) as made:
        yield made
