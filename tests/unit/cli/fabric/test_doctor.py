"""The doctor's look at the network edge, with made-up kernels and daemons."""

import asyncio

from services._edge.frr import Frr
from services._edge.kernel_support import FEATURES, CannotTryError
from services._runtime.command.finding import Level
from services.fabric import access
from services.fabric import doctor as network
from tests.support.fake_frr import FakeFrr


def test_what_the_kernel_lacks_is_named_with_its_remedy():
    assert [finding.level for finding in network.check_kernel(dict)] == [Level.OK]

    flower = next(feature for feature in FEATURES if feature.name == "flower")
    rest, finding = network.check_kernel(lambda: {flower: "No such file or directory"})

    assert "act_mirred" in rest.found
    assert "flower" not in rest.found
    assert (finding.name, finding.level) == ("cls_flower", Level.MISSING)
    assert finding.mend == "modprobe cls_flower, or a kernel with CONFIG_NET_CLS_FLOWER"


def test_without_rights_it_says_so():
    def refuse():
        raise CannotTryError("a network namespace to try in cannot be made: Operation not permitted")

    (finding,) = network.check_kernel(refuse)

    assert finding.level is Level.MISSING
    assert finding.mend == "sudo turnbuckle doctor"
    assert network.check_net_admin("CapEff:\t0000000000000000").level is Level.MISSING
    assert network.check_net_admin("CapEff:\t0000000000001000").level is Level.OK


def test_frr_installed_or_not(tmp_path):
    assert network.check_frr_installed((tmp_path,)).mend == "apt-get install frr"
    for daemon in ("zebra", "bgpd", "bfdd"):
        (tmp_path / daemon).touch(mode=0o755)
    assert network.check_frr_installed((tmp_path,)).level is Level.OK


async def test_frr_running(tmp_path):
    frr = Frr("lab", directory=tmp_path)
    (finding,) = await network.check_frr_running(frr)
    assert finding.level is Level.MISSING

    version = {"show version": "FRRouting 8.4.4 (vm) on Linux"}
    config = {"show running-config": "frr version 8.4.4\n!\nno zebra nexthop kernel enable\n"}
    async with FakeFrr(tmp_path / "lab", {"zebra": version | config, "bgpd": version}):
        found = {finding.name: finding for finding in await network.check_frr_running(frr)}
        assert found["frr version"].found == "8.4.4"
        assert "bfdd does not run" in found["frr daemons"].found
        assert found["nexthop objects"].level is Level.OK

    async with FakeFrr(tmp_path / "lab", {"zebra": {"show version": "FRRouting 7.5", "show running-config": "!\n"}}):
        found = {finding.name: finding for finding in await network.check_frr_running(frr)}
        assert found["frr version"].level is Level.NOTE
        assert "no zebra nexthop kernel enable" in found["nexthop objects"].mend


def test_rights_of_the_fast_path():
    assert network.check_fast_path_rights("CapEff:\t0000000000003000\n").level is Level.OK
    finding = network.check_fast_path_rights("CapEff:\t0000000000001000\n")
    assert (finding.level, "CAP_NET_RAW" in finding.found, "CAP_NET_ADMIN" in finding.found) == (
        Level.MISSING,
        True,
        False,
    )
    assert "AmbientCapabilities=CAP_NET_ADMIN CAP_NET_RAW" in finding.mend
    nothing = network.check_fast_path_rights("CapEff:\t0000000000000000\n").found
    assert "no override can be written; no CAP_NET_RAW" in nothing


def test_the_fabric_key_and_who_can_read_it(tmp_path):
    path, variable = tmp_path / "fabric.key", "TURNBUCKLE_FAST_PATH__FABRIC_KEY"
    environ = {f"{variable}_FILE": str(path)}
    absent = network.check_fabric_key(environ)
    assert (absent.level, f"chmod 600 {path}" in absent.mend) == (Level.MISSING, True)
    assert "No such file" in absent.found

    path.write_text("0123456789abcde\n")
    path.chmod(0o600)
    short = network.check_fabric_key(environ)
    assert (short.level, "fewer than 16" in short.found) == (Level.MISSING, True)

    path.write_text("0123456789abcdef\n")
    assert network.check_fabric_key(environ).level is Level.OK
    path.chmod(0o640)
    shared = network.check_fabric_key(environ)
    assert (shared.level, shared.mend) == (Level.NOTE, f"chmod 600 {path}")
    assert "mode 640" in shared.found
    path.write_bytes(b"\xff" * 32)
    assert "cannot be read" in network.check_fabric_key(environ).found

    assert "not set here" in network.check_fabric_key({}).found
    open_to_children = network.check_fabric_key({variable: "0123456789abcdef"})
    assert (open_to_children.level, f"set {variable}_FILE" in open_to_children.mend) == (Level.NOTE, True)
    assert "0123456789abcdef" not in open_to_children.found + open_to_children.mend


