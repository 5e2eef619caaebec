"""The node as a Debian package under real systemd: a minbase Debian boots in systemd-nspawn, installs the package, answers, recycles, and is looked at from outside.

Needs root, debootstrap, systemd-nspawn, the network for the first run (the root is kept in .cache/nspawn-root) and a finished release build with a model. What is
missing is named in the skip message; with TIE_REQUIRE_ALL=1 a skip is a failure.
"""
import os
import pathlib
import shutil
import subprocess
import textwrap

import pytest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("TIE_BUILD", SOURCE / "build" / "release"))
BASE = SOURCE / ".cache" / "nspawn-root"
MODEL = pathlib.Path(os.environ.get("TIE_TEST_MODEL", SOURCE / ".cache" / "models" / "smollm2-135m-instruct.gguf"))
NAME = "smollm2-135m-instruct"
BOOT_S = 240


def missing():
    if os.geteuid() != 0:
        return "root"
    for tool in ("debootstrap", "systemd-nspawn", "dpkg-deb", "cmake"):
        if not shutil.which(tool):
            return tool
    for path in (MODEL, BUILD / "bin" / "tie", BUILD / "bin" / "afm-runtime", BUILD / "bin" / "tie-cloud-app"):
        if not path.exists():
            return str(path)
    return None


def fresh_root(copy, *packages):
    """A copy of a minbase Debian with the package, built from this build, as /root/tie.deb, and installed: with it comes what it depends on, before a boot that has
    no network. `packages` come beside it. Skips, loudly, where it cannot be made."""
    lacking = missing()
    if lacking:
        pytest.skip(f"the systemd profile is not tested: {lacking} is missing")
    if not (BASE / "etc" / "debian_version").exists():
        partial = BASE.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        subprocess.run(["debootstrap", "--variant=minbase", "--include=systemd,dbus,supervisor,openssl,procps", "bookworm", partial], check=True, timeout=1200)
        partial.rename(BASE)
    subprocess.run(["cp", "-a", "--reflink=auto", BASE, copy], check=True)
    subprocess.run([SOURCE / "deploy" / "build-deb", BUILD, copy / "root" / "tie.deb"], check=True)
    shutil.copy("/etc/resolv.conf", copy / "etc/resolv.conf")
    install = ("apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends " + " ".join(packages) + " /root/tie.deb && "
               "rm -rf /var/lib/apt/lists && systemctl disable -q supervisor")
    subprocess.run(["unshare", "-m", "sh", "-c", f"mount -t proc proc {copy}/proc && exec chroot {copy} sh -c '{install}'"],
                   check=True, timeout=900, stdin=subprocess.DEVNULL)
    return copy


@pytest.fixture(scope="session")
def root(tmp_path_factory):
    copy = fresh_root(tmp_path_factory.mktemp("nspawn") / "root")
    subprocess.run([BUILD / "bin" / "tie", "model", "--assets", copy / "var/lib/tie/assets", "add", MODEL, "--name", NAME], check=True)
    return copy


def children(pid):
    listed = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True).stdout.split()
    return [int(child) for child in listed]


