"""Where a node's processors are full: what was used there is what was got, and cutting to it helps nobody."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.agent.sampling.sampler import UNKNOWN_IDLE, NodeLoad
from services.allocator.cpu.dead_band import FULL_IDLE_PERCENT, apply_dead_band
from services.allocator.state.batch_ingestion import ingest
from services.allocator.state.cluster_state import ClusterState
from tests.support.cfs_batches import PERIOD_NS, batch
from tests.support.fake_host import FakeHost
from tests.support.peer_views import cpu_view

QUOTAS = st.lists(st.integers(1_000, 200_000), min_size=1, max_size=8)


def full(view):
    return replace(view, node_idle_percent=np.full(len(view.app), FULL_IDLE_PERCENT))


def decided(view):
    return np.ones(len(view.app), np.bool_)


def test_a_quota_is_not_cut_to_what_was_used_on_a_full_node() -> None:
    view = cpu_view([10_000, 5_000], [60_000, 40_000])
    wanted = np.array([12_000, 7_000])

    assert apply_dead_band(view, decided(view), wanted).tolist() == [12_000, 7_000]
    assert apply_dead_band(full(view), decided(view), wanted).tolist() == [60_000, 40_000]


def test_it_is_cut_where_another_ones_raise_has_to_be_funded() -> None:
    view = full(cpu_view([10_000, 50_000], [60_000, 40_000], [False, True], limit_us=100_000))

    assert apply_dead_band(view, decided(view), np.array([12_000, 80_000])).tolist() == [12_000, 80_000]


def test_an_application_above_its_limit_is_cut_on_a_full_node() -> None:
    view = full(cpu_view([10_000, 50_000], [60_000, 60_000], limit_us=100_000))

    assert apply_dead_band(view, decided(view), np.array([40_000, 60_000])).sum() <= 100_000


@given(QUOTAS, st.data())
def test_the_sum_stays_within_the_limit_whatever_is_full(ordered, data) -> None:
    limit_us = data.draw(st.integers(sum(ordered), 2 * sum(ordered)))
    wishes = [data.draw(st.integers(1_000, 200_000)) for _ in ordered]
    scale = min(1.0, limit_us / sum(wishes))
    wanted = np.maximum((np.array(wishes) * scale).astype(np.int64), 1_000)
    if wanted.sum() > limit_us:
        return
    idle = np.array([data.draw(st.integers(-1, 2 * FULL_IDLE_PERCENT)) for _ in ordered])
    view = replace(cpu_view(ordered, ordered, limit_us=limit_us), node_idle_percent=idle)

    target = apply_dead_band(view, decided(view), wanted)

    assert target.sum() <= limit_us
    assert (target >= np.minimum(wanted, view.ordered_us)).all()
    assert (target <= np.maximum(wanted, view.ordered_us)).all()


@pytest.mark.parametrize(("idle_percent", "is_full"), [(-1, False), (0, True), (5, True), (6, False)])
def test_full_is_a_node_with_a_twentieth_of_idle_time_or_less(idle_percent: int, is_full: bool) -> None:
    view = replace(cpu_view([10_000], [60_000]), node_idle_percent=np.array([idle_percent]))

    assert apply_dead_band(view, decided(view), np.array([12_000])).tolist() == [60_000 if is_full else 12_000]


def test_the_newest_report_of_a_node_counts() -> None:
    cluster = ClusterState()
    for tick, percent in enumerate((50, 3)):
        made = batch(tick, node_idle_percent=percent)
        ingest(cluster, [made], tick * PERIOD_NS, made.time_ns)

    assert [state.idle_percent for state in cluster.nodes] == [3]


def test_the_idle_share_is_of_all_processors_and_smoothed() -> None:
    host = FakeHost(cpu_count=2, idle_us=0)
    load = NodeLoad(host)
    load.sample(0)
    assert load.idle_percent == UNKNOWN_IDLE
    for tick in range(1, 40):
        host.idle_us += 50_000  # of 200 ms
        load.sample(tick * 100_000_000)
    assert load.idle_percent == 25

    for tick in range(40, 44):
        load.sample(tick * 100_000_000)
    assert 5 < load.idle_percent < 7, "0.7 ** 4 of 25"
    host.idle_us = None
    load.sample(44 * 100_000_000)
    assert load.idle_percent == UNKNOWN_IDLE
