"""`./dev` tells a slip of the pen at once, not after everything has been built."""
import os
import subprocess

import pytest

import check_rules


@pytest.mark.parametrize("words, said", [(["test", "unti"], "unknown suite unti"), (["bench", "pth"], "name one of"), (["bench"], "name one of"), (["tset"], "unknown command: tset")])
def test_a_misspelt_word_is_told_before_anything_is_built(tmp_path, words, said):
    for tool in ("cmake", "apt-get", "npm"):
        (tmp_path / tool).write_text(f"#!/bin/sh\ntouch {tmp_path}/built\nexit 1\n")
        (tmp_path / tool).chmod(0o755)
    done = subprocess.run([check_rules.ROOT / "dev", *words], capture_output=True, text=True, timeout=60, env=dict(os.environ, PATH=f"{tmp_path}:{os.environ['PATH']}"))
    assert done.returncode != 0 and said in done.stderr, done.stderr
    assert not (tmp_path / "built").exists()
