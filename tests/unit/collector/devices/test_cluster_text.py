"""What was found as cluster.yaml: the planner reads it, and what is not known is said and not invented."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schemas.devices import Cluster, LinkRate
from services._runtime.command.errors import BadFileError
from services.collector.devices.cluster_text import cluster_text
from services.collector.devices.found import FoundCluster, FoundDevice, FoundMachine
from services.collector.layers.block_times import Spread
from services.planner.cluster_file import read_cluster
from services.planner.core.inputs import UnusableInputError, network_of
from tests.support.examples import examples

MIB, GIB = 1 << 20, 1 << 30
RATE = LinkRate(bytes_per_s=1.25e9, latency_us=500)
CPU = FoundDevice("cpu", 1, 23 * GIB, "2 cores (x86_64)", "cpu")
NAMES = st.text("ab01é:#{}[],'\"?!&*%@`|>~ -._/\\\n\x85", min_size=1, max_size=20) | st.sampled_from(
    ("null", "no", "1e3", "~")
)
RATES = st.builds(LinkRate, bytes_per_s=st.floats(1, 1e12), latency_us=st.floats(0, 1e6))


def read(cluster: FoundCluster, directory: Path) -> Cluster:
    file = directory / "cluster.yaml"
    file.write_text(cluster_text(cluster, "found"), encoding="utf-8")
    return read_cluster(file)


@st.composite
def clusters(draw: st.DrawFn) -> FoundCluster:
    devices = st.builds(
        FoundDevice, NAMES, st.integers(1, 4), st.integers(MIB, 1 << 42), st.just("about: it # {} \"\nkind: '")
    )
    machines = tuple(
        FoundMachine(name, tuple(draw(st.lists(devices, min_size=1, max_size=3))), draw(NAMES), draw(st.none() | RATES))
        for name in draw(st.lists(NAMES, min_size=1, max_size=3, unique=True))
    )
    pairs = [(first.name, second.name) for first in machines for second in machines if first.name < second.name]
    return FoundCluster(machines, {pair: draw(RATES) for pair in pairs if draw(st.booleans())})


@given(clusters())
@settings(max_examples=examples(75), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_planner_reads_what_was_found(tmp_path: Path, found: FoundCluster) -> None:
    """Memory in whole MiB, and rates in three digits, of whatever names."""
    cluster = read(found, tmp_path)

    expected = [
        (device.kind, machine.name, machine.node, (device.memory_bytes or 0) // MIB * MIB)
        for machine in found.machines
        for device in machine.devices
        for _ in range(device.count)
    ]
    assert [(each.kind, each.machine, each.node, each.memory_bytes) for each in cluster.devices] == expected
    rates = {(machine.name, machine.name): machine.inside for machine in found.machines if machine.inside is not None}
    rates |= found.between
    written = {frozenset((link.first, link.second)): link for link in cluster.links}
    assert written.keys() == {frozenset(pair) for pair in rates}
    for pair, rate in rates.items():
        link = written[frozenset(pair)]
        assert link.bytes_per_s == pytest.approx(rate.bytes_per_s, rel=6e-3, abs=0.2)
        assert link.latency_us == pytest.approx(rate.latency_us, rel=6e-3)


def test_a_machine_of_one_device_needs_no_rate(tmp_path: Path) -> None:
    text = cluster_text(FoundCluster((FoundMachine("a", (CPU,)),)), "found")

    assert "inside" not in text
    assert "between" not in text
    assert "- {kind: cpu, memory: 23552MiB}  # 2 cores (x86_64)\n" in text
    assert network_of(read(FoundCluster((FoundMachine("a", (CPU,)),)), tmp_path)).latency_ms == ((0.0,),)


def test_a_rate_that_was_not_measured_is_no_rate(tmp_path: Path) -> None:
    """The file says how to find it out, and the plan asks for it."""
    two = FoundMachine("a", (FoundDevice("l4", 2, 22 * GIB, "NVIDIA L4"),))
    found = FoundCluster((two, FoundMachine("b", (CPU,))))
    text = cluster_text(found, "found")

    assert "# inside: {rate: ?, latency_ms: ?} is not known: turnbuckle devices --measure measures it" in text
    assert "turnbuckle devices --measure --machines 2 --rank R --master HOST:29500" in text
    with pytest.raises(UnusableInputError, match="no transfer rate inside machine a is given: turnbuckle devices"):
        network_of(read(found, tmp_path))


def test_pairs_that_were_not_measured_stand_beside_those_that_were(tmp_path: Path) -> None:
    found = FoundCluster(tuple(FoundMachine(name, (CPU,)) for name in "abc"), {("b", "a"): RATE})

    assert "    # - {machines: [a, c]}: not measured\n" in cluster_text(found, "found")
    assert [(link.first, link.second) for link in read(found, tmp_path).links] == [("a", "b")]


def test_a_device_of_unknown_memory_is_a_comment(tmp_path: Path) -> None:
    gpu = FoundDevice("?", 1, None, "torch is not installed")
    found = FoundCluster((FoundMachine("a", (gpu, CPU), notes=("a note",)),))
    text = cluster_text(found, "found")

    assert '      # - {kind: "?", memory: ?}  # torch is not installed\n' in text
    assert "      # a note\n" in text
    assert [device.kind for device in read(found, tmp_path).devices] == ["cpu"]
    alone = FoundCluster((FoundMachine("a", (gpu,)), FoundMachine("b", (CPU,))))
    assert [device.machine for device in read(alone, tmp_path).devices] == ["b"]
    with pytest.raises(BadFileError, match="machines"):
        read(FoundCluster((FoundMachine("a", (gpu,)),)), tmp_path)


def test_speeds_are_beside_the_fastest() -> None:
    """80 ms is twice 40 ms."""
    fast, slow = (
        FoundDevice(kind, 1, GIB, "about", speed=Spread(us, 0.9 * us, 1.2 * us))
        for kind, us in (("fast", 40_000), ("slow", 80_000))
    )
    text = cluster_text(FoundCluster((FoundMachine("a", (fast, slow)),)), "found")

    assert "# about; reference layer 40 ms (36 to 48), the fastest here\n" in text
    assert "# about; reference layer 80 ms (72 to 96), 2.00 times the fastest here\n" in text
