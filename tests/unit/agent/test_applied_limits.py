"""What observers are told of a limit update: the limits in force and each row's outcome, once the allocator knows."""

from __future__ import annotations

import asyncio

import pytest

from schemas.apps import AppSpec
from schemas.codec import MAX_MESSAGE_BYTES, encode
from schemas.limits import LimitReply, LimitsApplied, RowStatus
from schemas.streams import APPS
from schemas.subjects import LIMITS_APPLIED
from services.agent.limits.update_executor import MAX_ROWS, applied_limits
from tests.support.deadline import until
from tests.support.limit_orders import reserve_order, update
from tests.unit.agent.test_agent_service import MIB, lab  # noqa: F401 - a fixture

pytestmark = pytest.mark.virtual_time
NOW_NS = 1_795_284_000_000_000_000
APPLIED, UNCHANGED, FAILED = (int(each) for each in (RowStatus.APPLIED, RowStatus.UNCHANGED, RowStatus.FAILED))


def reply(rows: dict[str, tuple[int, int, int]]) -> LimitReply:
    """To update 9 of epoch 4; rows: container -> (quota_us, limit_bytes, status)."""
    names = "quota_us", "limit_bytes", "status"
    columns = {name: [row[at] for row in rows.values()] for at, name in enumerate(names)}
    columns["limit_update_seq"] = [9] * len(rows)
    return LimitReply.build(list(rows), columns, node="n1", incarnation=7, report_seq=12, epoch=4, seq=9)


def app_of(key: str) -> str | None:
    """The first letter of a key is its application; one that begins with ``?`` was never there."""
    return None if key.startswith("?") else key[0]


def messages(rows: dict[str, tuple[int, int, int]], *apps: str) -> list[LimitsApplied]:
    return list(applied_limits(reply(rows), apps, NOW_NS, app_of))


def test_an_update_of_one_application_is_one_message_with_the_values_in_force() -> None:
    rows = {"a1": (30_000, 64 * MIB, APPLIED), "a2": (20_000, 96 * MIB, UNCHANGED), "a3": (0, 0, FAILED)}
    [message] = messages(rows, "a")

    assert (message.app, message.node, message.incarnation) == ("a", "n1", 7)
    assert (message.report_seq, message.epoch, message.seq, message.time_ns) == (12, 4, 9, NOW_NS)
    assert {row.pop("container"): tuple(row.values()) for row in message.rows()} == rows


@pytest.mark.parametrize("keys", [[], ["a1"], ["a1", "b1"]], ids=["fence", "one application", "two"])
def test_an_update_that_found_every_value_in_force_is_no_message(keys: list[str]) -> None:
    rows = dict.fromkeys(keys, (30_000, 64 * MIB, UNCHANGED))

    assert messages(rows, *sorted({key[0] for key in keys})) == []


@pytest.mark.parametrize("status", [each for each in RowStatus if each is not RowStatus.UNCHANGED])
def test_any_other_outcome_is_told_also_where_nothing_was_written(status: RowStatus) -> None:
    """Else a decision that never took effect would look like one whose message was lost."""
    [message] = messages({"a1": (30_000, 64 * MIB, UNCHANGED), "a2": (30_000, 64 * MIB, int(status))}, "a")

    assert message.column("status").tolist() == [UNCHANGED, status]


def test_an_update_of_several_applications_is_one_message_for_each_that_has_something_to_tell() -> None:
    rows = {
        "a1": (10_000, 1 * MIB, APPLIED),
        "b1": (20_000, 2 * MIB, UNCHANGED),
        "c1": (30_000, 3 * MIB, FAILED),
        "a2": (40_000, 4 * MIB, UNCHANGED),
    }
    first, second = messages(rows, "a", "b", "c")

    assert (first.app, first.keys, first.column("quota_us").tolist()) == ("a", ["a1", "a2"], [10_000, 40_000])
    assert first.column("limit_bytes").tolist() == [1 * MIB, 4 * MIB]
    assert first.column("status").tolist() == [APPLIED, UNCHANGED]
    assert (second.app, second.rows()) == (
        "c",
        [{"container": "c1", "quota_us": 30_000, "limit_bytes": 3 * MIB, "status": FAILED}],
    )
    assert first.seq == second.seq == 9


def test_no_application_is_made_up_for_a_container_that_was_never_there() -> None:
    unknown = (0, 0, int(RowStatus.UNKNOWN_CONTAINER))

    assert messages({"?1": unknown}, "a") == []
    [message] = messages({"?1": unknown, "b1": (10_000, MIB, APPLIED)}, "a", "b")
    assert (message.app, message.keys) == ("b", ["b1"])


def test_many_rows_are_parts_that_the_bus_takes() -> None:
    """With the longest keys that there are: 63 characters of a name, a dash, 12 of the id."""
    keys = [f"a{number:062}-0123456789ab" for number in range(2 * MAX_ROWS + 1)]
    found = messages(dict.fromkeys(keys, (10_000, MIB, APPLIED)), "a")

    assert [message.row_count for message in found] == [MAX_ROWS, MAX_ROWS, 1]
    assert [key for message in found for key in message.keys] == keys
    assert all(len(encode(message)) <= MAX_MESSAGE_BYTES for message in found)


def test_a_key_that_no_container_can_have_is_not_sent_on() -> None:
    """An update may carry anything up to the bus's largest message."""
    rows = {"a1": (10_000, MIB, APPLIED), "?" * (MAX_MESSAGE_BYTES - 200): (0, 0, int(RowStatus.UNKNOWN_CONTAINER))}
    [message] = messages(rows, "a")

    assert message.keys == ["a1"]


# -- the whole agent -------------------------------------------------------------------------------------------------


