"""The compromise harness: a program is started by the product's own launcher in the victim's place, with the victim's profile, and attacks.
Every attack must fail there; and every attack must succeed in the control run, which is the same launcher with --insecure-no-sandbox and
without the victim's serving mode, so that each of these tests can fail."""
import ctypes
import os
import socket
import subprocess
import sys

import pytest

import sandbox_node
from sandbox_node import MODEL, ask, connect, receive_frame, send_frame

VICTIMS = {"cb_jobhelper": "attacker", "tie-cloud-app": "attacker", "afm-runtime": "attacker", "cloudboardd": "attacker"}
PER_REQUEST = ["cb_jobhelper", "tie-cloud-app"]
DAEMONS = ["afm-runtime", "cloudboardd"]
SHM_KEY = 0x71E00000 + os.getpid() % 65536
NEEDS_ANOTHER = {"read_memory_file", "read_environment_of", "read_memory_call", "trace", "signal_another", "steal_descriptor"}


class Field:
    """The node with attackers in place, and around it the things that they are after."""

    def __init__(self, node, place):
        self.node = node
        self.bystander = subprocess.Popen([sys.executable, "-c", "import time\nwhile True: time.sleep(1)"])
        self.tcp = socket.create_server(("127.0.0.1", 0))
        self.udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.udp.bind(("127.0.0.1", 0))
        self.abstract_name = f"tie-harness-{os.getpid()}-{place.name}"
        self.abstract = socket.socket(socket.AF_UNIX)
        self.abstract.bind("\0" + self.abstract_name)
        self.abstract.listen()
        self.secret = place / "secret-of-the-host"
        self.secret.write_text("secret")

    def close(self):
        self.bystander.kill()
        self.bystander.wait()
        for s in (self.tcp, self.udp, self.abstract):
            s.close()

    def attacker(self, victim):
        path = {"cb_jobhelper": self.node.socket("cb_jobhelper"), "tie-cloud-app": self.node.socket("tie_cloud_app"),
                "afm-runtime": self.node.model_socket("runtime"), "cloudboardd": self.node.socket("cloudboard-control")}[victim]
        return connect(path)

    def words(self, attack, victim, other_pid):
        """What the attacker is told: the harness is generous, a real attacker would have to guess."""
        run, assets = self.node.run, self.node.assets
        own = {"cb_jobhelper": {"cb_jobhelper", "tie_cloud_app", "wsd-decap"}, "tie-cloud-app": {"tie_cloud_app", "runtime", "kvxfer"},
               "afm-runtime": {"runtime", "probe", "kvxfer", "weights"},
               "cloudboardd": {"cloudboard-control", "cb_jobhelper", "wsd-authorize", "wsd-claims", "cache"}}[victim]
        sockets = {name: self.node.socket(name) for name in ("owner", "kps", "wsd-decap", "wsd-authorize", "wsd-claims", "wsd-operator", "controller", "gpuhealth",
                                                              "cloudboard-control", "cb_jobhelper", "tie_cloud_app", "cache")}
        sockets |= {name: self.node.model_socket(name) for name in ("runtime", "probe", "kvxfer")}
        return {
            "read_memory_file": str(other_pid), "read_environment_of": str(other_pid), "trace": str(other_pid), "signal_another": str(other_pid),
            "steal_descriptor": str(other_pid), "read_memory_call": f"{other_pid} {self.other_address}",
            "read_file": str(self.secret), "read_weights": f"{assets}/models/{MODEL}/weights.gguf",
            "write_anywhere": f"/ /tmp /var/tmp /dev/shm /dev /run {run} {run}/log {run}/stage {assets} /etc /lib /lib64 {run}/stage/app-assets",
            "overwrite_file": str(run / "stage/prefix/libexec/tie/tie-launcher"), "mount_something": str(run / "log"),
            "connect_unix_path": " ".join(str(path) for name, path in sockets.items() if name not in own),
            "connect_abstract": self.abstract_name, "connect_tcp": str(self.tcp.getsockname()[1]), "send_udp": str(self.udp.getsockname()[1]),
            "start_program": "SELF", "replace_itself": "SELF", "run_memfd": "SELF", "shared_memory_segment": str(SHM_KEY),
        }.get(attack, "")

    def run(self, victim, attack, serve):
        """The attacker's answer. A fresh attacker each time, with another process of the same kind alive beside it where it needs one."""
        if attack not in NEEDS_ANOTHER:
            self.other_address = "0"
            return self.attack(victim, attack, serve, 0)
        before = set(self.node.pid_of("tie-cloud-app"))
        with self.attacker("tie-cloud-app") as other:
            self.other_address = ask(other, "whoami").split()[1]
            other_pid = (set(self.node.pid_of("tie-cloud-app")) - before).pop()
            return self.attack(victim, attack, serve, other_pid)

    def attack(self, victim, attack, serve, other_pid):
        with self.attacker(victim) as sock:
            if serve:
                assert ask(sock, "serve") == "ok"
            name = "read_file" if attack == "read_weights" else attack
            return ask(sock, f"{name} {self.words(attack, victim, other_pid)}")


