"""The official Node SDK against the real node. The script prints one JSON object; the judging is done here."""
import json
import pathlib
import shutil
import subprocess

import pytest

import support

HERE = pathlib.Path(__file__).parent
PACKAGES = support.ROOT / "build/node"


@pytest.fixture(scope="module")
def heard(node, tmp_path_factory):
    binary = PACKAGES / "node_modules/.bin/node"
    if not binary.exists() or not (PACKAGES / "node_modules/openai").exists():
        pytest.skip("no Node 22 with the openai package in build/node: ./dev deps --tests")
    folder = tmp_path_factory.mktemp("node-sdk")
    shutil.copy(HERE / "node/sdk.mjs", folder)
    (folder / "node_modules").symlink_to(PACKAGES / "node_modules")
    done = subprocess.run([str(binary), "sdk.mjs", node.url + "/v1", node.model], cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_models(heard, node):
    assert node.model in heard["models"]


def test_chat_and_stream_agree(heard):
    assert heard["chat"]["choices"][0]["message"]["content"]
    assert heard["streamed"] == heard["chat"]["choices"][0]["message"]["content"]
    assert heard["usage"]["total_tokens"] == heard["chat"]["usage"]["total_tokens"]


def test_stream_helper(heard):
    assert heard["helper"] == heard["streamed"]


def test_legacy_completion(heard):
    assert heard["completion"]


def test_errors_have_their_classes(heard):
    assert heard["errors"] == {"model": ["NotFoundError", 404, "model_not_found"], "temperature": ["BadRequestError", 400, "invalid_value"]}


def test_an_abort_ends_the_stream(heard):
    assert heard["aborted"] is True
    assert heard["after_abort"]


def test_header(heard):
    assert heard["verification"].startswith("unattested; release=")
