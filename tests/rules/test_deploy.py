"""What the systemd units bind must be there before their first command: made at boot, by staging, or by another unit that they wait for."""
import pathlib
import re

DEPLOY = pathlib.Path(__file__).resolve().parents[2] / "deploy"
STAGED = {"/run/tie/release/environment"}


def units():
    return {path.name: path.read_text() for path in (DEPLOY / "systemd").glob("*.service")}


def bound(unit):
    return {path for line in re.findall(r"^Bind(?:ReadOnly)?Paths=(.*)$", unit, re.M) for path in line.split() if path.startswith("/run/tie")}


def made_at_boot():
    return set(re.findall(r"^d (\S+)", (DEPLOY / "tmpfiles.d" / "tie.conf").read_text(), re.M))


def made_by(unit):
    return set(re.findall(r"^ExecStart=.*install -d .* (/run/tie\S+)$", unit, re.M))


def test_what_a_unit_binds_is_made_before_it_starts():
    all_units, checked = units(), 0
    for name, unit in all_units.items():
        required = re.findall(r"^Requires=(.*)$", unit, re.M)
        after = " ".join(re.findall(r"^After=(.*)$", unit, re.M)).split()
        there = made_at_boot() | STAGED
        for other in " ".join(required).split():
            if other in after:
                there |= made_by(all_units.get(other.replace("@%i", "@"), ""))
        assert bound(unit) <= there, f"{name} binds {bound(unit) - there}"
        checked += len(bound(unit))
    assert checked > 20


def test_root_makes_nothing_where_a_daemon_could_put_a_link():
    owners, checked = dict(re.findall(r"^d (\S+) \d+ (\S+)", (DEPLOY / "tmpfiles.d" / "tie.conf").read_text(), re.M)), 0
    for name, unit in units().items():
        for words, path in re.findall(r"^ExecStart=(.*install -d .*) (/run/tie\S+)$", unit, re.M):
            owner = owners[str(pathlib.Path(path).parent)]
            assert owner == "root" or f"setpriv --reuid={owner} " in words, f"{name} makes {path} as root"
            checked += 1
    assert checked >= 4
