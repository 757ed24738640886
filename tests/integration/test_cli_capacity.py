"""`turnbuckle apply` compares limits with the registered nodes, over a real server."""

import asyncio
import json

import pytest
from typer.testing import CliRunner

from schemas.apps import AppSpec
from schemas.containers import NodeInfo
from schemas.streams import APPS, NODES
from services._runtime.bus.embedded_server import EmbeddedNats
from services._runtime.bus.nats import NatsBus
from services._runtime.bus.options import BusOptions
from services.cli.main import app as main

GIB = 1 << 30


@pytest.fixture
def server():
    nats = EmbeddedNats()
    asyncio.run(nats.start())
    yield nats.url
    asyncio.run(nats.stop())


async def register(server, node_memory_bytes, *specs):
    bus = await NatsBus.connect(BusOptions(servers=(server,)))
    info = NodeInfo(
        node="h1",
        incarnation=1,
        time_ns=0,
        host_cpus=2,
        memory_bytes=node_memory_bytes,
        cgroup_version=2,
        telemetry_source="bpf",
        docker=False,
        container_count=0,
        version="1",
        allocatable_memory_bytes=node_memory_bytes - GIB // 4,
        committed_memory_bytes=0,
        committed_cpu_us=0,
    )
    await bus.bucket(NODES).put("h1", info)
    for spec in specs:
        await bus.bucket(APPS).put(spec.name, spec)
    await bus.close(1)


def apply(server, directory, limits, *more):
    file = directory / "app.yaml"
    file.write_text(json.dumps(limits))  # JSON is YAML
    return CliRunner().invoke(main, ["apply", str(file), "--json", "--server", server, *more])


@pytest.mark.parametrize("more", [["--dry-run"], ["--limits-only"]])
def test_an_application_larger_than_all_nodes_is_announced_with_a_warning(server, tmp_path, more):
    asyncio.run(register(server, 24 * GIB))
    done = apply(server, tmp_path, {"name": "big", "cpu_limit": 500, "memory_limit": "10TiB"}, *more)

    assert done.exit_code == 0, done.stderr
    memory, cores = json.loads(done.stdout)["warnings"]
    assert memory.startswith("big may use 10 TiB of memory, the registered node h1 has 23.8 GiB allocatable")
    assert cores.startswith("big may use 500 cores, the registered node h1 has 2 cores")
    assert done.stderr.count("warning: big may use") == 2


def test_two_applications_that_together_promise_more_than_the_node_has_are_both_named(server, tmp_path):
    asyncio.run(register(server, 2 * GIB, AppSpec(name="cache", cpu_limit=1, memory_limit=GIB)))
    done = apply(server, tmp_path, {"name": "shop", "cpu_limit": 1, "memory_limit": "1GiB"}, "--limits-only")

    assert json.loads(done.stdout)["warnings"] == [
        (
            "cache (1 GiB) and shop (1 GiB) together may use 2 GiB of memory, the registered node h1 has 1.75 GiB "
            "allocatable for containers: agents refuse what is beyond"
        )
    ]


def test_a_dry_run_where_nobody_has_registered_makes_nothing_and_says_nothing(server, tmp_path):
    done = apply(server, tmp_path, {"name": "big", "cpu_limit": 500, "memory_limit": "10TiB"}, "--dry-run")

    assert (done.exit_code, json.loads(done.stdout)["warnings"]) == (0, [])
    assert "warning" not in done.stderr

    async def streams():
        options = BusOptions(servers=(server,), streams=(), buckets=(), object_stores=())
        bus = await NatsBus.connect(options)
        found = await bus.jetstream.streams_info()
        await bus.close(1)
        return found

    assert asyncio.run(streams()) == []


def test_a_dry_run_without_a_server_says_that_nodes_are_not_known(tmp_path):
    done = apply(
        "nats://127.0.0.1:1", tmp_path, {"name": "big", "cpu_limit": 500, "memory_limit": "10TiB"}, "--dry-run"
    )

    assert (done.exit_code, json.loads(done.stdout)["warnings"]) == (0, [])
    assert "not compared with what the nodes have" in done.stderr