def make_field(tmp_path_factory, kind, extra):
    if not (sandbox_node.HELPERS / "attacker").exists():
        pytest.skip(f"the helpers are not built in {sandbox_node.BUILD}")
    place = tmp_path_factory.mktemp(kind)
    node = sandbox_node.SandboxNode(place, victims=VICTIMS, extra=extra + ["--listen", "127.0.0.1:0"])
    node.up()
    return Field(node, place)


# The same attacks under both launchers: what one stops, the other must stop.
@pytest.fixture(scope="module", params=["bubblewrap", "direct"])
def protected(request, tmp_path_factory):
    field = make_field(tmp_path_factory, request.param, ["--sandbox", request.param])
    yield field
    field.close()
    field.node.clean()


@pytest.fixture(scope="module", autouse=True)
def shared_memory_segment_of_the_host():
    libc = ctypes.CDLL(None, use_errno=True)
    segment = libc.shmget(SHM_KEY, 4096, 0o1600)  # IPC_CREAT
    yield
    libc.shmctl(segment, 0, None)  # IPC_RMID


@pytest.fixture(scope="module")
def control(tmp_path_factory):
    field = make_field(tmp_path_factory, "control", ["--insecure-no-sandbox"])
    yield field
    field.close()
    field.node.clean()


@pytest.fixture(scope="module")
def daemon_field(tmp_path_factory):
    field = make_field(tmp_path_factory, "daemons", [])
    yield field
    field.close()
    field.node.clean()


ALWAYS = ["list_processes", "read_memory_file", "read_environment_of", "read_memory_call", "trace", "signal_another", "steal_descriptor", "read_file",
          "write_anywhere", "overwrite_file", "mount_something", "new_namespaces", "connect_unix_path", "netlink", "vsock", "bpf", "io_uring", "userfault",
          "perf", "keyring", "capabilities", "shared_memory_segment"]
PER_REQUEST_ONLY = ["read_weights", "list_mounts", "connect_abstract", "be_reachable", "connect_tcp", "send_udp", "start_program", "replace_itself", "run_memfd", "make_code", "fork_itself",
                    "huge_allocation", "many_descriptors"]
# The runtime has its own network namespace and its own /proc; cloudboardd is the one process that may reach the network.
RUNTIME_ONLY = ["read_weights", "connect_abstract", "connect_tcp", "send_udp"]
NEEDS_ROOT_TO_SUCCEED = {"read_memory_file", "read_environment_of", "read_memory_call", "trace", "steal_descriptor", "mount_something", "bpf", "userfault", "perf", "capabilities"}
# The container's own processes are in its own /proc, and there are none of another container.
NOT_FOR = {("afm-runtime", "list_processes")}

CASES = [(v, a) for v in PER_REQUEST for a in ALWAYS + PER_REQUEST_ONLY]
CASES += [("afm-runtime", a) for a in ALWAYS + RUNTIME_ONLY if ("afm-runtime", a) not in NOT_FOR]
CASES += [("cloudboardd", a) for a in ALWAYS + ["read_weights"]]


