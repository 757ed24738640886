"""What counts as a limit that moves, which images `up` starts, and the tables that go into the pages."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest

from schemas.subjects import CFS
from scripts import first_run, generate_figures
from scripts.first_run import FirstRunError, Part, PythonRun, Steps
from services._runtime.bus.embedded_server import EmbeddedNats
from services._runtime.bus.nats import NatsBus
from services._runtime.bus.options import BusOptions
from services.cli.up.demo import MANAGED_APP, plan_demo
from tests.bench.figures import Expectation, Spread
from tests.support.cfs_batches import Row, batch

CREATED_WITH_US = plan_demo().limits.quota_us


def python_run(limit_s: float) -> PythonRun:
    return PythonRun(1.0, 20.0, Steps(3.0, limit_s), 61.04, 150.0, "docker")


@pytest.mark.parametrize(
    ("quotas_us", "moved"),
    [((15_000, 15_000), False), ((15_000, 15_100), True), ((14_900,), True), ((-1, 15_000), False), ((), False)],
)
def test_a_limit_has_moved_where_a_quota_is_not_the_first_one(quotas_us: tuple[int, ...], moved: bool) -> None:
    rows = [Row(container=f"web{number}-0123456789ab", quota_us=value) for number, value in enumerate(quotas_us)]
    assert first_run.has_moved(batch(0, rows), 15_000) == moved


async def test_time_counts_to_the_first_quota_of_the_demo_that_moved() -> None:
    """Of another application nothing counts."""
    async with EmbeddedNats() as server:
        bus = await NatsBus.connect(BusOptions(servers=(server.url,), connect_deadline_s=60.0))
        begun_s = time.monotonic()
        watched = asyncio.create_task(first_run.watch(server.url, begun_s))
        tick = 0
        while not watched.done():
            moved = tick > 40
            for app, quota_us in (("other", 20_000), (MANAGED_APP, CREATED_WITH_US + moved)):
                subject = CFS.subject(bus.root, app=app, node="n1")
                bus.publish(subject, batch(tick, [Row(quota_us=quota_us)], app=app))
            tick += 1
            await asyncio.wait({watched}, timeout=0.02)
        steps = await watched
        await bus.close(2.0)
    assert tick > 40
    assert 0 < steps.sample_s <= steps.limit_s <= time.monotonic() - begun_s


def test_a_command_that_ends_without_a_limit_is_told_with_its_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_run, "LONGEST_S", 0.5)
    with pytest.raises(FirstRunError, match=r"sh -c .*: .*\nno cgroup here"):
        first_run.follow(["sh", "-c", "echo no cgroup here >&2"], tmp_path, {"PATH": "/bin"}, "nats://127.0.0.1:1")


def test_images_of_profiles_are_not_started() -> None:
    services = {
        "agent": {"image": "turnbuckle-agent:0.1.0"},
        "web": {"image": "turnbuckle-allocator:0.1.0"},
        "allocator": {"image": "turnbuckle-allocator:0.1.0"},
        "advisor": {"image": "turnbuckle-advisor:0.1.0", "profiles": ["advisor"]},
    }
    assert first_run.images_of({"services": services}) == ["turnbuckle-agent:0.1.0", "turnbuckle-allocator:0.1.0"]


def test_the_tables_show_median_and_range() -> None:
    rows = dict(first_run.python_table([python_run(limit_s) for limit_s in (5.04, 9.0, 4.0)]))
    assert rows["packages fetched from the index"] == "61 MB"
    assert rows["`turnbuckle up --demo` (Docker containers): first limit moved"] == "5 (4-9) s"
    assert rows["all of it, `git clone` included"] == "26 (25-30) s"

    sizes_mb = {"turnbuckle-advisor:0.1.0": 1_070.0, "turnbuckle-agent:0.1.0": 208.2}
    images = first_run.compose_table([Steps(8.0, 14.0)], sizes_mb, 412.0)[1:]
    assert images == [
        ["images that it starts, shared layers counted once", "412 MB"],
        ["`turnbuckle-agent`", "208 MB"],
        ["`turnbuckle-advisor`, with the profile `advisor` only", "1,070 MB"],
    ]


def test_pages_take_what_was_measured() -> None:
    expectation = Expectation("up to the first limit", 40.0, "s", Spread.of([5.0]))
    part = Part("nothing but Python", first_run.python_table([python_run(5.0)]), expectation, [])
    record = json.loads(json.dumps(first_run.record_of(first_run.this_machine(), {"python": part})))
    taken = generate_figures.take_tables(record, "python -m scripts.first_run", "2026-11-26", "0123abc")
    assert "| all of it, `git clone` included | 26 s |" in taken["python"].markdown()
