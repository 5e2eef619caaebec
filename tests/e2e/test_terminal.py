"""`tie` in the terminal against the real node."""
import json
import os
import re
import subprocess

import support


def test_ask_prints_the_answer_alone(node):
    done = node.tie("ask", "Say hello.", "--max-tokens", "12", "--temperature", "0", "--stats")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert "unattested; release=" in done.stderr and "tokens/s" in done.stderr


def test_ask_as_json_from_standard_input(node):
    done = node.tie("ask", "--json", "--max-tokens", "8", "--temperature", "0", input="Say hello.")
    answer = json.loads(done.stdout)
    assert answer["complete"] is True and answer["text"] and answer["model"] == node.model
    assert answer["usage"]["completion_tokens"] <= 8


def test_chat_remembers_and_leaves(node):
    done = node.tie("chat", "--max-tokens", "12", "--temperature", "0", input="Hello\n/keys\n/clear\nHello again\n/exit\n")
    assert done.returncode == 0, done.stderr
    assert "UNATTESTED" in done.stdout and done.stdout.count("unattested; release=") == 2


def test_chat_says_which_command_it_does_not_know(node):
    done = node.tie("chat", input="/wat is this\n/exit\n")
    assert done.returncode == 0 and "There is no command /wat." in done.stdout and "/clear" in done.stdout


def test_an_unknown_word_is_named_with_what_was_meant(node):
    for words, said in [(["bogus"], "'bogus'"), (["node", "stauts"], "Did you mean: tie node status?"), (["modle"], "tie model"), (["release", "mesure"], "tie release measure")]:
        done = node.tie(*words)
        assert done.returncode == 2 and said in done.stderr, done.stderr


def test_bytes_that_are_no_text_are_refused_here_and_a_chat_goes_on(node):
    done = node.tie("ask", b"a\xff\xfe")
    assert done.returncode == 2 and "not UTF-8" in done.stderr and "protobuf" not in done.stderr, done.stderr
    done = subprocess.run([str(support.tie_program()), "chat", "--node", node.node, "--max-tokens", "4"], input=b"caf\xe9\n/keys\nHello\n/exit\n", capture_output=True, timeout=60)
    assert done.returncode == 0 and b"not UTF-8" in done.stderr and b"protobuf" not in done.stderr and b"from the cache" in done.stderr, done.stderr


def test_a_question_without_quotes_is_told_so(node):
    done = node.tie("ask", "Why", "is", "the", "sky", "blue?")
    assert done.returncode == 2 and "'is'" in done.stderr and "quotes" in done.stderr, done.stderr
    done = node.tie("ask", "hi", "--bogus")
    assert done.returncode == 2 and "no option --bogus" in done.stderr, done.stderr


def test_a_message_that_does_not_fit_is_not_kept_and_the_way_out_is_named(node):
    done = node.tie("chat", "--max-tokens", "4", input="Hello\n" + "word " * 9000 + "\nHello again\n/exit\n")
    assert done.returncode == 0 and "8192" in done.stderr and "/clear" in done.stderr and done.stderr.count("from the cache") == 2, done.stderr


def test_a_turn_that_comes_at_once_waits_for_what_the_long_one_before_it_leaves(node):
    long = "alpha beta gamma delta epsilon " * 400
    for _ in range(3):  # the node waits for 2 s at most: too little on a machine that is very busy
        done = node.tie("chat", "--max-tokens", "8", "--temperature", "0", "--stats", input=f"{long}\nhi\n/exit\n")
        reused = [int(n) for n in re.findall(r"(\d+) from cache", done.stderr)]
        assert done.returncode == 0 and len(reused) == 2 and reused[0] == 0, done.stderr
        if reused[1] >= 1900:
            return
    raise AssertionError(f"the second turn took over {reused[1]} tokens")


