"""cluster.yaml becomes devices and links; every mistake is told with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from schemas.devices import Cluster, LinkRate
from services._runtime.command.errors import BadFileError, MissingFileError
from services.planner.cluster_file import read_cluster

WHOLE = """\
machines:
  a:
    devices: [{kind: l4, count: 2, memory: 22.5GiB}, {kind: a6000, memory: 48GiB}]
    inside: {rate: 88Gbit, latency_ms: 0.01}
    usd_per_hour: 3.0
  b: {devices: [{kind: "sandbox:0.5", memory: 800MiB}], node: host-b}
between:
  default: {rate: 10Gbit, latency_ms: 0.5}
  links:
    - {machines: [a, b], rate: 40Gbit}
ring_factor: 1.05
"""


def read(text: str, folder: Path) -> Cluster:
    file = folder / "cluster.yaml"
    file.write_text(text)
    return read_cluster(file)


def test_a_whole_file(tmp_path: Path) -> None:
    cluster = read(WHOLE, tmp_path)

    rows = [(one.rank, one.kind, one.machine, one.node, one.memory_bytes) for one in cluster.devices]
    assert rows == [
        (0, "l4", "a", "", int(22.5 * 2**30)),
        (1, "l4", "a", "", int(22.5 * 2**30)),
        (2, "a6000", "a", "", 48 * 2**30),
        (3, "sandbox:0.5", "b", "host-b", 800 * 2**20),
    ]
    assert [one.usd_per_hour for one in cluster.devices] == [1.0, 1.0, 1.0, 0.0]  # a third of the machine's each
    links = [(link.first, link.second, link.bytes_per_s, link.latency_us) for link in cluster.links]
    assert links == [("a", "a", 11e9, 10.0), ("a", "b", 5e9, 0.0)]
    assert cluster.between == LinkRate(bytes_per_s=1.25e9, latency_us=500)
    assert (cluster.ring_factor, cluster.uneven_factor) == (1.05, 1.25)


def test_what_has_a_default_may_be_left_out(tmp_path: Path) -> None:
    cluster = read("machines: {a: {devices: [{kind: cpu, memory: 2g}]}}", tmp_path)

    assert [device.memory_bytes for device in cluster.devices] == [2 << 30]
    assert (cluster.links, cluster.between) == ((), None)


@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        ("count: 2", "count: 0", "cluster.yaml:3: machines.a.devices[0].count: should be greater than or equal to 1"),
        ("48GiB", "lots", "cluster.yaml:3: machines.a.devices[1].memory: should be bytes, or such as 512MiB"),
        ("88Gbit", "fast", "cluster.yaml:4: machines.a.inside.rate: 'fast' is no rate"),
        ("0.01", "1.7e308", "cluster.yaml:4: machines.a.inside.latency_ms: should be less than or equal to 1000000000"),
        ("usd_per_hour", "usd", "cluster.yaml:5: unknown field 'machines.a.usd'"),
        ("machines: [a, b]", "machines: [a, c]", "cluster.yaml:10: no machine 'c': there are a, b"),
        ("machines: [a, b]", "machines: [a, a]", "cluster.yaml:10: the rate inside of a belongs to its field 'inside'"),
        (
            "ring_factor",
            "    - {machines: [b, a], rate: 1Gbit}\nring_factor",
            "cluster.yaml:11: b and a stand here a second time",
        ),
        ("1.05", "0.5", "cluster.yaml:11: ring_factor: should be greater than or equal to 1"),
        ("count: 2", "count: 1024", "cluster.yaml:1: 1026 devices, at most 1024 can be planned"),
        ("{kind: l4,", "{", "cluster.yaml:3: 'machines.a.devices[0].kind' is missing"),
    ],
)
def test_a_mistake_is_told_with_its_line(before: str, after: str, sentence: str, tmp_path: Path) -> None:
    assert before in WHOLE
    with pytest.raises(BadFileError) as caught:
        read(WHOLE.replace(before, after), tmp_path)

    assert str(caught.value).removeprefix(f"{tmp_path}/").startswith(sentence)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match=r"cluster\.yaml cannot be read: No such file or directory"):
        read_cluster(tmp_path / "cluster.yaml")
