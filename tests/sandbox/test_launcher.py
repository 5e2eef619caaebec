"""The launcher keeps a node running and leaves nothing behind."""
import json
import os
import pathlib
import re
import resource
import signal
import socket
import subprocess
import time

import pytest

from sandbox_node import MODEL, ask, connect, processes_of, receive_frame, send_frame, wait_until


@pytest.mark.parametrize("sandbox", ["direct", "bubblewrap"])
def test_up_is_ready_quickly_and_down_leaves_nothing(make_node, sandbox):
    mounts_before = pathlib.Path("/proc/self/mountinfo").read_text()
    started = time.monotonic()
    node = make_node(extra=["--sandbox", sandbox])
    assert node.status()["node"]["sandbox"] == sandbox
    assert time.monotonic() - started < 5
    assert node.status()["node"]["node_ready"]
    assert len(processes_of(str(node.run))) >= 9
    assert node.down().returncode == 0
    assert processes_of(str(node.run)) == {}
    assert not node.run.exists()
    assert pathlib.Path("/proc/self/mountinfo").read_text() == mounts_before


def test_each_connection_gets_a_process_of_its_own_and_it_ends_with_the_connection(make_node):
    node = make_node()
    first, second = connect(node.socket("cb_jobhelper")), connect(node.socket("cb_jobhelper"))
    assert re.fullmatch(r"cb_jobhelper:1 tie-cloud-app:1", ask(first, "hello"))
    assert ask(second, "hello") == "cb_jobhelper:1 tie-cloud-app:1"
    assert len(node.pid_of("cb_jobhelper")) == 2 and len(node.pid_of("tie-cloud-app")) == 2
    first.close()
    wait_until(lambda: len(node.pid_of("cb_jobhelper")) == 1 and len(node.pid_of("tie-cloud-app")) == 1, what="the end of the first pair")
    assert ask(second, "still there") == "cb_jobhelper:1 tie-cloud-app:1"


def test_killing_the_app_ends_the_helper_and_no_other_request(make_node):
    node = make_node()
    first = connect(node.socket("cb_jobhelper"))
    ask(first, "hello")
    victim = node.pid_of("tie-cloud-app")
    second = connect(node.socket("cb_jobhelper"))
    ask(second, "hello")
    os.kill(victim[0], signal.SIGKILL)
    try:
        assert ask(first, "hello").endswith("nothing")
    except (EOFError, BrokenPipeError):
        pass  # the helper noticed before it could answer
    assert ask(second, "hello") == "cb_jobhelper:1 tie-cloud-app:1"


def test_connections_over_the_limit_wait_for_their_turn(make_node):
    node = make_node(extra=["--max-instances", "2", "--prewarmed", "0", "--max-requests", "2"])
    held = [connect(node.socket("tie_cloud_app")) for _ in range(2)]
    for sock in held:
        ask(sock, "hello")
    third = connect(node.socket("tie_cloud_app"))
    send_frame(third, b"hello")
    with pytest.raises(socket.timeout):
        receive_frame(third, timeout=0.3)
    held[0].close()
    assert receive_frame(third) == b"tie-cloud-app:1"


def test_two_hundred_connections_leave_no_process_and_no_descriptor(make_node):
    node = make_node()
    ask(connect(node.socket("tie_cloud_app")), "warm")
    launcher = node.launcher_pid()
    wait_until(lambda: node.pid_of("tie-cloud-app") == [])
    if os.geteuid() != 0:
        pytest.skip("only root may count the descriptors of a process that is not dumpable")
    before = len(os.listdir(f"/proc/{launcher}/fd"))
    for _ in range(200):
        with connect(node.socket("tie_cloud_app")) as sock:
            ask(sock, "hello")
    wait_until(lambda: node.pid_of("tie-cloud-app") == [], what="the end of all instances")
    wait_until(lambda: len(os.listdir(f"/proc/{launcher}/fd")) <= before, what="closed descriptors")


@pytest.mark.parametrize("program, unit", [("key_protectiond", "key_protectiond"), ("cloudboardd", "cloudboardd"), ("tie-model-owner", "tie-model-owner"),
                                           ("workload_servicesd", "workload_servicesd"), ("tie-controllerd", "tie-controllerd"), ("gpuhealthd", "gpuhealthd")])
def test_a_killed_daemon_comes_back(make_node, program, unit):
    node = make_node()
    os.kill(node.pid_of(program)[0], signal.SIGKILL)
    wait_until(lambda: node.unit(unit)["starts"] == 2 and node.unit(unit)["state"] == "ready", what="the restart")
    assert node.status()["node"]["node_ready"]


