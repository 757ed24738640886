"""Floors: what a container without limits gets of its agent as soon as it is found, before an owner has decided."""

import pytest

from schemas.apps import AppSpec
from schemas.cfs import CfsBatch
from schemas.streams import APPS
from services.agent.memory.growth import MIB
from tests.support.deadline import until
from tests.support.limit_orders import update
from tests.unit.agent.test_agent_service import lab  # noqa: F401 - a fixture

pytestmark = pytest.mark.virtual_time
SPEC = AppSpec(name="shop", cpu_limit=2, memory_limit=4096 * MIB)
FLOOR = (1_000, 6 * MIB)


def held(container) -> tuple[int, int]:
    return container.quota_us, container.limit_bytes


async def test_a_container_without_limits_has_its_floor_and_is_reported_before_the_next_sample(lab):  # noqa: F811
    async with lab.agent():
        lab.backend.add("first", quota_us=20_000, limit_bytes=64 * MIB)
        await until(lambda: len(lab.batches) > 1, what="batches")
        count = len(lab.batches)
        web = lab.backend.add("web")
        await until(lambda: held(web) == FLOOR, what="its floor")
        await until(lambda: len(lab.batches) > count, what="the next batch")
        batch: CfsBatch = lab.batches[count]

    rows = {row["container"]: row for row in batch.rows()}
    assert (rows[web.key]["quota_us"], rows[web.key]["memory_limit_bytes"], rows[web.key]["periods"]) == (*FLOOR, 0)
    assert len(rows) == 2, "a batch lists all containers"


async def test_what_it_uses_and_a_margin_is_the_least_and_limits_of_its_own_stay(lab):  # noqa: F811
    large = lab.backend.add("large")
    own = lab.backend.add("own", quota_us=30_000, limit_bytes=64 * MIB)
    half = lab.backend.add("half", quota_us=30_000)
    large.run(0, memory_bytes=100 * MIB)
    async with lab.agent():
        await until(lambda: held(large) == (1_000, 104 * MIB), what="its floor")
        await until(lambda: held(half) == (30_000, 6 * MIB), what="its floor of memory")
        assert held(own) == (30_000, 64 * MIB)


@pytest.mark.parametrize("spec", [None, SPEC.model_copy(update={"mode": "observe"})], ids=["none", "observe"])
async def test_of_an_application_that_is_not_enforced_nothing_is_written(lab, spec):  # noqa: F811
    apps = lab.ours.bucket(APPS)
    await (apps.delete("shop") if spec is None else apps.put("shop", spec))
    web = lab.backend.add("web")
    async with lab.agent():
        await until(lambda: len(lab.batches) > 2, what="batches")
        assert held(web) == (-1, -1)
        assert web.writes == []


async def test_the_mode_of_now_counts_not_that_of_the_last_reading(lab):  # noqa: F811
    async with lab.agent():
        await until(lambda: held(lab.backend.add("web")) == FLOOR or lab.batches, what="the first reading")
        await lab.ours.bucket(APPS).put("shop", SPEC.model_copy(update={"mode": "observe"}))
        other = lab.backend.add("other")
        count = len(lab.batches)
        await until(lambda: len(lab.batches) > count + 2, what="batches")
        assert held(other) == (-1, -1)


async def test_a_floor_counts_as_the_agents_own_and_an_order_replaces_it(lab):  # noqa: F811
    web = lab.backend.add("web")
    async with lab.agent():
        await until(lambda: held(web) == FLOOR and lab.batches, what="its floor")
        assert web.oom_controlled
        await lab.order(update, {web.key: (50_000, 200 * MIB)})
        assert held(web) == (50_000, 200 * MIB)
    assert held(web) == (-1, -1), "restored as the agent stops"