def test_where_no_node_is_the_operators_commands_say_so_with_their_own_exit_code(node, tmp_path):
    environment = dict(os.environ, TIE_RUN=str(tmp_path / "none"))
    for words in (["status"], ["node", "status"], ["node", "recycle"], ["node", "metrics"]):
        done = subprocess.run([str(support.tie_program()), *words], capture_output=True, text=True, timeout=60, env=environment)
        assert done.returncode == 3 and "tie up" in done.stderr, (words, done.stderr)


def test_the_help_of_up_is_that_of_up(node):
    done = node.tie("up", "--help")
    assert done.returncode == 0 and "Usage: tie up" in done.stdout and "--detach" in done.stdout and "tie-launcher" not in done.stdout
    for default in ("--listen TEXT=127.0.0.1:8443", "--proxy TEXT=127.0.0.1:8123", "--prewarmed UINT=3", "--max-requests UINT=32", "--cache-mib UINT=1024"):
        assert default in done.stdout, default
    assert "[]" not in done.stdout


def test_keys_shows_each_check(node):
    done = node.tie("keys")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "X-Wing" in done.stdout and "UNATTESTED" in done.stdout and "FAIL" not in done.stdout
    assert node.model in done.stdout


def test_models_lists_the_model(node):
    done = node.tie("models")
    assert done.returncode == 0 and node.model in done.stdout and "8192" in done.stdout


def test_a_wrong_model_names_the_right_ones(node):
    done = node.tie("ask", "hi", "--model", "nope")
    assert done.returncode == 1 and node.model in done.stderr


def test_a_credential_is_one_printable_line(node, tmp_path):
    file = tmp_path / "credential"
    file.write_text("one\ntwo\n")
    done = node.tie("ask", "hi", "--credential-file", str(file))
    assert done.returncode == 1 and "one line" in done.stderr and "two" not in done.stderr
    file.write_text("one\n")
    assert node.tie("ask", "hi", "--max-tokens", "4", "--credential-file", str(file)).returncode == 0


def test_yesterdays_policy_refuses_a_changed_release(node, tmp_path):
    shown = node.tie("policy", "show").stdout
    release = next(w for w in shown.replace('"', " ").split() if len(w) == 64)
    changed = release[:-1] + ("0" if release[-1] != "0" else "1")
    policy = tmp_path / "policy.toml"
    policy.write_text(shown.replace(release, changed))
    done = subprocess.run([str(support.tie_program()), "ask", "hi", "--node", node.node, "--policy", str(policy)], capture_output=True, text=True, timeout=30)
    assert done.returncode == 4 and done.stdout == ""


def test_model_assets_are_checked(tmp_path):
    import os
    environment = dict(os.environ, TIE_ASSETS=str(tmp_path))

    def tie(*words):
        return subprocess.run([str(support.tie_program()), *words], capture_output=True, text=True, timeout=60, env=environment)

    if not support.tie_program() or not support.model_file():
        import pytest
        pytest.skip("no `tie` or no model file")
    assert tie("model", "add", str(support.model_file()), "--name", "m").returncode == 0
    assert tie("model", "add", str(support.model_file()), "--name", "m").returncode == 0  # the same again changes nothing
    other = tmp_path / "other.gguf"
    other.write_bytes(support.model_file().read_bytes() + b"\0")
    assert "another model" in tie("model", "add", str(other), "--name", "m").stderr
    for bad in ("../m", ".m", "a/b", "", "x" * 60, "a b"):
        assert tie("model", "add", str(support.model_file()), f"--name={bad}").returncode == 1 or bad == ""
    assert tie("model", "list", "--quiet").stdout.split()[0] == "m"
    assert tie("model", "verify").returncode == 0
    image = tmp_path / "models/m/tokenizer.img"
    data = bytearray(image.read_bytes())
    data[len(data) // 2] ^= 1
    image.write_bytes(data)
    broken = tie("model", "verify", "m")
    assert broken.returncode == 1 and "tokenizer.img" in broken.stderr
    assert tie("model", "remove", "m").returncode == 0
    assert tie("model", "list", "--quiet").stdout == ""
