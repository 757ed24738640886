"""What the console folds out of observations: a row per container and second, sums, reasons, and who has gone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.apps import AppSpec
from schemas.cfs import SampleFlag
from schemas.leases import Members
from schemas.limits import LimitDecisions
from schemas.queries import AppState
from schemas.reasons import Reason, sentence
from services.console.container_group import COLUMNS, MOST_UNSUMMED
from services.console.live_state import STALE_S, LiveState
from tests.support.cfs_batches import Row, batch, decisions

TIME_S = 1_700_000_000.0
WEB, DB = Row("web-0123456789ab"), Row("db-0123456789ab", used_us=4_000, memory_usage_bytes=10 << 20)


class Told:
    """A state and what it told."""

    def __init__(self) -> None:
        self.state = LiveState()
        self.second = 0

    def tick(self, *, connected: bool = True) -> dict[str, dict[str, Any]]:
        """End a second; messages by key."""
        self.second += 1
        changes = self.state.tick(TIME_S + self.second, float(self.second), connected=connected)
        return {change.key: msgpack.unpackb(change.data) | {"removed": change.removed} for change in changes}

    def rows(self, told: dict[str, dict[str, Any]], node: str = "n1") -> dict[str, dict[str, float]]:
        """Of application shop, by container."""
        message = told[f"rows/shop/{node}"]
        keys = message["containers"].split("\n")
        values = np.frombuffer(message["values"], dtype="<f4").reshape(len(COLUMNS), len(keys))
        return {key: dict(zip(COLUMNS, values[:, row].tolist(), strict=True)) for row, key in enumerate(keys)}


def test_a_second_is_the_mean_of_its_batches_and_the_newest_limits() -> None:
    told = Told()
    for tick, used_us in enumerate((1_000, 3_000, 5_000)):
        told.state.add_batch(batch(tick, [replace(WEB, used_us=used_us, quota_us=20_000 + tick), DB]), 0.0)
    rows = told.rows(told.tick())
    assert rows["web-0123456789ab"]["used_us"] == 3_000
    assert rows["web-0123456789ab"]["quota_us"] == 20_002
    assert rows["db-0123456789ab"]["memory_bytes"] == 10 << 20
    # Nothing new: what was heard last stays.
    assert told.rows(told.tick())["web-0123456789ab"]["used_us"] == 3_000


ROWS = st.lists(
    st.builds(
        Row,
        container=st.sampled_from(["a", "b", "c"]),
        periods=st.integers(0, 3),
        used_us=st.integers(0, 2**31 - 1),
        throttled=st.integers(0, 3),
        flags=st.sampled_from([0, SampleFlag.IDLE, SampleFlag.WALL_CLOCK]),
    ),
    unique_by=lambda row: row.container,
)


@given(st.lists(ROWS, min_size=1, max_size=12))
def test_a_seconds_batches_are_added_up_as_if_one_came_after_another(batches: list[list[Row]]) -> None:
    told = Told()
    sums: dict[str, list[int]] = {}
    for tick, rows in enumerate(batches):
        told.state.add_batch(batch(tick, rows), 0.0)
        # Used, samples, periods, throttled; who is missing in a batch begins anew.
        sums = {row.container: sums.get(row.container, [0, 0, 0, 0]) for row in rows}
        for row in rows:
            if row.periods or row.flags:
                new = (row.used_us, 1, max(row.periods, 1), row.throttled)
                sums[row.container] = [one + more for one, more in zip(sums[row.container], new, strict=True)]
    message = told.tick()["rows/shop/n1"]
    keys = message["containers"].split("\n") if message["containers"] else []
    values = np.frombuffer(message["values"], dtype="<f4").reshape(len(COLUMNS), -1)
    assert keys == [row.container for row in batches[-1]]
    for place, key in enumerate(keys):
        used_us, samples, periods, throttled = sums[key]
        assert values[0, place] == pytest.approx(used_us / samples if samples else 0.0, rel=1e-6)
        assert values[2, place] == pytest.approx(min(1.0, throttled / periods) if periods else 0.0, rel=1e-6)


def test_of_a_flood_of_batches_few_are_kept() -> None:
    """One host's key may send as many in a second as it likes. Of 1 to 1,000 the mean is 500.5."""
    told = Told()
    for tick in range(1, 1_001):
        told.state.add_batch(batch(tick, [replace(WEB, used_us=tick)]), 0.0)
    (group,) = told.state._groups.values()
    assert len(group._unsummed) < MOST_UNSUMMED
    assert told.rows(told.tick())["web-0123456789ab"]["used_us"] == 500.5


