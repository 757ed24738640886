"""The VPA's recommender and updater on examples worked out by hand."""

import numpy as np
import pytest

from tests.bench.escra.peers import vpa
from tests.bench.escra.peers.histogram import Buckets
from tests.bench.escra.peers.vpa import CpuState, MemoryState, Vpa
from tests.bench.escra.profile import ContainerProfile
from tests.support.peer_views import cpu_view, memory_sample

ROW = np.arange(1)
SETTING = Vpa(act_periods=60)
MIB = 1 << 20


def flat(used_us: int, seconds: int) -> ContainerProfile:
    return ContainerProfile((used_us,) * (10 * seconds), (50 * MIB,) * (10 * seconds))


def test_buckets_grow_and_a_percentile_is_their_end() -> None:
    """Growth 2, first 10: they begin at 0, 10, 30, 70, 150."""
    buckets = Buckets(first=10, growth=2, count=5)
    assert buckets.start(np.arange(5)).tolist() == [0, 10, 30, 70, 150]
    assert buckets.index(np.array([0, 9.9, 10, 29, 30, 70, 150, 1e9])).tolist() == [0, 0, 1, 1, 2, 3, 4, 4]
    weights = np.array([[9, 0, 1, 0, 0], [8, 0, 2, 0, 0], [0, 0, 0, 0, 1], [0, 0, 0, 0, 0.0]])
    assert buckets.percentile(weights, 0.9).tolist() == [10, 70, 150, 0]


def test_a_border_belongs_to_the_bucket_that_begins_there() -> None:
    borders = vpa.CPU_BUCKETS.start(np.arange(vpa.CPU_BUCKETS.count))
    assert np.array_equal(vpa.CPU_BUCKETS.index(borders), np.arange(vpa.CPU_BUCKETS.count))


def test_the_target_is_the_end_of_the_bucket_and_fifteen_percent() -> None:
    """10 ms lie in the bucket from 9,549.1 to 11,026.56 us (1.05 ** 8 and ** 9); x 1.15 = 12,680.5."""
    state = CpuState(1)
    vpa.start_cpu(state, ROW, [flat(10_000, 30)], SETTING)
    assert vpa.decide(state, cpu_view([10_000], [50_000]), ROW, SETTING).target_us.tolist() == [12_681]


def test_it_acts_every_six_seconds_on_what_the_ninetieth_percentile_has_become() -> None:
    """30 s at 10 ms, 6 s at 20 ms: a sixth and more of the weight, so the percentile moves.

    20 ms lie between 19,598.6 and 21,578.6 us (1.05 ** 14 and ** 15); x 1.15 = 24,815.4. Not before the 60th period.
    """
    state = CpuState(1)
    vpa.start_cpu(state, ROW, [flat(10_000, 30)], SETTING)
    seen = [vpa.decide(state, cpu_view([20_000], [12_681]), ROW, SETTING).target_us[0] for _ in range(62)]
    assert set(seen[:60]) == {12_681}
    assert seen[60] == 24_815


def test_a_rare_spike_stays_above_the_limit() -> None:
    """One second of ten at 100 ms is a tenth of the weight when all weigh the same: the percentile is not moved."""
    state = CpuState(1)
    spiky = ContainerProfile(((100_000,) * 10 + (10_000,) * 90) * 3, (0,) * 300)
    vpa.start_cpu(state, ROW, [spiky], SETTING)
    assert state.wish_us[0] == pytest.approx(12_680.5, abs=1)


def test_a_container_that_is_young_is_left_alone_within_wide_bounds() -> None:
    """10 s are a sixth of a day. 10 s at 10 ms, then 3 s at 11.1 ms: the target rises by 5 %, which is not worth it."""
    state = CpuState(1)
    vpa.start_cpu(state, ROW, [flat(10_000, 10)], SETTING)
    for _ in range(61):
        target_us = vpa.decide(state, cpu_view([11_100], [12_681]), ROW, SETTING).target_us[0]
    assert target_us == 12_681


def test_a_pod_has_at_least_a_fortieth_core_and_250_megabytes_which_its_containers_share() -> None:
    cpu, memory = CpuState(2), MemoryState(2)
    both = np.arange(2)
    vpa.start_cpu(cpu, both, [flat(100, 10)] * 2, SETTING)
    vpa.start_memory(memory, both, [flat(100, 10)] * 2, SETTING)
    # 0.1 ms lie in the first bucket, which ends at 1 ms: 1.15; a half of 2.5 ms is more.
    assert vpa.decide(cpu, cpu_view([100, 100], [9_000, 9_000]), both, SETTING).target_us.tolist() == [1_250, 1_250]
    sample = memory_sample([50 * MIB, 50 * MIB], [500 * MIB, 500 * MIB])
    targets = vpa.decide_memory(memory, sample, both, SETTING).target_bytes
    assert targets.tolist() == [125_000_000 // 4096 * 4096] * 2


def test_memory_follows_the_days_peak() -> None:
    """Peak 500 MB: bucket 1e7 x (1.05 ** b - 1) / 0.05 with b = 25: 477 to 511.1 MB; x 1.15 = 587.8 MB."""
    state = MemoryState(1)
    profile = ContainerProfile((0,) * 3, (100_000_000, 500_000_000, 200_000_000))
    vpa.start_memory(state, ROW, [profile], SETTING)
    target = vpa.decide_memory(state, memory_sample([200_000_000], [900_000_000]), ROW, SETTING).target_bytes[0]
    end = 1e7 * (1.05**26 - 1) / 0.05
    assert end == pytest.approx(511.1e6, rel=1e-3)
    assert target == pytest.approx(1.15 * end, abs=4096)


def test_a_kill_raises_the_limit_at_once() -> None:
    """Killed at 600 MB: 1.2 x 600 = 720 > 600 + 100. Its bucket ends at 760.3 MB (1.05 ** 32); x 1.15 = 874.3 MB.

    Peaks of two days weigh 0.5 and 1: two thirds for the new one, so the 90th percentile is there.
    """
    state = MemoryState(1)
    vpa.start_memory(state, ROW, [ContainerProfile((0,) * 600, (300_000_000,) * 600)], SETTING)
    quiet = vpa.decide_memory(state, memory_sample([300_000_000], [600_000_000]), ROW, SETTING).target_bytes[0]
    assert quiet < 420_000_000
    killed = memory_sample([300_000_000], [600_000_000], kills=[1])
    target = vpa.decide_memory(state, killed, ROW, SETTING).target_bytes[0]
    assert target == pytest.approx(1.15 * 1e7 * (1.05**32 - 1) / 0.05, abs=4096)
    assert vpa.decide_memory(state, killed, ROW, SETTING).target_bytes[0] == target, "counted once"


def test_new_peaks_take_the_place_of_the_days_former_one() -> None:
    state = MemoryState(1)
    for usage in (100, 200, 150, 300):
        vpa.decide_memory(state, memory_sample([usage * 1_000_000], [10**9]), ROW, SETTING)
    assert state.weights[0].sum() == 1
    assert state.peak_bytes[0] == 300_000_000
