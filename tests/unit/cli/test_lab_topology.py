"""Names and addresses of the lab, and the ports that faults act on."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from services.fabric.frr_text import tor_configuration
from services.fabric.layout import priorities
from services.fabric.model import Bfd
from services.fabric.testbed.faults import (
    Direction,
    Fault,
    FaultKind,
    alternating,
    changed_ports,
    check,
    dead_switches,
    port_states,
)
from services.fabric.testbed.hosts import host_file, tor_switch
from services.fabric.testbed.topology import CableEnd, DualTor, LabSettings, PortState
from tests.support.lab_faults import blackhole, isl_lost, link_down, switch_dead

TOPOLOGY = DualTor.of(LabSettings(prefix="x", hosts=3))
FAULTS = st.builds(
    Fault,
    kind=st.sampled_from(FaultKind),
    host=st.integers(1, 3),
    switch=st.integers(1, 2),
    direction=st.sampled_from(Direction),
)


@pytest.mark.parametrize("hosts", [2, 3, 4])
def test_every_name_address_and_cable_end_is_there_once(hosts: int) -> None:
    topology = DualTor.of(LabSettings(hosts=hosts))
    ends = [end for cable in topology.cables for end in (cable.first, cable.second)]

    # Two cables for each host, and the one between the switches.
    assert len(topology.cables) == 2 * hosts + 1
    assert len(set(ends)) == len(ends)
    # A namespace for each host and its application, and two switches.
    assert len(set(topology.namespaces)) == 2 * hosts + 2
    addresses = [host.vtep for host in topology.hosts] + [switch.router_id for switch in topology.switches]
    assert len(set(addresses)) == hosts + 2
    assert {end.port for end in ends if end.netns == "tb-s1"} == set(topology.switches[0].ports)


def test_a_host_is_one_that_the_fabric_accepts() -> None:
    file = host_file(TOPOLOGY, TOPOLOGY.host(2), realtime=True)

    assert (file.asn, str(file.vtep), file.pathspace) == (65_002, "10.255.0.2", "x-h2")
    assert [uplink.name for uplink in file.uplinks] == ["p1", "p2"]
    assert (file.ports[0].mac, file.ports[0].netns) == ("02:00:00:00:00:02", "x-a2")


def test_without_bfd_no_bfdd_is_configured() -> None:
    settings = LabSettings(bfd=None)
    topology = DualTor.of(settings)

    assert host_file(topology, topology.host(1), realtime=False).bfd is None
    switch = tor_switch(settings, topology.switch(1))
    assert set(priorities(with_bfd=switch.bfd is not None, realtime=False)) == {"zebra", "bgpd"}
    assert " bfd" not in tor_configuration(switch).bgpd


def test_a_bfd_timing_is_read_as_people_write_it() -> None:
    # 10 ms three times.
    assert str(Bfd.parse("50x3")) == "50x3"
    for wrong in ("50", "x3", "50 x 3", "5x3"):
        with pytest.raises(ValueError, match=r"50x3|greater than or equal to 10"):
            Bfd.parse(wrong)


@pytest.mark.parametrize("prefix", ["", "Tb", "1t", "a-b", "a/b", "abcdefghijk"])
def test_a_prefix_that_would_not_be_a_name_is_refused(prefix: str) -> None:
    with pytest.raises(ValidationError):
        LabSettings(prefix=prefix)


@pytest.mark.parametrize(
    ("fault", "end", "state"),
    [
        (link_down(2, 1), CableEnd("x-s1", "d2"), PortState(up=False)),
        (blackhole(1, 2), CableEnd("x-s2", "d1"), PortState(drops_from_cable=True, drops_to_cable=True)),
        # What the host sends comes from the cable, in the switch's eyes.
        (blackhole(1, 2, Direction.FROM_HOST), CableEnd("x-s2", "d1"), PortState(drops_from_cable=True)),
        (blackhole(1, 2, Direction.TO_HOST), CableEnd("x-s2", "d1"), PortState(drops_to_cable=True)),
        (isl_lost(), CableEnd("x-s1", "isl"), PortState(up=False)),
    ],
    ids=str,
)
def test_a_fault_acts_on_one_port(fault: Fault, end: CableEnd, state: PortState) -> None:
    states = port_states(TOPOLOGY, [fault])

    assert states.pop(end) == state
    assert set(states.values()) == {PortState()}


def test_a_dead_switch_takes_all_its_ports_down() -> None:
    states = port_states(TOPOLOGY, [switch_dead(2)])

    assert all(state.up is (end.netns != "x-s2") for end, state in states.items())
    assert dead_switches([switch_dead(2), link_down(1, 1)]) == {2}


def test_a_restored_fault_leaves_another_one_of_the_same_port_in_force() -> None:
    both = [switch_dead(1), link_down(1, 1)]

    changes = changed_ports(TOPOLOGY, both, [link_down(1, 1)])

    # d1 stays down: its link is cut as well.
    assert set(changes["x-s1"]) == {"d2", "d3", "isl"}


@given(st.lists(FAULTS, max_size=6, unique=True), st.randoms(use_true_random=False))
def test_restored_in_any_order_all_ports_are_healthy(faults: list[Fault], order: object) -> None:
    ports = port_states(TOPOLOGY, faults)
    left = list(faults)
    while left:
        order.shuffle(left)
        after = left[1:]
        for netns, changes in changed_ports(TOPOLOGY, left, after).items():
            for port, (was, becomes) in changes.items():
                assert ports[CableEnd(netns, port)] == was
                ports[CableEnd(netns, port)] = becomes
        left = after

    assert set(ports.values()) == {PortState()}


def test_faults_that_the_lab_cannot_have_are_refused() -> None:
    with pytest.raises(ValueError, match="no host 4"):
        check(link_down(4, 1), TOPOLOGY)
    with pytest.raises(ValueError, match="no switch 3"):
        check(switch_dead(3), TOPOLOGY)


def test_both_switches_in_turn() -> None:
    series = itertools.islice(alternating(blackhole(1, 2)), 4)

    assert [fault.switch for fault in series] == [2, 1, 2, 1]
