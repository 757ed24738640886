"""host.yaml: what it may say, and what it is told about mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest

from services._runtime.command.errors import BadFileError
from services._runtime.exit_code import ExitCode
from services.fabric.host_file import load_host_file, parse_host_file
from services.fabric.model import HostFile

GOOD = """\
name: h1
asn: 65001
vtep: 10.255.0.1
uplinks: [p1, {name: p2, address: 192.0.2.1/31, peer: 192.0.2.0, peer_asn: 65101}]
vni: 100
ports:
  - name: rep0
    mac: 02:00:00:00:00:01
    address: 172.16.0.1/24
    netns: a1
"""


def test_a_short_file_has_every_default():
    host = parse_host_file(GOOD)
    assert (host.bridge, host.vxlan_name, host.vxlan.port) == ("br0", "vx100", 4789)
    assert host.encapsulation is not None
    assert (host.encapsulation.name, host.encapsulation.port) == ("vxenc0", 4790)
    assert [uplink.neighbour for uplink in host.uplinks] == ["p1", "192.0.2.0"]
    # A MAC stays text: YAML 1.1 would read 02:00:00:00:00:01 as a number of base 60.
    assert host.ports[0].mac == "02:00:00:00:00:01"
    assert host.pathspace is None
    assert host.overhead_bytes == 50  # IP 20, UDP 8, VXLAN 8, Ethernet 14


def test_started_frr_has_the_hosts_name():
    assert parse_host_file(GOOD + "frr: {start: true}\n").pathspace == "h1"
    assert parse_host_file(GOOD + "frr: {start: true, pathspace: x}\n").pathspace == "x"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("asn: 65001", "asm: 65001", "host.yaml:2: unknown field 'asm': did you mean 'asn'?"),
        ("asn: 65001\n", "", "'asn' is missing"),
        ("vtep: 10.255.0.1", "vtep: fd00::1", "host.yaml:3: vtep: fd00::1 should be an IPv4 address"),
        ("vtep: 10.255.0.1", "vtep: 224.0.0.5", "host.yaml:3: vtep: 224.0.0.5 should be a unicast address"),
        ("vtep: 10.255.0.1", "vtep: 127.0.0.1", "host.yaml:3: vtep: 127.0.0.1 should be a unicast address"),
        ("vtep: 10.255.0.1", "vtep: 255.255.255.255", "host.yaml:3: vtep: 255.255.255.255 should be a unicast"),
        ("vtep: 10.255.0.1", "vtep: 0.0.0.0", "host.yaml:3: vtep: 0.0.0.0 should be a unicast address"),
        ("172.16.0.1/24", "172.16.0.0/24", "host.yaml:9: ports[0].address: 172.16.0.0 is the network address of"),
        ("172.16.0.1/24", "172.16.0.255/24", "172.16.0.255 is the broadcast address of 172.16.0.0/24"),
        ("172.16.0.1/24", "224.0.0.9/24", "224.0.0.9 should be a unicast address"),
        ("192.0.2.1/31", "192.0.2.3/30", "uplinks[1].address: 192.0.2.3 is the broadcast address of 192.0.2.0/30"),
        ("192.0.2.1/31", "192.0.2.1/30", "192.0.2.0 is the network address of 192.0.2.0/30"),
        ("asn: 65001", "asn: true", "host.yaml:2: asn: should be a whole number, not True"),
        ("name: rep0", "nam: rep0", "unknown field 'ports[0].nam': did you mean 'name'?"),
        ("mac: 02:", "mac: 03:", "host.yaml:8: ports[0].mac: '03:00:00:00:00:01' is no unicast address"),
        ("name: rep0", "name: a-name-that-is-too-long", "at most 15 letters"),
        ("peer: 192.0.2.0,", "", "has 'address' but no 'peer'"),
        ("peer: 192.0.2.0,", "peer: 192.0.2.9,", "peer 192.0.2.9 is not in 192.0.2.0/31"),
        ("peer: 192.0.2.0,", "peer: 192.0.2.1,", "peer and address are both 192.0.2.1"),
        (
            "172.16.0.1/24",
            "10.255.0.9/24",
            "host.yaml:9: ports[0].address: 10.255.0.0/24 overlaps 10.255.0.1/32 of the VTEP",
        ),
        ("172.16.0.1/24", "192.0.2.77/24", "192.0.2.0/24 overlaps 192.0.2.0/31 of uplink p2"),
        ("vtep: 10.255.0.1", "vtep: 192.0.2.1", "192.0.2.0/31 of uplink p2 overlaps 192.0.2.1/32 of the VTEP"),
        ("name: p2", "name: p1", "host.yaml:4: uplinks[1]: a second device of the host is named p1"),
        ("name: rep0", "name: br0", "a second device of the host is named br0"),
        ("netns: a1", "netns: a1\n    type: vf", "'type: vf' and 'vf: {nic: ..., number: ...}' belong together"),
        ("vni: 100", "vni: 100\nnetns: a1", "a1 is the host's: an application needs its own"),
        ("vni: 100", "vni: 100\nmtu: 500", "mtu: 500 should be at least 576"),
        ("vni: 100", "vni: 100\nencapsulation: {port: 4789}", "EADDRINUSE"),
        ("vni: 100", "vni: 100\nbgp: {hold_s: 4}", "at least three times keepalive_s"),
        (
            "vni: 100",
            "vni: 100\nbfd: {intervall_ms: 10}",
            "unknown field 'bfd.intervall_ms': did you mean 'interval_ms'?",
        ),
    ],
)
def test_mistakes_are_named_with_their_line(old, new, said):
    text = GOOD.replace(old, new, 1)
    assert text != GOOD
    with pytest.raises(BadFileError) as error:
        parse_host_file(text)
    assert said in str(error.value)
    assert error.value.exit_code == ExitCode.BAD_CONFIG


SECOND_PORT = """\
  - name: rep1
    mac: {mac}
    address: {address}
    netns: {netns}
    device: {device}
