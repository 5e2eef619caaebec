"""Follows docs/operators.md on a fresh Debian with the package alone: every command of the page, as it stands there, in the page's order, as root. What the page leaves to
its reader (names, files) is filled in, and what it says to do again is done again; a section that cannot be followed here is listed with the reason.
"""
import re
import subprocess

import pytest

from test_systemd_profile import BUILD, MODEL, SOURCE, boot, fresh_root

PAGE = SOURCE / "docs" / "operators.md"
LIMIT_S = 420
# What a reader puts in. Longer names first.
FILLED_IN = [("NEW.gguf", "/root/new.gguf"), ("OLD.gguf", "/root/model.gguf"), ("PATH", "/root/model.gguf"), ("FILE", "/root/prompt.txt"), ("OTHER", "second"), ("NAME", "smol"),
             (" ID", " pirate"), ('"HEX"', '"\'$KEY\'"')]
SECTIONS_NOT_HERE = {"On a GPU": "there is none"}
PROMPT = "You are a helpful pirate who answers in one short sentence. " + " ".join(f"Rule {i}: be kind to sailor number {i}." for i in range(20))


def commands():
    """The page's commands: (line, whether the page says to do it again until it succeeds)."""
    out = []
    for section in re.split(r"^## ", PAGE.read_text(), flags=re.M):
        if section.splitlines()[0] in SECTIONS_NOT_HERE:
            continue
        for block in re.findall(r"^```\n(.*?)^```", section, re.M | re.S):
            for line in block.splitlines():
                command, _, remark = line.partition(" # ")
                if command.strip():
                    out.append((command.strip(), "again" in remark))
    return out


def filled_in(line):
    for word, value in FILLED_IN:
        line = line.replace(word, value)
    return line


def script():
    steps = []
    for number, (line, again) in enumerate(commands()):
        run = filled_in(line)
        if again:
            run = f"for again in $(seq 90); do {run} && break; sleep 1; done"
        if "$KEY" in run:
            run = "KEY=$(tie keys --policy policy.toml | sed -n 's/^key id *//p'); " + run
        # In the shell itself, since a later line uses what an earlier one defines.
        steps.append(f"{run}\necho STEP {number} $?")
    return "\n".join(steps)


@pytest.fixture(scope="session")
def report(tmp_path_factory):
    root = fresh_root(tmp_path_factory.mktemp("page") / "root", "curl")
    subprocess.run(["chroot", root, "dpkg", "--purge", "tie"], check=True, capture_output=True)
    subprocess.run([SOURCE / "deploy" / "build-deb", BUILD, root / "root" / "tie_NEW.deb", "0.1.1"], check=True)
    another = SOURCE / ".cache" / "models" / "gemma3-270m.gguf"
    for name, file in (("model.gguf", MODEL), ("new.gguf", another if another.exists() else MODEL)):
        (root / "root" / name).write_bytes(file.read_bytes())
    (root / "root" / "prompt.txt").write_text(PROMPT)
    (root / "etc/apt/apt.conf.d/yes").write_text('APT::Get::Assume-Yes "true";\n')
    return boot(root, "export HOME=/root DEBIAN_FRONTEND=noninteractive; cd /root\nset +x\n" + script() + "\necho PAGE-DONE\n"
                "tie node metrics | sed -n 's/^tie_requests_cut_total /CUT /p'\n", started=False, limit_s=LIMIT_S)


def test_every_command_of_the_page_does_what_it_says(report):
    assert "PAGE-DONE" in report.splitlines(), report
    codes = dict(re.findall(r"^STEP (\d+) (\d+)$", report, re.M))
    failed = [f"{line}: exit code {codes.get(str(number))}" for number, (line, _) in enumerate(commands()) if codes.get(str(number)) != "0"]
    assert not failed, "\n".join(failed) + "\n" + report
    assert len(codes) > 30 and "\nCUT 0\n" in report, report


def test_what_is_left_out_or_filled_in_stands_on_the_page():
    assert all(f"\n## {section}\n" in PAGE.read_text() for section in SECTIONS_NOT_HERE)
    for word, _ in FILLED_IN:
        assert any(word in line for line, _ in commands()), word