def test_throttling_is_a_share_of_the_last_ten_seconds() -> None:
    told = Told()
    for second in range(12):
        for tick in range(10):
            throttled = 1 if second < 2 and tick < 5 else 0
            told.state.add_batch(batch(10 * second + tick, [replace(WEB, throttled=throttled)]), float(second))
        share = told.rows(told.tick())["web-0123456789ab"]["throttled_share"]
        # 5 of 10, 10 of 20, ..., 10 of 100; the first two seconds leave the window with the 11th and 12th.
        expected = {0: 0.5, 1: 0.5, 4: 0.2, 9: 0.1, 10: 0.05, 11: 0.0}
        if second in expected:
            assert share == pytest.approx(expected[second])


def test_an_early_sample_tells_of_throttling_only() -> None:
    told = Told()
    told.state.add_batch(batch(0, [WEB, DB]), 0.0)
    early = [replace(WEB, used_us=20_000, throttled=1, flags=int(SampleFlag.EARLY)), replace(DB, periods=0)]
    told.state.add_batch(batch(1, early), 0.0)
    row = told.rows(told.tick())["web-0123456789ab"]
    assert row["used_us"] == WEB.used_us
    assert row["throttled_share"] == 1.0


def test_batches_out_of_order_and_of_an_old_agent_are_left_out() -> None:
    told = Told()
    told.state.add_batch(batch(5, [WEB]), 0.0)
    told.state.add_batch(batch(4, [replace(WEB, used_us=99_000)]), 0.0)
    told.state.add_batch(batch(9, [replace(WEB, used_us=99_000)], incarnation=0), 0.0)
    assert told.rows(told.tick())["web-0123456789ab"]["used_us"] == WEB.used_us


def test_containers_that_come_and_go_keep_their_own_figures() -> None:
    told = Told()
    told.state.add_batch(batch(0, [WEB, replace(DB, throttled=1)]), 0.0)
    new = Row("new-0123456789ab", used_us=7_000)
    told.state.add_batch(batch(1, [new, DB]), 0.0)
    rows = told.rows(told.tick())
    assert list(rows) == ["new-0123456789ab", "db-0123456789ab"]
    assert rows["new-0123456789ab"]["used_us"] == 7_000
    assert rows["db-0123456789ab"]["throttled_share"] == 0.5


def test_who_is_not_heard_has_gone_but_not_while_nothing_can_be_heard() -> None:
    told = Told()
    told.state.add_batch(batch(0, [WEB]), 0.0)
    for _ in range(int(STALE_S) + 2):
        kept = told.tick(connected=False)
    assert not kept["rows/shop/n1"]["removed"]
    gone = told.tick()
    assert gone["rows/shop/n1"] == {"type": "console.Gone", "app": "shop", "node": "n1", "removed": True}
    assert gone["app/shop"]["removed"]
    assert "rows/shop/n1" not in told.tick()
    # What was known of it can be read on; while nothing was heard there is no history.
    series = told.state.history("shop", "n1", "web-0123456789ab")
    assert series is not None
    assert (~np.isnan(series.values[0])).tolist() == [True] * int(STALE_S) + [False] * 4