"""


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"mac": "02:00:00:00:00:01"}, "host.yaml:12: ports[1].mac: a second port has the MAC 02:00:00:00:00:01"),
        ({"address": "172.16.0.1/24"}, "host.yaml:13: ports[1].address: 172.16.0.1 stands here a second time"),
        ({"netns": "a1", "device": "app"}, "a second device in a1 is named app"),
    ],
)
def test_two_ports_must_differ(change, said):
    fields = {"mac": "02:00:00:00:00:02", "address": "172.16.0.2/24", "netns": "a2", "device": "app"}
    assert len(parse_host_file(GOOD + SECOND_PORT.format(**fields)).ports) == 2
    with pytest.raises(BadFileError) as error:
        parse_host_file(GOOD + SECOND_PORT.format(**fields | change))
    assert said in str(error.value)


def test_every_mistake_is_told_at_once():
    text = GOOD.replace("asn: 65001", "asn: x").replace("mac: 02:", "mac: 03:")
    with pytest.raises(BadFileError) as error:
        parse_host_file(text)
    assert len(str(error.value).splitlines()) == 2


def test_a_virtual_function_needs_the_machines_namespace():
    port = {
        "name": "rep0",
        "type": "vf",
        "mac": "02:00:00:00:00:01",
        "address": "172.16.0.1/24",
        "netns": "a1",
        "vf": {"nic": "p1", "number": 0},
    }
    fields = {"name": "h1", "asn": 1, "vtep": "10.0.0.1", "uplinks": ["p1"], "vni": 1, "ports": [port]}
    assert HostFile.model_validate(fields).ports[0].vf is not None
    with pytest.raises(ValueError, match="vf goes only without 'netns'"):
        HostFile.model_validate(fields | {"netns": "x"})


@pytest.mark.parametrize("example", sorted(Path("docs/examples").glob("host*.yaml")), ids=lambda path: path.name)
def test_the_examples_are_right(example):
    assert load_host_file(example).ports


def test_there_are_examples():
    assert len(list(Path("docs/examples").glob("host*.yaml"))) == 2
