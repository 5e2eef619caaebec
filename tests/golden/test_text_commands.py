"""`tie tokenize`, `tie detokenize` and `tie render` as a person calls them, on the slice of public data that the repository carries."""
import json
import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
TIE = pathlib.Path(os.environ.get("TIE_BUILD_DIR", ROOT / "build/release")) / "bin" / "tie"
DATA = ROOT / "tests" / "data" / "text"
VOCABULARIES = DATA / "tokenizers"


def tie(*arguments, text=""):
    done = subprocess.run([str(TIE), *map(str, arguments)], input=text.encode(), capture_output=True, timeout=60)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def lines_of(name):
    with open(VOCABULARIES / f"{name}.expected.jsonl", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


@pytest.mark.parametrize("name", ["byte_level", "characters", "unigram"])
def test_ids_are_those_of_the_usual_library_and_go_back_to_the_text(name):
    path = VOCABULARIES / f"{name}.json"
    for case in lines_of(name)[:8]:
        code, out, err = tie("tokenize", "--json", path, "--special", text=case["text"])
        assert code == 0, err
        assert [int(x) for x in out.split()] == case["ids"], case["text"]
        assert out.count("\n") == 1
        if name == "byte_level":
            assert tie("detokenize", "--json", path, text=out)[1] == case["text"]


def test_special_text_is_recognised_only_when_asked():
    path = VOCABULARIES / "byte_level.gguf"
    special = tie("tokenize", "--gguf", path, "--special", text="<|im_end|>")[1].split()
    plain = tie("tokenize", "--gguf", path, text="<|im_end|>")[1].split()
    assert len(special) == 1 and len(plain) > 1 and special[0] not in plain
    assert tie("detokenize", "--gguf", path, text=" ".join(plain))[1] == "<|im_end|>"


def test_render_takes_a_list_or_an_object_and_the_ids_keep_user_text_text():
    path = VOCABULARIES / "byte_level.gguf"
    messages = [{"role": "user", "content": "say <|im_end|>"}]
    wanted = "<|im_start|>user\nsay <|im_end|><|im_end|>\n<|im_start|>assistant\n"
    assert tie("render", "--gguf", path, text=json.dumps(messages))[1] == wanted
    assert tie("render", "--gguf", path, text=json.dumps({"messages": messages, "add_generation_prompt": False}))[1] == wanted[: wanted.rindex("<|im_start|>")]
    end = tie("tokenize", "--gguf", path, "--special", text="<|im_end|>")[1].strip()
    ids = tie("render", "--gguf", path, "--ids", text=json.dumps(messages))[1].split()
    assert ids.count(end) == 1


def test_render_with_a_template_of_ones_own():
    cases = json.loads((DATA / "chat_templates" / "cases.json").read_text(encoding="utf-8"))
    for case in cases[::6]:
        context = (DATA / "chat_templates" / "contexts" / f"{case['context']}.json").read_text(encoding="utf-8")
        template = DATA / "chat_templates" / "templates" / case["template"]
        code, out, err = tie("render", "--gguf", VOCABULARIES / "byte_level.gguf", "--template", template, "--now", 1721995200, text=context)
        assert (code, out) == (0, case["expected"]), err


@pytest.mark.parametrize(
    "arguments, text, words",
    [
        (["tokenize"], "x", "give one of"),
        (["tokenize", "--gguf", "/nowhere"], "x", "/nowhere"),
        (["tokenize", "--gguf", __file__], "x", "GGUF"),
        (["detokenize", "--gguf", VOCABULARIES / "byte_level.gguf"], "1 two", "two"),
        (["detokenize", "--gguf", VOCABULARIES / "byte_level.gguf"], "999999", "999999"),
        (["render", "--gguf", VOCABULARIES / "byte_level.gguf"], "{", "messages"),
        (["render", "--gguf", VOCABULARIES / "byte_level.gguf"], '[{"content": 1}]', "role"),
    ],
)
def test_faults_are_named(arguments, text, words):
    code, out, err = tie(*arguments, text=text)
    assert code != 0 and out == ""
    assert words in err
