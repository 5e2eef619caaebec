"""A whole node whose evidence comes from a TPM (Debian's emulator), and the product's own client judging it."""
import shutil
import subprocess
import tempfile
import time

import pytest
import support

SWTPM = shutil.which("swtpm")


@pytest.fixture(scope="module")
def node():
    support.need_node()
    if not SWTPM:
        pytest.skip("swtpm is not installed: ./dev deps --tests")
    folder = tempfile.mkdtemp(prefix="tie-tpm-", dir="/dev/shm")
    path = f"{folder}/tpm.sock"
    command = [SWTPM, "socket", "--tpm2", "--tpmstate", f"dir={folder}", "--server", f"type=unixio,path={path}", "--flags", "startup-clear,not-need-init"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as emulator:
        try:
            time.sleep(0.5)
            with support.real_node("--tpm", path) as place:
                yield place
        finally:
            emulator.terminate()
    shutil.rmtree(folder)


def policy_for(node, tmp_path, *lines):
    built = (support.BUILD / "dist/share/tie/policy.toml").read_text()
    path = tmp_path / "policy.toml"
    path.write_text(built.replace('["software"]', '["tpm"]') + "\n".join(lines) + "\n")
    node.policy = path
    return path


def tpm_key(node, tmp_path):
    policy_for(node, tmp_path)
    said = node.tie("keys").stdout
    assert "is signed by the TPM key " in said, said
    return said.split("is signed by the TPM key ")[1][:64]


def test_a_client_that_pins_the_tpm_is_answered_and_told_so(node, tmp_path):
    policy_for(node, tmp_path, f'tpm_keys = ["{tpm_key(node, tmp_path)}"]')
    done = node.tie("ask", "Say hello.", "--max-tokens", "4", "--json")
    assert done.returncode == 0, done.stderr
    assert '"verification": "tpm;' in done.stdout.replace('":"', '": "'), done.stdout


def test_the_doctor_judges_a_nodes_evidence_check_by_check(node, tmp_path):
    key = tpm_key(node, tmp_path)
    good = node.tie("doctor", "--node", node.node, "--policy", policy_for(node, tmp_path, f'tpm_keys = ["{key}"]'))
    assert "the TPM measured this release, these models and these prompts" in good.stdout
    assert "MISSING   evidence" not in good.stdout
    bad = node.tie("doctor", "--node", node.node, "--policy", policy_for(node, tmp_path, f'tpm_keys = ["{key}"]', f'tpm_pcrs = ["0:{"1" * 64}"]'))
    assert bad.stdout.count("another value in PCR 0 than the policy pins") == 2, bad.stdout


def test_without_the_pin_nothing_is_sent(node, tmp_path):
    policy_for(node, tmp_path)
    done = node.tie("ask", "Say hello.", "--max-tokens", "4")
    assert done.returncode == 4, "the policy refuses the node"
    assert "which the policy does not pin" in done.stderr


def test_a_client_that_expects_software_evidence_is_not_served_by_surprise(node, tmp_path):
    node.policy = support.BUILD / "dist/share/tie/policy.toml"
    done = node.tie("ask", "Say hello.", "--max-tokens", "4")
    assert done.returncode == 4
    assert "is of kind 'tpm', which the policy does not accept" in done.stderr