def test_an_application_is_the_sum_over_its_hosts() -> None:
    told = Told()
    told.state.announce("shop", AppSpec(name="shop", cpu_limit=2.0, memory_limit=1 << 30))
    told.state.add_batch(batch(0, [WEB, replace(DB, quota_us=-1)]), 0.0)
    told.state.add_batch(batch(0, [WEB], node="n2"), 0.0)
    now = told.tick()
    assert now["tick"]["apps"] == {"shop": [24_000.0, 40_000.0, 0.0, float(110 << 20), float(300 << 20)]}
    assert now["app/shop"] | {"removed": 0} == {
        "type": "console.App",
        "app": "shop",
        "mode": "enforce",
        "policy": "waterfill",
        "owner": "",
        "announced": True,
        "cpu_limit_us": 200_000,
        "cpu_held_us": 0,
        "memory_limit_bytes": 1 << 30,
        "memory_held_bytes": 0,
        "memory_reserved_bytes": 0,
        "removed": 0,
    }
    series = told.state.history("shop")
    assert series is not None
    assert series.values[:, 0].tolist() == [24_000, 40_000, 0, 110 << 20, 300 << 20, 200_000, 1 << 30]


def test_pools_come_from_the_allocator_and_its_decisions() -> None:
    told = Told()
    spec = AppSpec(name="shop", cpu_limit=2.0, memory_limit=1 << 30)
    told.state.announce("shop", spec)
    told.state.set_members(Members(epoch=1, replicas=("r1",)))
    state = AppState(
        spec=spec,
        cpu_committed_us=5,
        cpu_free_us=0,
        memory_committed_bytes=6,
        memory_free_bytes=0,
        memory_reserved_bytes=7,
        containers=(),
    )
    told.state.seed(state)
    app = told.tick()["app/shop"]
    assert [app[name] for name in ("cpu_held_us", "memory_held_bytes", "memory_reserved_bytes")] == [5, 6, 7]
    assert app["owner"] == "r1"
    told.state.add_decisions(decisions(0))
    assert told.tick()["app/shop"]["cpu_held_us"] == 80_000


def test_reasons_read_as_in_the_terminal() -> None:
    told = Told()
    told.state.add_batch(batch(0, [DB, WEB]), 0.0)
    told.state.add_decisions(decisions(0))
    said = sentence("cpu", Reason.THROTTLED, 30_000.0, 20_000.0)
    assert told.tick()["reasons/shop/n1"]["reasons"] == f"\n{said}"
    # The newest of the second holds, and memory has its own unit.
    told.state.add_decisions(decisions(1))
    columns: dict[str, list[Any]] = {name: [0] for name in LimitDecisions.column_types}
    columns |= {"limit_to_bytes": [1], "limit_reason": [Reason.MEMORY_GROWTH], "limit_measured": [float(5 << 30)]}
    memory = decisions(2)
    head = {name: getattr(memory, name) for name in type(memory).model_fields if name not in columns}
    head.pop("containers")
    told.state.add_decisions(LimitDecisions.build(["web-0123456789ab"], columns, **head))
    assert "usage 5 GiB came within 0.0 MiB" in told.tick()["reasons/shop/n1"]["reasons"]
    assert "usage 5 GiB" in told.tick()["reasons/shop/n1"]["reasons"]


def test_an_application_that_is_withdrawn_has_gone() -> None:
    told = Told()
    told.state.announce("shop", AppSpec(name="shop", cpu_limit=2.0, memory_limit=1 << 30))
    assert told.tick()["app/shop"]["announced"]
    told.state.announce("shop", None)
    assert told.tick()["app/shop"]["removed"]


def test_trends_are_the_last_minute_of_everybody() -> None:
    told = Told()
    for second in range(3):
        told.state.add_batch(batch(second, [replace(WEB, used_us=1_000 * second), DB]), float(second))
        told.tick()
    (group,) = told.state.trends()
    values = np.frombuffer(group["values"], dtype="<f4").reshape(2, 60, 2)
    assert values[0, -3:, 0].tolist() == [0.0, 1_000.0, 2_000.0]
    assert np.isnan(values[0, :-3]).all()
    assert values[1, -1].tolist() == [20_000.0, 20_000.0]
