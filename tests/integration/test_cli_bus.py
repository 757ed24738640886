"""Commands against a real NATS server."""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from schemas.apps import AppSpec
from schemas.leases import MEMBERS_KEY, Heartbeat, Members
from schemas.oom import OomKind
from schemas.queries import AppState, ContainerState, ExplainReply, Explanation, StateReply
from schemas.services.allocator import ALLOCATOR_EXPLAIN, ALLOCATOR_STATE
from schemas.streams import APPS, LEASES, OOM_STREAM
from schemas.subjects import CFS, CONTAINER_EVENTS, LIMIT_DECISIONS, OOM_EVENTS
from services._runtime.bus.api import Delivery, RequestRefusedError
from services._runtime.bus.embedded_server import EmbeddedNats
from services._runtime.bus.nats import NatsBus
from services._runtime.bus.nats_history import read_stored
from services._runtime.bus.options import BusOptions
from services.cli.apps.subscriptions import subscribe_sinks
from services.cli.apps.view_model import ViewModel
from services.cli.main import app
from tests.support.cfs_batches import batch, decisions
from tests.support.cluster_lab import poll
from tests.support.deadline import until
from tests.support.oom_events import MIB, drift, oom_event

LIMITS = "name: shop\ncpu_limit: 2\nmemory_limit: 1GiB\n"


@pytest.fixture
async def bus() -> AsyncIterator[NatsBus]:
    async with EmbeddedNats() as server:
        connection = await NatsBus.connect(BusOptions(servers=(server.url,)))
        yield connection
        await connection.close(2.0)


async def turnbuckle(bus: NatsBus, *arguments: str) -> tuple[int, str, str]:
    """In a thread of this process: a tenth of a second instead of a whole one."""
    done = await asyncio.to_thread(CliRunner().invoke, app, [*arguments, "--server", bus.options.servers[0]])
    return done.exit_code, done.stdout, done.stderr


async def finished(bus: NatsBus, *arguments: str) -> tuple[int, str, str]:
    """In a process of its own, for commands that handle signals."""
    process = await start(bus, *arguments)
    out, err = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def until_shown(bus: NatsBus, text: str, *arguments: str) -> tuple[int, str, str]:
    """The same, again until a text is printed: what is seen in a second depends on what others get to say in it."""

    async def shown() -> tuple[int, str, str] | None:
        done = await finished(bus, *arguments)
        return done if text in done[1] + done[2] else None

    done: tuple[int, str, str] = await poll(shown, what=f"{text!r} of {arguments}")
    return done


