"""Rules of the reconciler carry an application's packets around the bridge: run in the machine by test_thorn_vm.py.

A ping that comes through proves little: it would by the bridge as well, and a redirect into the ordinary VTEP ignores
the tunnel key. So counters are compared, the ordinary way is taken away, and the key is falsified.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Iterator

import pytest

from services.reconciler.core.config import ForwardingConfig
from services.reconciler.core.operation import OperationKind
from services.reconciler.core.state import Action, Filter
from tests.lab.vm.guest_path_lab import Host, PathLab
from tests.lab.vm.guest_reconcile import Passes

pytestmark = pytest.mark.timeout(180)

BOGUS = "10.255.0.77"
TRANSFER_BYTES = 4 << 20
RECEIVE = """
import hashlib, socket, sys
with socket.create_server((sys.argv[1], 5001)) as server:
    print("listens", flush=True)
    connection, _ = server.accept()
    digest = hashlib.sha256()
    while part := connection.recv(1 << 16):
        digest.update(part)
    print(digest.hexdigest())
"""
SEND = """
import socket, sys
with socket.create_connection((sys.argv[1], 5001), timeout=60) as connection:
    connection.sendall(b"thorn" * (int(sys.argv[2]) // 5))
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[PathLab]:
    lab = PathLab(3)
    lab.up()
    yield lab
    lab.down()


@pytest.fixture(scope="module")
def passes(lab: PathLab) -> dict[int, Passes]:
    return {host.number: Passes(host.netns, ForwardingConfig("vxenc0", {"rep0": (host.mac,)})) for host in lab.hosts}


@pytest.fixture
def hosts(lab: PathLab, passes: dict[int, Passes]) -> tuple[Host, Host, Host]:
    """With rules, whatever the test before has left."""
    for one in lab.hosts:
        for other in lab.hosts:
            if other is not one:
                one.learn(other)
    for each in passes.values():
        each.once()
        assert each.once() == ()
    return lab.hosts[0], lab.hosts[1], lab.hosts[2]


def key_index(host: Host, other: Host) -> int:
    """The tunnel_key action that leads to another host's VTEP."""
    [actions] = [table["actions"] for table in host.tc("actions", "list", "action", "tunnel_key") if "actions" in table]
    [found] = [action["index"] for action in actions if action.get("dst_ip") == other.vtep]
    return int(found)


def falsify(host: Host, other: Host) -> None:
    """Let the key that leads to a host lead to one that is not there."""
    index = str(key_index(host, other))
    falsified = ["set", "src_ip", host.vtep, "dst_ip", BOGUS, "id", "100", "dst_port", "4789", "index", index]
    host.run("tc", "actions", "replace", "action", "tunnel_key", *falsified)


def test_without_rules_the_bridge_carries_everything(lab: PathLab) -> None:
    """The ground to compare with; before the first pass, or `bypassed` could hold by itself."""
    one, other, _ = lab.hosts
    tunnel, encapsulated = one.sent("vx100"), one.sent("vxenc0")
    assert one.reaches(other, 10) == 10
    assert (one.sent("vx100") - tunnel, one.sent("vxenc0") - encapsulated) == (10, 0)


def test_with_rules_the_bridge_carries_nothing(hosts: tuple[Host, Host, Host]) -> None:
    one, other, _ = hosts
    before = [
        (host.sent("vx100"), host.sent("vxenc0"), host.matched(peer.mac)) for host, peer in ((one, other), (other, one))
    ]
    bridge = one.statistic("br0", "rx_packets")
    assert one.reaches(other, 20) == 20
    after = [
        (host.sent("vx100"), host.sent("vxenc0"), host.matched(peer.mac)) for host, peer in ((one, other), (other, one))
    ]
    for found, then in zip(before, after, strict=True):
        assert [late - early for early, late in zip(found, then, strict=True)] == [0, 20, 20]
    assert one.statistic("br0", "rx_packets") == bridge


def test_a_transfer_arrives_whole_and_by_rule_only(hosts: tuple[Host, Host, Host]) -> None:
    one, other, _ = hosts
    tunnel, matched = one.sent("vx100"), one.matched(other.mac)
    enter = ["ip", "netns", "exec"]
    with subprocess.Popen(
        [*enter, other.application, sys.executable, "-S", "-c", RECEIVE, other.address],
        stdout=subprocess.PIPE,
        text=True,
    ) as receiver:
        assert receiver.stdout is not None
        assert receiver.stdout.readline() == "listens\n"
        sender = [sys.executable, "-S", "-c", SEND, other.address, str(TRANSFER_BYTES)]
        subprocess.run([*enter, one.application, *sender], check=True, timeout=100)
        digest = receiver.stdout.read().strip()
    assert digest == hashlib.sha256(b"thorn" * (TRANSFER_BYTES // 5)).hexdigest()
    assert one.sent("vx100") == tunnel
    # 1,348 bytes of payload fit into an MTU of 1,400; the device may hand over several at once (GSO, 64 KiB).
    assert one.matched(other.mac) - matched >= TRANSFER_BYTES // 65_536


def test_with_a_false_key_nothing_arrives_and_a_pass_repairs_it(
    hosts: tuple[Host, Host, Host], passes: dict[int, Passes]
) -> None:
    one, other, _ = hosts
    falsify(one, other)
    tunnel, matched = one.sent("vx100"), one.matched(other.mac)
    assert one.reaches(other, 3) == 0
    assert one.sent("vx100") == tunnel
    assert one.matched(other.mac) - matched == 3, "the rule was taken, and led nowhere"
    repairs = passes[1].once()
    assert [(o.kind, type(o.target)) for o in repairs] == [(OperationKind.REPLACE, Action)]
    assert one.reaches(other, 3) == 3


def test_a_redirect_into_the_ordinary_vtep_is_seen_though_packets_arrive(
    hosts: tuple[Host, Host, Host], passes: dict[int, Passes]
) -> None:
    """That device looks its own table up and ignores the key: a test that only pings would be fooled."""
    one, other, _ = hosts
    [mirred] = [t["actions"] for t in one.tc("actions", "list", "action", "mirred") if "actions" in t]
    index = str(mirred[0]["index"])
    one.run("tc", "actions", "replace", "action", "mirred", "egress", "redirect", "dev", "vx100", "index", index)
    falsify(one, other)
    tunnel, encapsulated = one.sent("vx100"), one.sent("vxenc0")
    assert one.reaches(other, 3) == 3, "whatever the key says"
    assert (one.sent("vx100") - tunnel, one.sent("vxenc0") - encapsulated) == (3, 0)
    repairs = passes[1].once()
    assert {(o.kind, o.target.kind) for o in repairs if isinstance(o.target, Action)} >= {
        (OperationKind.REPLACE, "mirred"),
        (OperationKind.REPLACE, "tunnel_key"),
    }
    tunnel = one.sent("vx100")
    assert one.reaches(other, 3) == 3
    assert one.sent("vx100") == tunnel


def test_a_rule_of_its_own_is_all_that_is_needed(hosts: tuple[Host, Host, Host], passes: dict[int, Passes]) -> None:
    """Forwarding entries gone, packets still arrive; rules gone as well, none does: the bypass from both sides."""
    one, other, third = hosts
    one.forget(other)
    assert one.reaches(other, 5) == 5
    stale = passes[1].once()
    assert OperationKind.DELETE in {o.kind for o in stale if isinstance(o.target, Filter)}
    assert one.reaches(other, 2) == 0
    assert one.reaches(third, 5) == 5, "somebody else's rule"
    one.learn(other)
    passes[1].once()
    assert one.reaches(other, 5) == 5


def test_an_application_that_moves_is_followed(hosts: tuple[Host, Host, Host], passes: dict[int, Passes]) -> None:
    """Host 2's address is announced by host 3: the rule leads there, in one write, and nothing of it to host 2."""
    one, other, third = hosts
    one.learn(other, vtep=third.vtep)
    received = other.statistic("p1", "rx_packets"), third.statistic("p1", "rx_packets")
    moved = passes[1].once()
    assert [o.kind for o in moved if isinstance(o.target, Filter)] == [OperationKind.REPLACE]
    assert one.reaches(other, 5) == 0, "nobody there has that address"
    found = other.statistic("p1", "rx_packets"), third.statistic("p1", "rx_packets")
    assert (found[0] - received[0], found[1] - received[1]) == (0, 5)


def test_a_recreated_device_is_redirected_to(hosts: tuple[Host, Host, Host], passes: dict[int, Passes]) -> None:
    """Deleted, it leaves rules that redirect to nowhere, silently; the new one has another ifindex."""
    one, other, _ = hosts
    one.run("ip", "link", "del", "vxenc0")
    assert one.reaches(other, 2) == 0
    passes[1].once()
    assert one.reaches(other, 5) == 5, "by the bridge: there is nowhere to redirect to"
    one.run(*f"ip link add vxenc0 type vxlan external local {one.vtep} dstport 4790 nolearning".split())
    one.run("ip", "link", "set", "vxenc0", "up")
    passes[1].once()
    encapsulated = one.sent("vxenc0")
    assert one.reaches(other, 5) == 5
    assert one.sent("vxenc0") - encapsulated == 5


def test_the_local_address_does_not_age_out(hosts: tuple[Host, Host, Host]) -> None:
    """Nothing refreshes it when packets go around the bridge; aged out, EVPN would withdraw it everywhere."""
    one, other, _ = hosts
    one.run("ip", "link", "set", "br0", "type", "bridge", "ageing_time", "100")  # hundredths of a second
    assert one.reaches(other, 100) == 100  # 2 s
    assert "static" in one.run("bridge", "fdb", "show", "dev", "rep0").split(one.mac)[1].splitlines()[0]