def test_where_bfdd_listens_and_for_whom(tmp_path):
    environ = {"TURNBUCKLE_FAST_PATH__FRR_DIRECTORY": str(tmp_path), "TURNBUCKLE_FAST_PATH__FRR_PATHSPACE": "h1"}
    directory = tmp_path / "h1"
    absent = network.check_bfdd_socket(environ)
    assert (absent.level, f"{directory}: No such file" in absent.found) == (Level.MISSING, True)
    directory.mkdir()
    assert f"{directory}/bfdd.sock: No such file" in network.check_bfdd_socket(environ).found

    (directory / "bfdd.sock").touch()
    (directory / "bfdd.sock").chmod(0o777)
    directory.chmod(0o755)
    everybody = network.check_bfdd_socket(environ)
    assert (everybody.level, "every local user" in everybody.found, "0755" in everybody.found) == (
        Level.NOTE,
        True,
        True,
    )
    repaired = f"chown frr:frrvty {directory} && chmod 0750 {directory}"
    assert everybody.mend == f"turnbuckle fabric up, or {repaired}"
    (directory / "bfdd.sock").chmod(0o770)
    assert network.check_bfdd_socket(environ).level is Level.NOTE, "bfdd makes its socket anew, and open, at each start"
    directory.chmod(0o700)
    assert network.check_bfdd_socket(environ).level is Level.OK


def test_a_group_of_users_reaches_bfdd(tmp_path, monkeypatch):
    (tmp_path / "bfdd.sock").touch()
    (tmp_path / "bfdd.sock").chmod(0o777)
    tmp_path.chmod(0o750)
    for group, exposed in (("users", True), ("frrvty", False), ("frr", False)):
        monkeypatch.setattr(access, "access_of", lambda _, group=group: f"0750 frr:{group}")
        found = access.exposure_of(tmp_path)
        assert (found is not None) == exposed, group
        assert found is None or found.who == "every member of the group users"


def test_who_empties_the_table_of_a_frozen_fast_path():
    head = "sk               Eth Pid        Groups   Rmem     Wmem     Dump  Locks    Drops    Inode\n"
    route = "000000002fb8ff40 2   8484       00002000 0        0        0     2        0        79155\n"
    # Group 14 is bit 13: 0x00002000, of NETLINK_ROUTE (0) and of nothing else.
    listener = "000000009371bec1 0   424163     00002000 0        0        0     2        0        79156\n"
    sender = "000000009371bec1 0   424164     000005d1 0        0        0     2        0        79157\n"
    environ = {"TURNBUCKLE_FAST_PATH__UPLINKS": "p1,p2"}
    (alone,) = network.check_fast_path_guard(environ, head + route + sender)
    assert (alone.level, "overrides stay" in alone.found) == (Level.NOTE, True)
    assert "start a reconciler" in alone.mend
    (guarded,) = network.check_fast_path_guard(environ, head + route + sender + listener)
    assert guarded.level is Level.OK
    assert network.check_fast_path_guard({}, head + route) == [], "nobody asked for a fast path"
    (elsewhere,) = network.check_fast_path_guard(environ | {"TURNBUCKLE_FAST_PATH__NETNS": "no-such-namespace"})
    assert "not examined: No such file" in elsewhere.found


def test_whether_bridged_frames_pass_iptables(tmp_path):
    setting = tmp_path / "bridge-nf-call-iptables"
    assert network.check_bridged_frames(setting).level is Level.OK
    setting.write_text("0\n")
    assert network.check_bridged_frames(setting).level is Level.OK
    setting.write_text("1\n")
    finding = network.check_bridged_frames(setting)
    assert (finding.level, finding.mend) == (Level.NOTE, "sysctl -w net.bridge.bridge-nf-call-iptables=0")
    assert "DROP" in finding.found


def test_this_host_can_be_examined():
    findings = asyncio.run(network.run_network_checks())
    names = {finding.name for finding in findings}
    assert {"network rights", "frr", "bridged frames", "fast path rights", "fabric key"} <= names