class Told:
    """What happens on the bus, in order: each LimitsApplied, and ``answer`` where the allocator has its reply."""

    def __init__(self, lab) -> None:  # noqa: F811
        self._lab = lab
        self.events: list[LimitsApplied | str] = []

    async def listen(self) -> None:
        def take(delivery) -> None:
            message = delivery.message
            assert delivery.subject == f"tb.obs.applied.{message.app}.{message.node}"
            self.events.append(message)

        await self._lab.ours.subscribe(LIMITS_APPLIED.pattern("tb"), take)

    async def order(self, build, *arguments, **keywords) -> LimitReply:
        reply = await self._lab.order(build, *arguments, **keywords)
        self.events.append("answer")
        return reply

    @property
    def applied(self) -> list[LimitsApplied]:
        return [each for each in self.events if isinstance(each, LimitsApplied)]

    async def is_told(self, seq: int) -> LimitsApplied:
        await until(lambda: any(each.seq == seq for each in self.applied), what=f"what became of update {seq}")
        [message] = [each for each in self.applied if each.seq == seq]
        return message


@pytest.fixture
async def told(lab) -> Told:  # noqa: F811
    told = Told(lab)
    await told.listen()
    await lab.ours.bucket(APPS).put("cafe", AppSpec(name="cafe", cpu_limit=2, memory_limit=4096 * MIB))
    return told


async def at_work(lab, agent, count: int = 1) -> None:  # noqa: F811
    """Wait until so many containers are sampled."""
    await until(lambda: lab.batches and len(agent.node.containers.managed) == count, what="its containers")


async def test_what_was_applied_is_told_after_the_answer_and_with_its_values(lab, told):  # noqa: F811
    container = lab.backend.add("web", quota_us=20_000, limit_bytes=256 * MIB)
    async with lab.agent() as agent:
        await at_work(lab, agent)
        answer = await told.order(update, {container.key: (30_000, 300 * MIB)})
        message = await told.is_told(1)
        number = agent.node.containers.incarnation.number

    assert [each if each == "answer" else each.seq for each in told.events] == ["answer", 1]
    assert (message.app, message.node, message.incarnation, message.epoch) == ("shop", "n1", number, 1)
    assert message.report_seq == answer.report_seq
    row = {"container": container.key, "quota_us": 30_000, "limit_bytes": 300 * MIB, "status": APPLIED}
    assert message.rows() == [row]


async def test_only_updates_that_changed_something_are_told(lab, told):  # noqa: F811
    container = lab.backend.add("web", quota_us=20_000, limit_bytes=256 * MIB)
    async with lab.agent() as agent:
        await at_work(lab, agent)
        await told.order(update, {container.key: (30_000, 0)})
        await told.order(update, {container.key: (30_000, 0)})
        await told.order(reserve_order, 64 * MIB)
        await told.order(update, {})
        await told.order(update, {container.key: (40_000, 0)})
        await told.is_told(5)

    assert [message.seq for message in told.applied] == [1, 5]


async def test_a_lower_quota_is_told_once_it_is_written(lab, told):  # noqa: F811
    """It waits for the container's period boundary, and so does the answer."""
    container = lab.backend.add("web", quota_us=50_000)
    async with lab.agent() as agent:
        await at_work(lab, agent)
        await until(lambda: lab.batches[-1].column("periods").tolist() == [1], what="a sample of a whole period")
        container.run(10_000)
        await until(lambda: lab.batches[-1].column("used_us").any(), what="a period in which it runs")
        order = asyncio.create_task(told.order(update, {container.key: (20_000, 0)}))
        await until(lambda: agent.node.limits.decreases.pending, what="a decrease that waits")
        assert (container.quota_us, told.events) == (50_000, [])
        container.run(1_000)
        message = await told.is_told(1)
        await order
        assert message.column("quota_us").tolist() == [container.quota_us] == [20_000]


async def test_rows_that_fail_are_told_with_their_reasons(lab, told):  # noqa: F811
    vanished, refused, well = (lab.backend.add(name, quota_us=20_000) for name in ("gone", "refused", "well"))
    async with lab.agent() as agent:
        await at_work(lab, agent, 3)
        vanished.gone, refused.refuse = True, True
        await told.order(update, {each.key: (30_000, 0) for each in (vanished, refused, well)})
        message = await told.is_told(1)

    found = {row["container"]: (row["status"], row["quota_us"]) for row in message.rows()}
    assert found[vanished.key][0] == RowStatus.UNKNOWN_CONTAINER
    assert found[refused.key] == (RowStatus.FAILED, 20_000)
    assert found[well.key] == (RowStatus.APPLIED, 30_000)


async def test_a_container_that_has_exited_is_told_under_its_own_application(lab, told):  # noqa: F811
    """Also where the update names several: the agent remembers whose it was."""
    web, tea = lab.backend.add("web", quota_us=20_000), lab.backend.add("tea", app="cafe", quota_us=20_000)
    async with lab.agent() as agent:
        await at_work(lab, agent, 2)
        tea.gone = True
        await until(lambda: tea.key not in agent.node.containers.limits, what="its exit")
        await told.order(update, {web.key: (30_000, 0), tea.key: (30_000, 0)}, apps=("shop", "cafe"))
        await until(lambda: len(told.applied) == 2, what="both applications' messages")

    found = {message.app: message.rows() for message in told.applied}
    assert [row["status"] for row in found["shop"]] == [RowStatus.APPLIED]
    gone = {"container": tea.key, "quota_us": 0, "limit_bytes": 0, "status": int(RowStatus.UNKNOWN_CONTAINER)}
    assert found["cafe"] == [gone]
