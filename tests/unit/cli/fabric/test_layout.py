"""Which resources a file asks for, in which order, and as which commands."""

from __future__ import annotations

import shlex

import pytest

from services.fabric.frr_text import FrrPaths
from services.fabric.journal import from_plain, to_plain
from services.fabric.layout import DAEMON_PRIORITIES, layout, load_command
from services.fabric.model import HostFile
from services.fabric.plan import Action, step_for
from services.fabric.resources import Daemon, Device

PATHS = FrrPaths()
VF = {"type": "vf", "vf": {"nic": "enp1s0f0", "number": 1}}


def host(port=None, **changes):
    ports = [{"name": "rep0", "mac": "02:00:00:00:00:01", "address": "172.16.0.1/24", "netns": "a1"} | (port or {})]
    fields = {"name": "h1", "asn": 65001, "vtep": "10.255.0.1", "uplinks": ["p1", "p2"], "vni": 100, "ports": ports}
    return HostFile.model_validate(fields | changes)


def keys(file):
    return [resource.key for resource in layout(file, 1450, PATHS)]


def commands(file):
    return [command for resource in layout(file, 1450, PATHS) for command in resource.commands()]


def test_each_resource_stands_once_and_after_its_parent():
    for file in (host(), host(VF), host(netns="h1", frr={"start": True})):
        seen = set()
        for resource in layout(file, 1450, PATHS):
            assert resource.key not in seen
            assert resource.parent is None or resource.parent in seen
            seen.add(resource.key)


def test_the_tunnel_learns_nothing_and_suppresses_arp():
    """EVPN alone fills its table."""
    found = commands(host(netns="h1"))
    assert "ip -n h1 link add vx100 type vxlan id 100 local 10.255.0.1 dstport 4789 nolearning" in found
    assert "bridge -n h1 link set dev vx100 learning off" in found
    assert "bridge -n h1 link set dev vx100 neigh_suppress on" in found
    up = found.index("ip -n h1 link set vx100 up")
    assert up > found.index("bridge -n h1 link set dev vx100 learning off")


def test_the_encapsulation_device_has_a_port_of_its_own_or_is_left_out():
    assert "ip link add vxenc0 type vxlan external local 10.255.0.1 dstport 4790 nolearning" in commands(host())
    assert not any("vxlan external" in command for command in commands(host(encapsulation=None)))


def test_the_application_gets_its_address_and_mtu_in_its_namespace():
    found = commands(host())
    assert "ip link add rep0 type veth peer name app netns a1" in found
    assert "ip -n a1 link set app address 02:00:00:00:00:01" in found
    assert "ip -n a1 link set app mtu 1450" in found
    assert "ip -n a1 address add 172.16.0.1/24 dev app" in found
    assert "bridge fdb replace 02:00:00:00:00:01 dev rep0 master static" in found


def test_a_namespace_given_by_path_is_not_made():
    file = host({"netns": "/proc/1/ns/net"})
    assert not any("netns add" in command for command in commands(file))
    assert "nsenter --net=/proc/1/ns/net ip link set app up" in commands(file)


def test_a_virtual_function_comes_before_the_uplinks_and_its_device_is_moved():
    found = commands(host(VF))
    mode = "devlink dev eswitch set pci/$(basename $(readlink /sys/class/net/enp1s0f0/device)) mode switchdev"
    assert mode in found
    assert found.index(mode) < found.index("echo 2 > /sys/class/net/enp1s0f0/device/sriov_numvfs")
    assert found.index(mode) < found.index("ip link set p1 up")
    assert "ethtool -K rep0 hw-tc-offload on" in found
    assert "ip link set $(ls /sys/class/net/enp1s0f0/device/virtfn1/net) netns a1 name app" in found
    assert not any("veth" in command for command in found)


def test_sysctls():
    found = keys(host())
    assert "net/ipv4/fib_multipath_hash_policy" in found
    assert "net/ipv4/conf/p1/rp_filter" in found
    assert "net/ipv4/conf/p1/forwarding" not in found
    assert "net/ipv4/conf/p1/forwarding" in keys(host(transit=True))
    assert "net/ipv4/conf/p2/ignore_routes_with_linkdown" in keys(host(ignore_linkdown=True))