@pytest.mark.parametrize("victim, attack", CASES)
def test_attack_is_stopped(protected, victim, attack):
    answer = protected.run(victim, attack, serve=True)
    assert answer == "stopped"


# Resource limits hold without a sandbox too; what they stop is shown on a process that has wider ones.
WIDER = {("cb_jobhelper", "run_memfd"): ("control", "tie-cloud-app")}
WIDER |= {(victim, attack): ("protected", "cloudboardd") for victim in PER_REQUEST for attack in ("huge_allocation", "many_descriptors")}


@pytest.mark.parametrize("victim, attack", CASES)
def test_control_without_protection_the_attack_succeeds(control, request, victim, attack):
    kind, victim = WIDER.get((victim, attack), ("control", victim))
    field = control if kind == "control" else request.getfixturevalue("daemon_field")
    if attack in NEEDS_ROOT_TO_SUCCEED and os.geteuid() != 0:
        pytest.skip("only root could do this without a sandbox")
    answer = field.run(victim, attack, serve=False)
    assert answer.startswith("SUCCEEDED"), answer


# Before the serving mode a process has parsed nothing hostile, but the sandbox alone must hold already.
@pytest.mark.parametrize("victim", PER_REQUEST)
@pytest.mark.parametrize("attack", [a for a in ALWAYS + ["read_weights", "connect_abstract", "be_reachable", "connect_tcp", "send_udp", "fork_itself", "start_program", "huge_allocation", "many_descriptors"]])
def test_the_sandbox_alone_stops_it_before_serving_mode(protected, victim, attack):
    assert protected.run(victim, attack, serve=False) == "stopped"


@pytest.mark.parametrize("victim", ["cb_jobhelper", "tie-cloud-app"])
def test_no_descriptor_but_its_own_is_inherited(protected, victim):
    with protected.attacker(victim) as sock:
        words = ask(sock, "whoami").split()
        assert words[0] == "1" and words[3] != "0"
        # 0 to 2, its connection, and the edges that it opened itself.
        assert words[words.index("fds") + 1:] == [str(n) for n in range(6 if victim == "cb_jobhelper" else 4)]


def memfd(seals):
    fd = os.memfd_create("harness", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, 4096)
    import fcntl
    fcntl.fcntl(fd, 1033, seals)  # F_ADD_SEALS
    return fd


@pytest.mark.parametrize("attack, seals", [("truncate_shared", 0x1 | 0x2 | 0x4), ("map_shared_writable", 0x1 | 0x2 | 0x4 | 0x10)])
def test_shared_memory_that_is_sealed_cannot_be_cut_or_written(protected, attack, seals):
    with protected.attacker("tie-cloud-app") as sock:
        sealed, open_one = memfd(seals), memfd(0)
        assert ask(sock, "serve") == "ok"
        assert ask(sock, attack, [sealed]) == "stopped"
        assert ask(sock, attack, [open_one]).startswith("SUCCEEDED"), "the control: without seals nothing else stops it"
        os.close(sealed)
        os.close(open_one)


def test_a_request_cannot_reach_the_pair_of_another(protected):
    """Two live pairs: neither sees the other's processes, and both are number 1 of their own world."""
    with protected.attacker("cb_jobhelper") as one, protected.attacker("cb_jobhelper") as two:
        assert ask(one, "whoami").split()[0] == ask(two, "whoami").split()[0] == "1"
        for sock in (one, two):
            assert ask(sock, "list_processes") == "stopped"
            assert ask(sock, "signal_another 2") == "stopped"


def test_an_attacker_that_dies_takes_nothing_with_it(protected):
    with protected.attacker("cb_jobhelper") as one, protected.attacker("cb_jobhelper") as two:
        ask(one, "whoami")
        ask(two, "whoami")
        send_frame(one, b"x" * 70000)  # over its limit: it ends
        with pytest.raises((EOFError, ConnectionResetError)):
            receive_frame(one)
        assert ask(two, "whoami").split()[0] == "1"