@pytest.mark.parametrize("program", ["afm-runtime", "tie-status-probe"])
def test_either_end_of_the_container_replaces_all_of_it(make_node, program):
    node = make_node()
    before = set(node.pid_of("afm-runtime") + node.pid_of("tie-status-probe"))
    os.kill(node.pid_of(program)[0], signal.SIGKILL)
    wait_until(lambda: node.unit("afm-runtime@model-one")["starts"] == 2 and node.unit("afm-runtime@model-one")["state"] == "ready")
    after = set(node.pid_of("afm-runtime") + node.pid_of("tie-status-probe"))
    assert len(after) == 2 and not after & before
    assert ask(connect(node.model_socket("runtime")), "hello") == "afm-runtime"


def test_back_off_grows_when_a_daemon_keeps_dying(make_node):
    node = make_node()
    starts = []
    for _ in range(4):
        seen = node.unit("gpuhealthd")["starts"]
        os.kill(node.pid_of("gpuhealthd")[0], signal.SIGKILL)
        at = time.monotonic()
        wait_until(lambda: node.unit("gpuhealthd")["starts"] > seen and node.unit("gpuhealthd")["state"] == "ready")
        starts.append(time.monotonic() - at)
    assert starts[0] < 0.4 and starts[3] > 0.75


@pytest.mark.parametrize("sandbox", ["direct", "bubblewrap"])
def test_kill_9_of_the_launcher_takes_everything_down_and_the_next_up_cleans_up(make_node, sandbox):
    node = make_node(extra=["--sandbox", sandbox])
    held = connect(node.socket("cb_jobhelper"))
    ask(held, "hello")
    os.kill(node.launcher_pid(), signal.SIGKILL)
    wait_until(lambda: processes_of(str(node.run)) == {}, what="the end of every process")
    assert node.run.exists()
    node.up()
    assert node.status()["node"]["node_ready"]
    assert node.down().returncode == 0 and not node.run.exists()


def test_down_after_kill_9_removes_the_folder(make_node):
    node = make_node()
    os.kill(node.launcher_pid(), signal.SIGKILL)
    wait_until(lambda: processes_of(str(node.run)) == {})
    assert node.down().returncode == 0
    assert not node.run.exists()


def test_a_second_node_in_the_same_place_is_refused_and_one_elsewhere_runs(make_node):
    node = make_node()
    second = node.cli("up", "--detach", *node.up_arguments())
    assert second.returncode == 1 and "a node is running" in second.stderr
    assert node.status()["node"]["node_ready"]
    make_node()


def test_a_folder_that_is_not_ours_is_left_alone(make_node):
    node = make_node(start=False)
    node.run.mkdir()
    (node.run / "precious").write_text("x")
    refused = node.cli("up", "--detach", *node.up_arguments())
    assert refused.returncode == 1 and "not a node's" in refused.stderr
    assert node.down().returncode == 1
    assert (node.run / "precious").read_text() == "x"


def test_a_run_directory_on_a_disk_is_refused(make_node, tmp_path):
    if pathlib.Path("/tmp").stat().st_dev == pathlib.Path("/dev/shm").stat().st_dev:
        pytest.skip("/tmp is in memory here")
    node = make_node(start=False)
    arguments = node.up_arguments()
    arguments[arguments.index("--run-dir") + 1] = "/var/tmp/tie-test-run"
    refused = node.cli("up", "--detach", *arguments)
    assert refused.returncode == 1 and "not in memory" in refused.stderr


def test_a_daemon_that_cannot_start_is_named_with_its_reason(make_node):
    node = make_node(start=False)
    broken = node.prefix / "libexec/tie/gpuhealthd"
    broken.write_bytes((node.prefix / "libexec/tie/afm-runtime-init").read_bytes())  # prints its usage and exits with 2
    failed = node.cli("up", "--detach", *node.up_arguments())
    assert failed.returncode == 1
    assert "gpuhealthd exited with code 2" in failed.stderr and "usage" in failed.stderr
    assert processes_of(str(node.run)) == {} and not node.run.exists()


@pytest.mark.parametrize("flag", ["--listen", "--proxy"])
def test_a_port_in_use_is_said_once_with_what_to_do(make_node, flag):
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        node = make_node(start=False, extra=[flag, address])
        done = node.cli("up", "--detach", *node.up_arguments())
        assert done.returncode == 1, done.stdout
        assert done.stderr.count(address) == 1 and f"{flag} ADDRESS:PORT" in done.stderr, done.stderr
        assert "starting it again" not in done.stdout + done.stderr
    assert processes_of(str(node.run)) == {} and not node.run.exists()


def test_a_missing_program_is_named(make_node):
    node = make_node(start=False)
    (node.prefix / "libexec/tie/cloudboardd").unlink()
    failed = node.cli("up", "--detach", *node.up_arguments())
    assert failed.returncode == 1 and "cloudboardd" in failed.stderr


