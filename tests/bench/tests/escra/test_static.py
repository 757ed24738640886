"""Static limits, and how any peer's wishes are fitted into an application's limit."""

import numpy as np
import pytest

from schemas.reasons import Reason
from tests.bench.escra.peers import static
from tests.bench.escra.peers.fitting import fit_cpu, fit_memory
from tests.bench.escra.peers.starting import UNKNOWN, profile_of
from tests.bench.escra.profile import ContainerProfile, Profile
from tests.support.peer_views import cpu_view, memory_sample

MIB = 1 << 20
ROWS = np.arange(2)


@pytest.mark.parametrize(("factor", "quotas_us"), [(0.75, [15_000, 7_500]), (1.0, [20_000, 10_000])])
def test_a_factor_times_the_largest_second(factor, quotas_us) -> None:
    """The first uses 10 ms and 30 ms by turns: its seconds average 20 ms; the second always 10 ms."""
    setting, state = static.Static(factor), static.StaticState(2)
    swinging = ContainerProfile((10_000, 30_000) * 20, (100 * MIB,) * 40)
    static.start(state, ROWS, [swinging, ContainerProfile((10_000,) * 40, (8 * MIB,) * 40)], setting)
    targets = static.decide(state, cpu_view([1, 1], [50_000, 5_000]), ROWS)
    assert targets.target_us.tolist() == quotas_us
    memory = static.decide_memory(state, memory_sample([MIB, MIB], [200 * MIB, 200 * MIB]), ROWS)
    assert memory.target_bytes.tolist() == [factor * 100 * MIB, factor * 8 * MIB]


def test_what_the_profile_does_not_know_keeps_what_it_has() -> None:
    state = static.StaticState(1)
    static.start(state, ROWS[:1], [UNKNOWN], static.Static(1.5))
    assert static.decide(state, cpu_view([1], [33_000]), ROWS[:1]).target_us.tolist() == [33_000]


def test_short_lived_containers_start_from_the_busiest_of_their_kind() -> None:
    busy, lazy = ContainerProfile((9,), (1,)), ContainerProfile((3,), (1,))
    profile = Profile({"worker-01": lazy, "worker-02": busy, "redis": ContainerProfile((50,), (1,))})
    assert profile_of(profile, "worker-01") is lazy
    assert profile_of(profile, "worker-17") is busy
    assert profile_of(profile, "nginx") is UNKNOWN


def test_an_ample_limit_touches_nothing_and_a_short_one_shares_in_proportion() -> None:
    """Wishes 41 and 21 ms, minimum 1 ms each, so 40 and 20 above it. Of 32 ms, 30 are left: 20 and 10, plus 1 each."""
    wishes = np.array([41_000, 21_000])
    targets, short = fit_cpu(cpu_view([0, 0], [50_000, 1_000], limit_us=62_000), wishes)
    assert (targets.target_us.tolist(), short.any()) == ([41_000, 21_000], False)
    targets, short = fit_cpu(cpu_view([0, 0], [50_000, 1_000], limit_us=32_000), wishes)
    assert (targets.target_us.tolist(), short.all()) == ([21_000, 11_000], True)
    assert targets.reason.tolist() == [Reason.OVER_LIMIT, Reason.DEMAND_ROSE]


def test_wishes_stay_between_the_minimum_and_the_hosts_processors() -> None:
    targets, _ = fit_cpu(cpu_view([0, 0], [50_000, 50_000]), np.array([10.4, 900_000.0]))
    assert targets.target_us.tolist() == [1_000, 200_000]


def test_memory_follows_usage_down_where_the_kernel_would_refuse_the_wish() -> None:
    """Wished 60 MiB. In use are 100, so 104 is as low as it goes; 50 MiB of cache can be dropped: then 60 it is."""
    wishes = np.array([60 * MIB, 60 * MIB])
    sample = memory_sample([100 * MIB, 100 * MIB], [200 * MIB, 200 * MIB], reclaimable_bytes=[0, 50 * MIB])
    assert fit_memory(sample, wishes).target_bytes.tolist() == [104 * MIB, 60 * MIB]
    grown = memory_sample([103 * MIB, 59 * MIB], [104 * MIB, 60 * MIB])
    assert fit_memory(grown, wishes).target_bytes.tolist() == [104 * MIB, 60 * MIB], "not raised on the way up"


def test_memory_is_shared_in_proportion_in_whole_pages() -> None:
    """Wishes 104 and 204 MiB, 4 MiB least each, 100 and 200 above. Of 158 MiB, 150 are left: 50 and 100, plus 4."""
    targets = fit_memory(memory_sample([MIB, MIB], [300 * MIB, 300 * MIB], 158 * MIB), np.array([104 * MIB, 204 * MIB]))
    assert targets.target_bytes.tolist() == [54 * MIB, 104 * MIB]
    assert targets.reason.tolist() == [Reason.MEMORY_RECLAIM, Reason.MEMORY_RECLAIM]