def boot(root, script, started=True, limit_s=BOOT_S):
    """Boots the root, runs the script in it once the network target would be there, powers off; returns what the script printed."""
    (root / "root" / "test.sh").write_text("#!/bin/sh\nexec > /root/out.txt 2>&1\nset -x\n" + textwrap.dedent(script))
    (root / "root" / "test.sh").chmod(0o755)
    unit = root / "etc/systemd/system/test.service"
    unit.write_text("[Unit]\nAfter=basic.target\n[Service]\nType=oneshot\nExecStart=/root/test.sh\nExecStopPost=/bin/systemctl --no-block poweroff\n")
    wants = root / "etc/systemd/system/multi-user.target.wants"
    wants.mkdir(parents=True, exist_ok=True)
    for name, target in (("test.service", f"../{unit.name}"), ("tie.target", "/usr/lib/systemd/system/tie.target")):
        link = wants / name
        if not link.is_symlink() and (name == "test.service" or started):
            link.symlink_to(target)
    (root / "root" / "out.txt").unlink(missing_ok=True)
    # Its own cgroup2 mount: the machine's may be a hybrid that systemd in the guest cannot use.
    command = (f"umount -l /sys/fs/cgroup; mkdir -p /sys/fs/cgroup; mount -t cgroup2 none /sys/fs/cgroup && "
               f"exec systemd-nspawn -q -D {root} --register=no --keep-unit --boot --private-network --console=pipe")
    guest = subprocess.Popen(["unshare", "-m", "sh", "-c", command], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        guest.wait(limit_s)
    except subprocess.TimeoutExpired:
        # nspawn's death does not end its guest; the death of the guest's first process does.
        for pid in children(guest.pid):
            os.kill(pid, 9)
        guest.wait(30)
    return (root / "root" / "out.txt").read_text(errors="replace")


@pytest.fixture(scope="session")
def report(root):
    return boot(root, f"""
        for i in $(seq 60); do tie node status && break; sleep 1; done
        tie release measure /usr --policy > /root/policy.toml
        echo ANSWER-1 "$(tie ask 'Say hello.' --max-tokens 16 --policy /root/policy.toml)"
        reads() {{ journalctl -b -o cat -u tie-model-owner | grep -c 'ready in'; }}
        for i in 1 2 3; do tie node recycle | grep recycles; done
        echo LOADS $(reads)
        echo ANSWER-2 "$(tie ask 'Say hello again.' --max-tokens 16 --policy /root/policy.toml)"
        echo FAILED $(systemctl --failed --no-legend 'tie*' 'afm*' cloudboardd workload_servicesd key_protectiond gpuhealthd cache_stored | wc -l)
        for unit in tie-model-owner cloudboardd workload_servicesd key_protectiond gpuhealthd cache_stored tie-controllerd afm-runtime@{NAME}; do
          pid=$(systemctl show -p MainPID --value $unit)
          echo "UNIT $unit user=$(ps -o user= -p $pid) nnp=$(awk '/NoNewPrivs/{{print $2}}' /proc/$pid/status) seccomp=$(awk '/^Seccomp:/{{print $2}}' /proc/$pid/status) caps=$(awk '/CapEff/{{print $2}}' /proc/$pid/status) run=$(ls /proc/$pid/root/run/tie | paste -sd,)"
        done
        echo SPENT-OFF $(systemctl show -p LoadState --value token_spentd) $(systemctl show -p ActiveState --value token_spentd)
        python3 - <<'PY'
        import socket
        face = socket.socket(socket.AF_UNIX)
        face.connect("/run/tie/wsd-operator/wsd-operator.sock")
        face.sendall(b"GET /keys HTTP/1.1\\r\\nHost: wsd\\r\\n\\r\\n")
        print("FACE", face.recv(4096).split()[1].decode())
        PY
        tie node metrics | sed -n 's/^tie_requests_completed_total /COMPLETED /p'
        owner=$(systemctl show -p MainPID --value tie-model-owner)
        for fd in /proc/$owner/fd/*; do case $(readlink $fd) in */memfd:tie-weights*|*/memfd:tie-tokenizer*) echo "SEALS $(readlink $fd) $(python3 -c 'import fcntl,os,sys; print(fcntl.fcntl(os.open(sys.argv[1], os.O_RDONLY), 1034))' $fd)";; esac; done
        runtime=$(pgrep -f '^/usr/libexec/tie/afm-runtime')
        kill -9 $runtime
        sleep 1
        for i in $(seq 30); do tie node status && break; sleep 1; done
        echo ANSWER-3 "$(tie ask 'Once more.' --max-tokens 16 --policy /root/policy.toml)"
        cp -a /usr/libexec/tie/gpuhealthd /usr/libexec/tie/x && printf x >> /usr/libexec/tie/x && mv -f /usr/libexec/tie/x /usr/libexec/tie/gpuhealthd
        /usr/libexec/tie/tie-stage-assets --no-units
        systemctl restart workload_servicesd; sleep 3
        tie ask 'Refused?' --max-tokens 8 --policy /root/policy.toml && echo REFUSED-NOT || echo REFUSED
        mkdir -p /etc/tie && tie issuer init /root/issuer --name issuer.example && cp /root/issuer/issuer /etc/tie/token-issuer
        systemctl restart tie-stage && systemctl restart tie.target
        for i in $(seq 20); do systemctl is-active -q token_spentd && break; sleep 0.5; done
        echo SPENT-ON $(systemctl show -p ActiveState --value token_spentd) $(ps -o user= -p $(systemctl show -p MainPID --value token_spentd))
        """)


def lines(report, word):
    return [line[len(word) + 1:] for line in report.splitlines() if line.startswith(word + " ")]


def test_it_answers_before_and_after_recycles_and_a_kill(report):
    for number in (1, 2, 3):
        answers = lines(report, f"ANSWER-{number}")
        assert answers and answers[0].strip(), report
    assert "recycles    3" in report, report


def test_the_weights_are_loaded_once(report):
    assert lines(report, "LOADS") == ["1"], report


def test_no_unit_has_failed(report):
    assert lines(report, "FAILED") == ["0"], report


def test_every_daemon_is_a_user_of_its_own_without_privileges(report):
    units = lines(report, "UNIT")
    assert len(units) == 8, report
    users = {line.split("user=")[1].split()[0] for line in units}
    assert len(users) == 8 and "root" not in users, units
    for line in units:
        assert "nnp=1" in line and "seccomp=2" in line and "caps=0000000000000000" in line, line


def test_each_daemon_sees_only_its_own_edges(report):
    seen = {line.split()[0]: set(line.split("run=")[1].split(",")) for line in lines(report, "UNIT")}
    assert seen["gpuhealthd"] == {"gpuhealth"}
    assert seen["key_protectiond"] == {"kps"}
    assert seen["cache_stored"] == {"cache"}
    assert "runtime" not in seen["cloudboardd"] and "owner" not in seen["cloudboardd"] and "kps" not in seen["cloudboardd"]
    assert "assets" not in seen[f"afm-runtime@{NAME}"]


def test_the_operators_face_answers(report):
    assert lines(report, "FACE") == ["200"], report


def test_the_metrics_count_the_answers(report):
    assert len(lines(report, "COMPLETED")) == 1 and int(lines(report, "COMPLETED")[0]) >= 1, report


def test_the_spent_set_runs_only_with_an_issuer(report):
    assert lines(report, "SPENT-OFF") == ["loaded inactive"], report
    assert [line.split() for line in lines(report, "SPENT-ON")] == [["active", "tie-tokens"]], report


def test_the_owners_memory_carries_all_seals(report):
    seals = lines(report, "SEALS")
    assert len(seals) == 2, report
    for line in seals:
        assert int(line.split()[-1]) & 0xF == 0xF, line


def test_a_changed_program_is_refused_by_yesterdays_policy(report):
    assert "REFUSED" in report.splitlines(), report
