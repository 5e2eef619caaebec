import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
import support  # noqa: E402


@pytest.fixture(scope="module")
def node():
    support.need_node()
    with support.real_node() as place:
        yield place


@pytest.fixture
def say(request):
    """Prints at once, whatever pytest captures: these tests take minutes, and their numbers are what they are for."""
    capture = request.config.pluginmanager.getplugin("capturemanager")

    def print_now(text):
        with capture.global_and_fixture_disabled():
            print(text, flush=True)

    return print_now
