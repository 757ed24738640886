"""Nodes that are registered on the bus, as machines beside this one."""

from __future__ import annotations

from typing import Any

from schemas.containers import NodeInfo
from services.collector.devices.found import FoundCluster, FoundDevice, FoundMachine
from services.collector.devices.registered import with_nodes

GIB = 1 << 30
HERE = FoundCluster((FoundMachine("a", (FoundDevice("cpu", 1, 8 * GIB, "2 cores", "cpu"),)),))


def node(name: str, cpus: int = 4) -> NodeInfo:
    fields: dict[str, Any] = {"incarnation": 1, "time_ns": 1, "telemetry_source": "bpf", "docker": False}
    return NodeInfo(
        node=name, host_cpus=cpus, memory_bytes=16 * GIB, cgroup_version=2, container_count=0, version="1", **fields
    )


def test_each_other_node_is_a_machine_with_a_kind_of_its_own() -> None:
    """Nothing says that two machines with four cores are equally fast."""
    found = with_nodes(HERE, [node("h1"), node("h2", 1)], "here.example")

    assert [machine.name for machine in found.machines] == ["a", "h1", "h2"]
    first, second = (machine.devices[0] for machine in found.machines[1:])
    assert (first.kind, first.memory_bytes, first.torch_device) == ("cpu-h1", 16 * GIB, "")
    assert first.about.startswith("4 cores, by its agent, which knows no GPUs")
    assert second.about.startswith("1 core, ")
    assert found.machines[1].node == "h1"
    assert "turnbuckle layers --kind cpu-h1" in found.machines[1].notes[0]


def test_the_node_of_this_host_is_this_machine() -> None:
    found = with_nodes(HERE, [node("here.example")], "here.example")

    assert [(machine.name, machine.node) for machine in found.machines] == [("a", "here.example")]
    assert found.machines[0].devices == HERE.machines[0].devices


def test_a_machine_that_was_measured_is_not_there_twice() -> None:
    both = FoundCluster((*HERE.machines, FoundMachine("h1", HERE.machines[0].devices)))

    assert [machine.name for machine in with_nodes(both, [node("h1")], "here").machines] == ["a", "h1"]
    assert with_nodes(HERE, [], "here") == HERE
