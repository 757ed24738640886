"""Rules of the reconciler carry an application's packets around the bridge: run in the machine by test_thorn_vm.py.

A ping that comes through proves little: it would by the bridge as well, and a redirect into the ordinary VTEP ignores
the tunnel key. So counters are compared, the ordinary way is taken away, and the key is falsified.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from services._host.netlink.objects import Action, Filter
from services.reconciler.core.config import ForwardingConfig
from services.reconciler.core.operation import OperationKind
from tests.lab.vm.guest_path_lab import Host, PathLab, batch
from tests.lab.vm.guest_reconcile import Passes

pytestmark = pytest.mark.timeout(540)

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
def passes(lab: PathLab) -> Iterator[dict[int, Passes]]:
    passes = {host.number: Passes(host.netns, ForwardingConfig("vxenc0", {"rep0": (host.mac,)})) for host in lab.hosts}
    yield passes
    for each in passes.values():
        each.kernel.close()


@pytest.fixture
def hosts(lab: PathLab, passes: dict[int, Passes]) -> tuple[Host, Host, Host]:
    """With rules, whatever the test before has left."""
    for host in lab.hosts:
        host.learn(*lab.others(host))
        passes[host.number].settle()
    return lab.hosts[0], lab.hosts[1], lab.hosts[2]


def grown(before: tuple[int, ...], after: tuple[int, ...]) -> tuple[int, ...]:
    """By how much each counter has."""
    return tuple(late - early for early, late in zip(before, after, strict=True))


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
    """The ground to compare with; before the first pass, or what follows could hold by itself."""
    one, other, _ = lab.hosts
    before = one.counters("vx100", "vxenc0")
    assert one.reaches(other, 10) == 10
    assert grown(before, one.counters("vx100", "vxenc0")) == (10, 0)


def test_with_rules_the_bridge_carries_nothing(hosts: tuple[Host, Host, Host]) -> None:
    one, other, _ = hosts
    ends = ((one, other), (other, one))
    before = [(*host.counters("vx100", "vxenc0"), host.matched(peer.mac)) for host, peer in ends]
    bridge = one.counters("br0", received=True)
    assert one.reaches(other, 20) == 20
    after = [(*host.counters("vx100", "vxenc0"), host.matched(peer.mac)) for host, peer in ends]
    assert [grown(*pair) for pair in zip(before, after, strict=True)] == [(0, 20, 20)] * 2
    assert one.counters("br0", received=True) == bridge


def test_a_transfer_arrives_whole_and_by_rule_only(hosts: tuple[Host, Host, Host]) -> None:
    one, other, _ = hosts
    tunnel, matched = one.counters("vx100"), one.matched(other.mac)
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
    assert one.counters("vx100") == tunnel
    # 1,348 bytes of payload fit into an MTU of 1,400; the device may hand over several at once (GSO, 64 KiB).
    assert one.matched(other.mac) - matched >= TRANSFER_BYTES // 65_536


def test_with_a_false_key_nothing_arrives_and_a_pass_repairs_it(
    hosts: tuple[Host, Host, Host], passes: dict[int, Passes]
) -> None:
    one, other, _ = hosts
    falsify(one, other)
    tunnel, matched = one.counters("vx100"), one.matched(other.mac)
    assert one.reaches(other, 3) == 0
    assert one.counters("vx100") == tunnel
    assert one.matched(other.mac) - matched == 3, "the rule was taken, and led nowhere"
    repairs = passes[1].settle()
    assert [(o.kind, type(o.target)) for o in repairs] == [(OperationKind.REPLACE, Action)]
    assert one.reaches(other, 3) == 3


def test_a_redirect_into_the_ordinary_vtep_is_seen_though_packets_arrive(
    hosts: tuple[Host, Host, Host], passes: dict[int, Passes]
) -> None:
    """That device looks its own table up and ignores the key: a test that only pings would be fooled."""
    one, other, _ = hosts
    [mirred] = [t["actions"] for t in one.tc("actions", "list", "action", "mirred") if "actions" in t]
    index = str(mirred[0]["index"])
    batch(one.netns, f"actions replace action mirred egress redirect dev vx100 index {index}", program="tc")
    falsify(one, other)
    before = one.counters("vx100", "vxenc0")
    assert one.reaches(other, 3) == 3, "whatever the key says"
    assert grown(before, one.counters("vx100", "vxenc0")) == (3, 0)
    repairs = passes[1].settle()
    assert {(o.kind, o.target.kind) for o in repairs if isinstance(o.target, Action)} >= {
        (OperationKind.REPLACE, "mirred"),
        (OperationKind.REPLACE, "tunnel_key"),
    }
    tunnel = one.counters("vx100")
    assert one.reaches(other, 3) == 3
    assert one.counters("vx100") == tunnel


def test_a_rule_of_its_own_is_all_that_is_needed(hosts: tuple[Host, Host, Host], passes: dict[int, Passes]) -> None:
    """Forwarding entries gone, packets still arrive; rules gone as well, none does: the bypass from both sides."""
    one, other, third = hosts
    one.forget(other)
    assert one.reaches(other, 5) == 5
    stale = passes[1].settle()
    assert OperationKind.DELETE in {o.kind for o in stale if isinstance(o.target, Filter)}
    assert one.reaches(other, 2) == 0
    assert one.reaches(third, 5) == 5, "somebody else's rule"
    one.learn(other)
    passes[1].settle()
    assert one.reaches(other, 5) == 5


def test_an_application_that_moves_is_followed(hosts: tuple[Host, Host, Host], passes: dict[int, Passes]) -> None:
    """Host 2's address is announced by host 3: the rule leads there, in one write, and nothing of it to host 2."""
    one, other, third = hosts
    one.learn(other, vtep=third.vtep)
    before = (*other.counters("p1", received=True), *third.counters("p1", received=True))
    moved = passes[1].settle()
    assert [o.kind for o in moved if isinstance(o.target, Filter)] == [OperationKind.REPLACE]
    assert one.reaches(other, 3) == 0, "nobody there has that address"
    assert grown(before, (*other.counters("p1", received=True), *third.counters("p1", received=True))) == (0, 3)