async def start(bus: NatsBus, *arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "services.cli",
        *arguments,
        "--server",
        bus.options.servers[0],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


async def publishing(bus: NatsBus) -> None:
    """What an agent and an allocator say, for ever, with some garbage between."""
    tick = 0
    while True:
        bus.publish(CFS.subject("tb", app="shop", node="n1"), batch(tick))
        bus.publish(LIMIT_DECISIONS.subject("tb", app="shop"), decisions(tick))
        bus.connection.send_now("tb.obs.garbage", b"\xc1\x00")
        bus.connection.send_now("elsewhere.subject", b"{}")
        tick += 1
        await asyncio.sleep(0.02)


async def storing_facts(bus: NatsBus) -> None:
    """What an agent tells about a container at its memory limit, for ever."""
    for number in itertools.count():
        event = oom_event(cause="threshold", time_ns=time.time_ns(), latency_us=420, reason="growing by 1024 MiB/s")
        bus.publish_event(OOM_EVENTS.subject("tb", app="shop", node="n1"), event, message_id=f"soon-{number}")
        await asyncio.sleep(0.05)


@pytest.fixture
async def stream(bus: NatsBus) -> AsyncIterator[NatsBus]:
    task = asyncio.create_task(publishing(bus))
    yield bus
    task.cancel()
    await asyncio.wait({task})


async def test_limits_are_announced_listed_and_withdrawn(bus: NatsBus, tmp_path: Path) -> None:
    file = tmp_path / "app.yaml"
    file.write_text(LIMITS + "containers:\n  - {name: web, image: x, replicas: 2}\n")
    code, out, err = await turnbuckle(bus, "apply", str(file), "--limits-only", "--json")

    assert (code, json.loads(out)["containers"]) == (0, []), err
    entry = await bus.bucket(APPS).get("shop")
    assert entry is not None
    assert isinstance(entry.message, AppSpec)
    assert (entry.message.cpu_limit, entry.message.announced_containers) == (2.0, 2)

    code, out, err = await turnbuckle(bus, "apps", "--json")
    listed = json.loads(out)

    assert (listed["apps"][0]["app"], listed["allocator"]) == ("shop", False)
    assert "no allocator answers" in err

    code, out, _ = await turnbuckle(bus, "delete", "shop", "--yes", "--json")

    assert (code, json.loads(out)["announced"]) == (0, True)
    assert await bus.bucket(APPS).get("shop") is None

    code, _, err = await turnbuckle(bus, "delete", "shop", "--yes")

    assert (code, "there is no application" in err) == (1, True)


async def test_tap_shows_everything_and_breaks_at_nothing(stream: NatsBus) -> None:
    code, out, _ = await finished(stream, "tap", "obs.>", "--count", "9")
    lines = [json.loads(line) for line in out.splitlines()]

    assert (code, len(lines)) == (0, 9)
    assert {line.get("type") for line in lines} == {
        "turnbuckle.cfs.v1.CfsBatch",
        "turnbuckle.limits.v1.LimitDecisions",
        None,
    }
    assert next(line for line in lines if "undecodable" in line)["size_bytes"] == 2

    code, out, _ = await finished(stream, "tap", "elsewhere.>", "--absolute", "--count", "1")

    assert json.loads(out)["subject"] == "elsewhere.subject"


async def test_tap_shows_memory_events_as_they_are_stored(bus: NatsBus) -> None:
    process = await start(bus, "tap", "evt.oom.>", "--count", "1")
    store_facts_soon = asyncio.create_task(storing_facts(bus))
    out, err = await asyncio.wait_for(process.communicate(), 60)
    store_facts_soon.cancel()
    shown = json.loads(out)

    assert err == b""
    assert shown["subject"] == "tb.evt.oom.shop.n1"
    assert {key: shown[key] for key in ("kind", "cause", "container", "limit_after_bytes", "latency_us", "reason")} == {
        "kind": "grant",
        "cause": "threshold",
        "container": "web-0123456789ab",
        "limit_after_bytes": 132 * MIB,
        "latency_us": 420,
        "reason": "growing by 1024 MiB/s",
    }


async def test_tap_ends_after_its_time_and_at_an_interrupt(stream: NatsBus) -> None:
    code, out, _ = await finished(stream, "tap", "evt.>", "--for", "0.2")

    assert (code, out) == (0, "")

    process = await start(stream, "tap", "obs.>")
    assert process.stdout
    assert process.stderr
    await asyncio.wait_for(process.stdout.readline(), 60)
    process.terminate()

    _, err = await asyncio.wait_for(process.communicate(), 60)
    assert (process.returncode, err) == (0, b"")


async def test_tap_bears_a_reader_that_goes_away(stream: NatsBus) -> None:
    process = await asyncio.create_subprocess_shell(
        f"{sys.executable} -m services.cli tap 'obs.>' --server {stream.options.servers[0]} | head -n 1",
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), 60)

    assert len(out.splitlines()) == 1
    assert err == b""


async def test_top_once_shows_what_was_just_seen(stream: NatsBus) -> None:
    code, out, _ = await until_shown(stream, "throttled: ", "top", "--once", "--json")
    (shop,) = json.loads(out)["apps"]

    assert code == 0
    assert shop["cpu_allocated_us"] == 80_000
    assert shop["containers"][0]["last_reason"].startswith("throttled: ")

    code, out, _ = await until_shown(stream, "web", "top", "shop", "--once")

    assert code == 0


async def test_top_of_an_application_that_is_not_there_names_those_that_are(stream: NatsBus) -> None:
    """A misspelt name is no empty cluster."""
    await stream.bucket(APPS).put("shop", state_reply().apps[0].spec)
    for options in (("--once",), ("--json",)):
        named = "there is no application 'shpo' (known: shop)"
        code, out, _ = await until_shown(stream, named, "top", "shpo", *options)

        assert (code, out) == (1, "")


