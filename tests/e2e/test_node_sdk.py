"""The official Node SDK against the real node. The script prints one JSON object; the judging is done here."""
import json
import pathlib
import shutil
import subprocess

import pytest

import support

HERE = pathlib.Path(__file__).parent
PACKAGES = support.ROOT / "build/node"


def run_script(name, node, folder):
    binary = PACKAGES / "node_modules/.bin/node"
    if not binary.exists() or not (PACKAGES / "node_modules/openai").exists():
        pytest.skip("no Node 22 with the openai package in build/node: ./dev deps --tests")
    shutil.copy(HERE / "node" / name, folder)
    (folder / "node_modules").symlink_to(PACKAGES / "node_modules")
    done = subprocess.run([str(binary), name, node.url + "/v1", node.model], cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def heard(node, tmp_path_factory):
    return run_script("sdk.mjs", node, tmp_path_factory.mktemp("node-sdk"))


@pytest.fixture(scope="module")
def structured(node, tmp_path_factory):
    return run_script("structured.mjs", node, tmp_path_factory.mktemp("node-structured"))


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


def test_zod_schemas_are_parsed(structured):
    assert structured["parsed"] == json.loads(structured["parsed_text"])
    assert structured["streamed"] == structured["parsed"]


def test_run_tools_calls_the_function(structured):
    (call,) = structured["called"]
    assert len(call["city"]) <= 20 and call["unit"] in ("celsius", "fahrenheit")
    assert structured["roles"] == ["user", "assistant", "tool"]
    assert structured["goes_on"]


def test_run_tools_streams_the_arguments(structured):
    assert structured["called_streaming"] == structured["called"]
    assert structured["streamed_roles"] == ["user", "assistant", "tool"]
    assert structured["argument_pieces"] > 1


def test_a_schema_that_cannot_be_enforced_is_refused(structured):
    assert structured["refused"] == ["BadRequestError", 400, True]