def test_a_recreated_device_is_redirected_to(hosts: tuple[Host, Host, Host], passes: dict[int, Passes]) -> None:
    """Deleted, it leaves rules that redirect to nowhere, silently; the new one has another ifindex."""
    one, other, _ = hosts
    one.run("ip", "link", "del", "vxenc0")
    assert one.reaches(other, 2) == 0
    passes[1].settle()
    assert one.reaches(other, 5) == 5, "by the bridge: there is nowhere to redirect to"
    batch(
        one.netns,
        f"link add vxenc0 type vxlan external local {one.vtep} dstport 4790 nolearning",
        "link set vxenc0 up",
    )
    passes[1].settle()
    before = one.counters("vx100", "vxenc0")
    assert one.reaches(other, 5) == 5
    assert grown(before, one.counters("vx100", "vxenc0")) == (0, 5)


def test_only_a_static_entry_of_the_local_address_does_not_age_out(hosts: tuple[Host, Host, Host]) -> None:
    """Nothing refreshes it when packets go around the bridge; aged out, EVPN would withdraw it everywhere."""
    one, other, third = hosts
    batch(third.netns, f"fdb replace {third.mac} dev rep0 master dynamic", program="bridge")
    assert "static" not in local_states(third)
    for host in (one, third):
        host.run("ip", "link", "set", "br0", "type", "bridge", "ageing_time", "100")  # hundredths of a second
    until_s = time.monotonic() + 20.0
    while local_states(third) and time.monotonic() < until_s:
        assert (one.reaches(other, 10), third.reaches(other, 10)) == (10, 10)
    assert local_states(third) == set()
    assert local_states(one) == {"static"}


def local_states(host: Host) -> set[str]:
    """Of the bridge's entries for the application behind it."""
    shown = json.loads(host.run("bridge", "-j", "fdb", "show", "dev", "rep0"))
    return {row["state"] for row in shown if row["mac"] == host.mac}