async def test_top_hears_of_memory_events_and_owners(stream: NatsBus) -> None:
    await stream.bucket(LEASES).put(MEMBERS_KEY, Members(epoch=9, replicas=("r1",)))
    task = asyncio.create_task(storing_facts(stream))
    code, out, _ = await until_shown(stream, "granted 32 MiB", "top", "--once", "--json")
    task.cancel()
    snapshot = json.loads(out)
    (shop,) = snapshot["apps"]

    assert code == 0
    assert shop["owner"] == "r1"
    assert shop["memory"]["grants"] > 0
    assert shop["containers"][0]["memory"]["slowest_grant_us"] == 420
    assert shop["containers"][0]["last_memory_event"].startswith("granted 32 MiB in 420 us")
    assert snapshot["memory_events"][-1]["sentence"] == shop["containers"][0]["last_memory_event"]


async def test_top_without_a_terminal_prints_lines_until_interrupted(stream: NatsBus) -> None:
    process = await start(stream, "top")
    assert process.stdout
    line = await asyncio.wait_for(process.stdout.readline(), 60)
    process.terminate()
    await asyncio.wait_for(process.communicate(), 60)

    assert line.startswith(b"shop: ")
    assert process.returncode == 0


def state_reply() -> StateReply:
    spec = AppSpec.model_validate({"name": "shop", "cpu_limit": 2, "memory_limit": "1GiB"})
    container = ContainerState(
        container="web-0123456789ab",
        node="n1",
        quota_us=20_000,
        assigned_us=20_000,
        committed_us=20_000,
        used_us=10_000,
        throttled=False,
        memory_usage_bytes=1,
        memory_limit_bytes=2,
        memory_committed_bytes=2,
        admitted=True,
        report_age_s=0.1,
    )
    state = AppState(
        spec=spec,
        cpu_committed_us=20_000,
        cpu_free_us=180_000,
        memory_committed_bytes=2,
        memory_free_bytes=3,
        memory_reserved_bytes=64 * MIB,
        owner="r1",
        epoch=4,
        containers=(container,),
    )
    return StateReply(epoch=1, steps=2, superseded=False, apps=(state,))


async def test_queries_are_asked_and_refusals_told(bus: NatsBus) -> None:
    async def state(_: Delivery) -> Any:
        return state_reply()

    async def explain(delivery: Delivery) -> Any:
        request: Any = delivery.message
        if request.app != "shop":
            raise RequestRefusedError(404, f"no application {request.app!r}")
        decision = Explanation(
            time_ns=1_700_000_000_000_000_000,
            container="web-0123456789ab",
            resource="cpu",
            before=20_000,
            after=40_000,
            reason="throttled",
            sentence="throttled [10 of 10]",
        )
        return ExplainReply(app="shop", summary="shop holds 0.2 of 2 cores", decisions=(decision,))

    await bus.serve_queries("allocator", "0.1.0", "test", {ALLOCATOR_STATE: state, ALLOCATOR_EXPLAIN: explain})
    await bus.bucket(APPS).put("shop", state_reply().apps[0].spec)
    code, out, err = await turnbuckle(bus, "apps")

    assert code == 0, err
    assert out.splitlines()[1].split()[:6] == ["shop", "1", "2.00", "0.20", "1.80", "1"]
    assert out.splitlines()[0].split()[-1] == "OWNER"
    assert out.splitlines()[1].split()[-1] == "r1"
    assert "64 MiB" in out.splitlines()[1]

    code, out, _ = await turnbuckle(bus, "explain", "shop")

    assert "cpu 0.20 → 0.40 cores: throttled [10 of 10]" in out

    code, _, err = await turnbuckle(bus, "explain", "other")

    assert (code, "no application 'other'" in err) == (1, True)