def test_unknown_keys_and_wrong_types_in_node_toml_are_errors(make_node, tmp_path):
    node = make_node(start=False)
    file = tmp_path / "node.toml"
    for text, expected in [("prewarmd_pairs = 3\n", "unknown key 'prewarmd_pairs'"), ("\nprewarmed_pairs = \"3\"\n", "line 2"), ("listen = \"8443\"\n", "ADDRESS:PORT"),
                           ("x = [\n", "line"), ("insecure_no_sandbox = true\n", "unknown key")]:
        file.write_text(text)
        done = node.cli("up", "--config", str(file), *node.up_arguments())
        assert done.returncode == 2 and expected in done.stderr, (text, done.stderr)


def test_flags_win_over_the_file(make_node, tmp_path):
    file = tmp_path / "node.toml"
    file.write_text("listen = \"127.0.0.1:7001\"\nmax_requests = 5\n")
    node = make_node(extra=["--config", str(file), "--listen", "127.0.0.1:7002"])
    line = next(line for line in processes_of(str(node.run)).values() if line.split()[0].endswith("/cloudboardd"))
    assert "--listen 127.0.0.1:7002" in line and "--max-requests 5" in line


def test_only_lines_of_the_programs_own_formats_reach_the_log(make_node):
    node = make_node()
    ask(connect(node.model_socket("runtime")), "say the user's secret prompt")
    log = node.run / "log/afm-runtime@model-one.log"
    wait_until(lambda: log.exists() and "asked to say something" in log.read_text())
    assert "secret" not in log.read_text()


def test_raw_logs_keep_everything_and_say_so(make_node):
    node = make_node(start=False, extra=["--raw-logs"])
    shown = node.up()
    assert "WARNING" in shown.stderr and node.status()["raw_logs"]
    ask(connect(node.model_socket("runtime")), "say the user's secret prompt")
    log = node.run / "log/afm-runtime@model-one.log"
    wait_until(lambda: log.exists() and "secret" in log.read_text())


def test_logs_are_bounded(make_node):
    node = make_node(extra=["--raw-logs"])
    sock = node.model_socket("runtime")
    for _ in range(2500):
        with connect(sock) as s:
            ask(s, "say " + "x" * 1500)
    total = sum(f.stat().st_size for f in (node.run / "log").iterdir())
    assert total < 2.2 * (1 << 20)


def test_one_flipped_byte_gives_another_release(make_node):
    node = make_node(start=False)
    before = node.cli("release", "measure").stdout.strip()
    assert re.fullmatch("[0-9a-f]{64}", before)
    assert before == node.cli("release", "measure", str(node.prefix)).stdout.strip()
    for name in ("libexec/tie/tie-cloud-app", "bin/tie"):
        file = node.prefix / name
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(content)
        after = node.cli("release", "measure").stdout.strip() if name != "bin/tie" else None
        if after:
            assert after != before


def test_the_manifest_is_what_runs(make_node):
    node = make_node()
    manifest = (node.run / "release/manifest").read_text()
    assert node.cli("release", "measure", "--manifest").stdout == manifest
    # A change of the installed tree does not change what a running node runs or says.
    (node.prefix / "libexec/tie/gpuhealthd").unlink()
    os.kill(node.pid_of("gpuhealthd")[0], signal.SIGKILL)
    wait_until(lambda: node.unit("gpuhealthd")["starts"] == 2 and node.unit("gpuhealthd")["state"] == "ready")


def test_doctor_tells_the_truth(make_node):
    node = make_node(start=False)
    done = node.cli("doctor", "--json")
    found = {f["name"]: f for f in json.loads(done.stdout)["findings"]}
    assert found["attestation"]["verdict"] == "missing" and "UNATTESTED" in found["attestation"]["meaning"]
    assert found["user namespaces"]["verdict"] == "ok" and found["sandbox"]["verdict"] == "ok"
    swaps = [line for line in pathlib.Path("/proc/swaps").read_text().splitlines()[1:] if "zram" not in line]
    assert (found["swap"]["verdict"] == "missing") == bool(swaps)
    flags = pathlib.Path("/proc/cpuinfo").read_text()
    assert ("avx2" in found["instruction sets"]["found"]) == (" avx2 " in flags)
    assert done.returncode == 0
    assert node.cli("doctor", "--strict").returncode == 1
    refused = node.cli("doctor", "--json", "--run-dir", "/var/tmp/x")
    assert refused.returncode == 1