def test_bfdd_is_scheduled_above_the_others():
    """A bgpd that keeps the processor would make BFD report faults (measured: a storm that did not heal)."""
    assert DAEMON_PRIORITIES["bfdd"] > max(DAEMON_PRIORITIES["bgpd"], DAEMON_PRIORITIES["zebra"])
    started = {r.name: r for r in layout(host(frr={"start": True}), 1450, PATHS) if isinstance(r, Daemon)}
    assert list(started) == ["zebra", "bgpd", "bfdd"]
    assert started["bfdd"].launch[:3] == ("chrt", "--rr", "30")
    calm = {
        r.name: r for r in layout(host(frr={"start": True, "realtime": False}), 1450, PATHS) if isinstance(r, Daemon)
    }
    assert calm["bfdd"].launch[0] == "/usr/lib/frr/bfdd"


def test_without_bfd_there_is_no_bfdd():
    file = host(frr={"start": True}, bfd=None)
    assert [r.name for r in layout(file, 1450, PATHS) if isinstance(r, Daemon)] == ["zebra", "bgpd"]


def test_a_daemon_is_another_when_its_configuration_is():
    def digests(file):
        return {r.name: r.value for r in layout(file, 1450, PATHS) if isinstance(r, Daemon)}

    one, other = digests(host(frr={"start": True})), digests(host(frr={"start": True}, bfd={"interval_ms": 10}))
    assert one["bfdd"] != other["bfdd"]
    assert (one["zebra"], one["bgpd"]) == (other["zebra"], other["bgpd"])


def test_for_a_running_frr_only_a_file_is_written():
    assert keys(host())[-1] == "file /etc/frr/turnbuckle-h1.conf"
    assert load_command(host(), PATHS, "bgpd") == "vtysh -f /etc/frr/turnbuckle-h1.conf"
    assert load_command(host(frr={"start": True}), PATHS, "bgpd") == "vtysh -N h1 -f /etc/frr/h1/bgpd.conf"


@pytest.mark.parametrize("file", [host(), host(VF), host(netns="h1", frr={"start": True})])
def test_every_resource_survives_the_journal_and_has_commands_both_ways(file):
    for resource in layout(file, 1450, PATHS):
        assert from_plain(to_plain(resource)) == resource
        for command in (*resource.commands(), *resource.undo_commands("1"), *resource.removal()):
            assert shlex.split(command.split("<<'EOF'")[0], comments=True) or command.startswith("#")


def test_two_ports_in_one_namespace_share_its_loopback():
    ports = [
        {
            "name": f"rep{n}",
            "mac": f"02:00:00:00:00:0{n}",
            "address": f"172.16.0.{n}/24",
            "netns": "a1",
            "device": f"e{n}",
        }
        for n in (1, 2)
    ]
    found = keys(host(ports=ports))
    assert found.count("a1: state of lo") == 1
    assert found.count("network namespace a1") == 1
    assert [r.name for r in layout(host(ports=ports), 1450, PATHS) if isinstance(r, Device)][-2:] == ["rep1", "rep2"]


def test_only_frr_and_vtysh_users_enter_the_directory_of_sockets():
    """The control socket of bfdd is open to everybody."""
    file = host(netns="h1", frr={"start": True})
    found = {resource.key: resource for resource in layout(file, 1450, PATHS)}
    assert found["directory /var/run/frr/h1"].value == "0750 frr:frrvty"
    assert "install -d -m 750 -o frr -g frrvty /var/run/frr/h1" in commands(file)
    assert "install -d -m 750 -o frr -g frr /etc/frr/h1" in commands(file)


def test_a_directory_that_an_earlier_version_made_is_closed_and_still_ours():
    """It was journalled without a group and without who may enter."""
    path = "/var/run/frr/h1"
    plain = {"resource": "Directory", "value": "present", "parent": None, "path": path, "mode": 0o755}
    earlier = from_plain(plain | {"owner": "frr", "volatile": True})
    assert earlier.is_managed("0755 frr:frr")
    file = host(netns="h1", frr={"start": True})
    (wanted,) = [resource for resource in layout(file, 1450, PATHS) if resource.key == earlier.key]
    step = step_for(wanted, "0755 frr:frr", owned=True)
    assert (step.action, step.reason) == (Action.CHANGE, "0755 frr:frr becomes 0750 frr:frrvty")
    assert wanted.is_managed("0755 root:root"), "with whatever access, its content is our daemons'"