async def test_explain_knows_why_a_container_was_killed_although_nobody_decides(bus: NatsBus) -> None:
    """From the stream: newest trouble of each container, however many grants came after it."""
    now_ns = time.time_ns()
    subject = OOM_EVENTS.subject("tb", app="shop", node="n1")
    events = [oom_event(OomKind.KILL, time_ns=now_ns, reason="0 of 512 MiB are free")]
    events += [oom_event(time_ns=now_ns + number) for number in range(1, 700)]
    events += [oom_event(OomKind.OOM_WAIT, container="db-0123456789ab", time_ns=now_ns)]
    for number, event in enumerate(events):
        bus.publish_event(subject, event, message_id=str(number))
    bus.publish_event(CONTAINER_EVENTS.subject("tb", app="shop", node="n1"), drift(), message_id="drift")
    await bus.flush(60)

    code, out, err = await turnbuckle(bus, "explain", "shop")

    assert code == 0, err
    assert "no allocator answers" in err
    assert "Memory in the last 24h: 699 grants (21.8 GiB), 1 OOM wait, 1 kill, 1 limits modified externally" in out
    assert "web-0123456789ab on n1  OOM killed at its limit of 100 MiB: 0 of 512 MiB are free" in out
    assert (
        "web-0123456789ab on n1  limits drifted: modified externally: memory limit 100 MiB became 64 MiB, put back"
        in out
    )

    code, out, _ = await turnbuckle(bus, "explain", "shop", "--container", "db", "--json", "--since", "1h")
    memory = json.loads(out)["memory"]

    assert [event["kind"] for event in memory["events"]] == ["oom_wait"]
    assert memory["total"]["kills"] == 0
    assert (await bus.jetstream.stream_info("TB_OOM")).state.consumer_count == 0

    code, _, err = await turnbuckle(bus, "explain", "other")

    assert (code, "no allocator answers" in err) == (69, True)


async def test_events_older_than_asked_for_are_left_out(bus: NatsBus) -> None:
    subject = OOM_EVENTS.subject("tb", app="shop", node="n1")
    found: list[Delivery] = []
    bus.publish_event(subject, oom_event(), message_id="1")
    bus.connection.send_now(subject.text, b"\xc1 no message")
    await bus.flush(60)
    await read_stored(bus, OOM_STREAM, OOM_EVENTS.pattern("tb", app="shop"), time.time() + 60, found.append)

    assert found == []

    await read_stored(bus, OOM_STREAM, OOM_EVENTS.pattern("tb", app="other"), 0, found.append)

    assert found == []

    await read_stored(bus, OOM_STREAM, OOM_EVENTS.pattern("tb", app="shop"), 0, found.append)

    assert [delivery.message for delivery in found] == [oom_event()]


async def test_the_doctor_sees_replicas_that_renew_their_entries(bus: NatsBus) -> None:
    async def beat() -> None:
        while True:
            await bus.bucket(LEASES).put("replica.r1", Heartbeat(replica="r1", epoch=1, time_ns=time.time_ns()))
            await asyncio.sleep(0.1)

    await bus.bucket(LEASES).put("replica.r2", Heartbeat(replica="r2", epoch=1, time_ns=0))
    unable = {"shop": ("r2",), "lost": ("r1",)}
    await bus.bucket(LEASES).put(MEMBERS_KEY, Members(epoch=1, replicas=("r1", "r2"), unable=unable))
    for name in ("shop", "lost"):
        await bus.bucket(APPS).put(name, AppSpec.model_validate({"name": name, "cpu_limit": 2, "memory_limit": "1GiB"}))
    task = asyncio.create_task(beat())

    async def found_alive() -> dict[str, Any] | None:
        """All that it found, where the disk let the replica renew its entry while the doctor looked."""
        _, out, _ = await turnbuckle(bus, "doctor", "--json")
        found = {finding["name"]: finding for finding in json.loads(out)}
        return found if found["allocators"]["found"].startswith("r1") else None

    found = await poll(found_alive, what="the replica that renews its entry")
    task.cancel()

    assert found["allocators"]["found"] == "r1; silent: r2"
    assert found["owners"]["found"] == "no owner of lost"


async def test_the_doctor_sees_the_server(bus: NatsBus) -> None:
    code, out, err = await turnbuckle(bus, "doctor", "--json")
    found = {finding["name"]: finding for finding in json.loads(out)}

    assert code == 0, err
    assert found["nats"]["level"] == "ok"
    assert "JetStream" in found["nats"]["found"]


async def test_top_hears_of_withdrawn_limits(bus: NatsBus) -> None:
    state = ViewModel()
    await subscribe_sinks(bus, lambda: (state,))
    bus.publish(CFS.subject("tb", app="shop", node="n1"), batch(0))

    await until(lambda: "shop" in state.apps)