def test_without_user_namespaces_up_refuses_and_says_how(make_node):
    """In a user namespace whose own limit of user namespaces is 0, as on a machine that forbids them."""
    node = make_node(start=False)
    script = f"echo 0 > /proc/sys/user/max_user_namespaces && exec {node.prefix}/bin/tie up --detach {' '.join(node.up_arguments())}"
    done = subprocess.run(["unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", script], capture_output=True, text=True, timeout=60)
    if "max_user_namespaces" in done.stderr:
        pytest.skip("cannot lower the limit here")
    assert done.returncode == 1 and "insecure-no-sandbox" in done.stderr, done.stderr


def test_a_full_memory_folder_is_named_with_what_to_do(make_node):
    node = make_node(start=False)
    script = f"mkdir -p {node.run.parent} && mount -t tmpfs -o size=200k tmpfs {node.run.parent} && exec {node.prefix}/bin/tie up --detach {' '.join(node.up_arguments())}"
    done = subprocess.run(["unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "no room" in done.stderr and "--run-dir" in done.stderr, done.stderr


def test_too_few_descriptors_are_named_with_both_numbers(make_node):
    node = make_node(start=False)
    limit = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    done = subprocess.run([f"{node.prefix}/bin/tie", "up", "--detach", *node.up_arguments()], capture_output=True, text=True, timeout=60, preexec_fn=limit)
    assert done.returncode == 1 and "the node needs 256 open files" in done.stderr and "may have 64" in done.stderr, done.stderr


def test_insecure_no_sandbox_is_shown_everywhere(make_node):
    node = make_node(start=False, extra=["--insecure-no-sandbox"])
    shown = node.up()
    assert "WARNING" in shown.stderr and "WITHOUT ISOLATION" in shown.stdout
    assert "tie chat --node 127.0.0.1:" in shown.stdout and f"tie down --run-dir {node.run} " in shown.stdout  # neither is where the defaults lead
    assert node.status()["node"]["sandbox"] == "none"
    assert "NOT ISOLATED" in node.cli("doctor", "--run-dir", str(node.run)).stdout


def test_foreground_up_stops_with_its_terminal(make_node):
    node = make_node(start=False)
    process = subprocess.Popen([str(node.prefix / "bin/tie"), "up", *node.up_arguments()], stdout=subprocess.PIPE, text=True)
    while "The node is ready" not in process.stdout.readline():
        pass
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 0
    assert processes_of(str(node.run)) == {} and not node.run.exists()
    process.stdout.close()


def test_a_recycle_brings_new_assets_to_request_processes_and_only_them(make_node):
    node = make_node()
    staged = node.run / "stage/app-assets"
    assert not (staged / "models" / MODEL / "weights.gguf").exists()
    old_inode = (staged / "models" / MODEL / "tokenizer.img").stat().st_ino
    (node.assets / "models" / MODEL / "tokenizer.img").write_text("a new vocabulary\n")
    (node.assets / "prompts").mkdir()
    (node.assets / "prompts/p.json").write_text("{}")
    assert not (staged / "prompts/p.json").exists()
    os.kill(node.pid_of("tie-status-probe")[0], signal.SIGTERM)
    wait_until(lambda: node.unit("afm-runtime@model-one")["starts"] == 2 and node.unit("afm-runtime@model-one")["state"] == "ready")
    assert (staged / "models" / MODEL / "tokenizer.img").read_text() == "a new vocabulary\n"
    assert (staged / "models" / MODEL / "tokenizer.img").stat().st_ino != old_inode, "a mapped old file must stay whole"
    assert (staged / "prompts/p.json").exists()
    assert "starting it again" in (node.run / "log/launcher.log").read_text()


def test_models_that_are_not_served_are_not_shown_to_any_daemon(make_node):
    node = make_node(start=False, extra=["--model", MODEL])
    other = node.assets / "models/model-two"
    other.mkdir()
    for file in (node.assets / "models" / MODEL).iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    node.up()
    for program in ("tie-model-owner", "workload_servicesd"):
        if os.geteuid() == 0:
            assert os.listdir(f"/proc/{node.pid_of(program)[0]}/root{node.assets}/models") == [MODEL]
    assert [u["name"] for u in node.status()["node"]["units"] if u["name"].startswith("afm-runtime")] == [f"afm-runtime@{MODEL}"]


def test_two_models_get_a_container_each(make_node):
    node = make_node(start=False)
    other = node.assets / "models/model-two"
    other.mkdir()
    for file in (node.assets / "models" / MODEL).iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    node.up()
    assert ask(connect(node.model_socket("runtime", "model-two")), "hello") == "afm-runtime"
    assert len(node.pid_of("afm-runtime")) == 2
    if os.geteuid() == 0:
        seen = [sorted(os.listdir(f"/proc/{pid}/root{node.run}/runtime")) for pid in node.pid_of("afm-runtime")]
        assert sorted(seen) == [["model-one"], ["model-two"]]
