"""`turnbuckle devices` as a user types it: this machine, the nodes on a bus, and measured sandboxes."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from schemas.containers import NodeInfo
from schemas.streams import NODES
from services._runtime.bus.embedded_server import EmbeddedNats
from services._runtime.bus.nats import NatsBus
from services._runtime.bus.options import BusOptions
from services._runtime.exit_code import ExitCode
from services.cli.main import app
from services.planner.cluster_file import read_cluster

GIB = 1 << 30


@pytest.fixture
def server() -> Iterator[str]:
    """With one registered node."""

    async def start() -> None:
        await nats.start()
        bus = await NatsBus.connect(BusOptions(servers=(nats.url,)))
        info = NodeInfo(
            node="h1",
            incarnation=1,
            time_ns=0,
            host_cpus=8,
            memory_bytes=32 * GIB,
            cgroup_version=2,
            telemetry_source="bpf",
            docker=False,
            container_count=0,
            version="1",
        )
        await bus.bucket(NODES).put("h1", info)
        await bus.close(1)

    nats = EmbeddedNats()
    asyncio.run(start())
    yield nats.url
    asyncio.run(nats.stop())


def run(*words: str) -> Result:
    return CliRunner().invoke(app, ["devices", *words], env={"COLUMNS": "200", "NO_COLOR": "1"})


def test_what_it_prints_is_the_file(tmp_path: Path) -> None:
    done = run("--name", "here", "--kind", "epyc")
    assert done.exit_code == ExitCode.OK, done.output
    file = tmp_path / "cluster.yaml"
    file.write_text(done.stdout)

    (device,) = read_cluster(file).devices
    assert (device.kind, device.machine, device.node) == ("epyc", "here", "")
    assert GIB // 8 < device.memory_bytes <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_registered_nodes_are_further_machines(server: str, tmp_path: Path) -> None:
    out = tmp_path / "cluster.yaml"
    done = run("--server", server, "--name", "here", "--out", str(out), "--json")

    assert done.exit_code == ExitCode.OK, done.output
    *rows, result = (json.loads(line) for line in done.stdout.splitlines())
    assert [(row["event"], row["machine"], row["kind"], row["layer_ms"]) for row in rows] == [
        ("row", "here", "cpu", None),
        ("row", "h1", "cpu-h1", None),
    ]
    assert (result["event"], result["written"]) == ("result", str(out))
    here, other = read_cluster(out).devices
    assert (other.kind, other.machine, other.node, other.memory_bytes) == ("cpu-h1", "h1", "h1", 32 * GIB)
    assert here.machine == "here"


@pytest.mark.root
@pytest.mark.slow
def test_sandboxes_are_measured_under_their_quota(tmp_path: Path) -> None:
    """Torch is started for each of three processes: a quarter of a minute."""
    out = tmp_path / "cluster.yaml"
    done = run("--measure", "--sandbox", "0.5:1GiBx2", "--name", "here", "--out", str(out), "--json")

    assert done.exit_code == ExitCode.OK, done.output
    (row,) = (json.loads(line) for line in done.stdout.splitlines() if '"row"' in line)
    assert (row["kind"], row["devices"], row["memory_mib"]) == ("sandbox:0.5", 2, 1_024)
    assert 0 < row["p10_ms"] <= row["layer_ms"] <= row["p90_ms"]
    cluster = read_cluster(out)
    assert [(device.kind, device.memory_bytes) for device in cluster.devices] == [("sandbox:0.5", GIB)] * 2
    (link,) = cluster.links
    assert (link.first, link.second) == ("here", "here")
    assert link.bytes_per_s > 0
