"""The product's allocation with exchanged policies, real agents' code beside it: the ledger holds for every peer."""

import random
import time

import numpy as np
import pytest

from schemas.apps import AppSpec
from schemas.cfs import SampleFlag
from services.allocator.budget.step_context import StepTime
from services.allocator.cpu import dead_band
from services.allocator.cpu import waterfill as policy_waterfill
from tests.bench.escra import peer_allocator
from tests.bench.escra.peers.exchange import NO_PROFILE, ExchangedAllocation
from tests.bench.escra.peers.rules import rules_for
from tests.bench.escra.policies import POLICIES, parse
from tests.bench.escra.profile import ContainerProfile, Profile
from tests.support.cfs_batches import START_NS, Row, batch
from tests.support.lossy_cluster import LossyCluster

MIB = 1 << 20
PEERS = [name for name, spec in POLICIES.items() if spec.needs_profile]
LIMITED = [name for name, spec in POLICIES.items() if spec.limited]


class ExchangedCluster(LossyCluster):
    """Two agents and an allocation that takes commands; messages come at once and in order."""

    def start_allocator(self) -> None:
        super().start_allocator()
        self.allocation = ExchangedAllocation(warm_up_ns=1 << 60)
        self.allocation.acquire(self.spec.name, self.epoch, self.now_ns)
        self.allocation.set_spec(self.spec.name, self.spec)

    def period(self, usage) -> None:
        """Both machines run for a period; all messages are delivered."""
        for machine, mine in zip(self.machines, usage, strict=True):
            self.run(machine, mine)
            while self.network:
                self.deliver(0)
                self.check()

    def check(self) -> None:
        assert self.quota_sum_us() <= self.spec.cpu_limit_us
        assert self.memory_sum_bytes() <= int(self.spec.memory_limit)


def profile_of_two() -> Profile:
    """Containers c1 to c4, which use 20, 40, 60 and 80 ms now and then, and 50 MiB."""
    random_ = random.Random(7)
    return Profile(
        {
            f"c{number}": ContainerProfile(
                tuple(random_.choice((2_000, 20_000 * number)) for _ in range(100)), (50 * MIB,) * 100
            )
            for number in range(1, 5)
        }
    )


def cluster_of_four(cpu_limit: float, memory_limit: int = 4096 * MIB) -> ExchangedCluster:
    cluster = ExchangedCluster(AppSpec(name="shop", cpu_limit=cpu_limit, memory_limit=memory_limit))
    for number in range(4):
        cluster.start_container(cluster.machines[number % 2])
    return cluster


@pytest.mark.parametrize("name", LIMITED)
@pytest.mark.parametrize("cpu_limit", [0.5, 1.5, 8.0])
def test_no_policy_passes_the_applications_limit_whatever_is_asked_for(name, cpu_limit) -> None:
    """Demands up to twice the profile's, 60 periods: the sums in the kernel are checked after every message."""
    cluster = cluster_of_four(cpu_limit)
    random_ = random.Random(3)
    cluster.allocation.choose(parse(name), profile_of_two())
    for _ in range(60):
        cluster.period([[(random_.choice((1_000, 150_000)), 50 * MIB) for _ in range(2)] for _ in range(2)])
    assert all(container.quota_us > 0 for container in cluster.containers())
    cluster.check()


def test_static_limits_are_in_the_kernel_after_a_few_periods_and_stay() -> None:
    """c1 to c4 at 1.0x: the largest seconds of the profile; after that nothing is written."""
    cluster, profile = cluster_of_four(8.0), profile_of_two()
    cluster.allocation.choose(parse("static-1.0"), profile)
    for _ in range(5):
        cluster.period([[(5_000, 50 * MIB)] * 2] * 2)
    expected = {name: one.max_second_used_us for name, one in profile.containers.items()}
    by_name = {"c1": (0, 0), "c3": (0, 1), "c2": (1, 0), "c4": (1, 1)}
    for name, (machine, position) in by_name.items():
        found = cluster.machines[machine].found[position]
        assert cluster.machines[machine].host.containers[found.container_id].quota_us == expected[name]
    written = [len(container.writes) for container in cluster.containers()]
    for _ in range(20):
        cluster.period([[(5_000, 50 * MIB)] * 2] * 2)
    assert [len(container.writes) for container in cluster.containers()] == written


def test_switching_starts_all_estimates_anew_and_puts_constants_back() -> None:
    cluster = cluster_of_four(8.0)
    before = policy_waterfill.HEADROOM_US, dead_band.CUT_SHARE
    cluster.allocation.choose(parse("waterfill:HEADROOM_US=10000,CUT_SHARE=0.2,delta=30,kappa=0.5"))
    assert (policy_waterfill.HEADROOM_US, dead_band.CUT_SHARE) == (10_000, 0.2)
    assert isinstance(policy_waterfill.HEADROOM_US, int)
    assert cluster.allocation.table.delta_bytes.tolist() == [30 * MIB]
    assert cluster.allocation.table.kappa.tolist() == [0.5]
    for _ in range(5):
        cluster.period([[(40_000, 50 * MIB)] * 2] * 2)
    assert cluster.allocation.exchanged.cpu.waterfill.state.seen.any()
    cluster.allocation.choose(parse("captain-0.1"), profile_of_two())
    assert before == (policy_waterfill.HEADROOM_US, dead_band.CUT_SHARE)
    assert not cluster.allocation.exchanged.cpu.waterfill.state.seen.any()
    assert cluster.allocation.table.delta_bytes.tolist() == [50 * MIB]


def test_the_parameters_of_escra_are_overridden_in_their_own_units() -> None:
    table = cluster_of_four(8.0).allocation
    table.choose(parse("escra:gamma=0.05,upsilon=35,window=5"))
    assert table.table.gamma_us.tolist() == [5_000]
    assert table.table.upsilon_share.tolist() == [0.35]
    assert table.table.window.tolist() == [5]
    assert not table.table.waterfill.any(), "although the application says waterfill"


def test_ours_is_the_products_own_code_to_the_last_microsecond() -> None:
    """The same demands under the product's allocation and under `waterfill` by command: the same quotas."""
    demands = [[[(random.Random(step).choice((5_000, 90_000)), 50 * MIB)] * 2] * 2 for step in range(40)]
    seen = []
    for command in (None, "waterfill"):
        cluster = cluster_of_four(2.0)
        if command:
            cluster.allocation.choose(parse(command))
        for usage in demands:
            cluster.period(usage)
        seen.append([(container.quota_us, container.limit_bytes) for container in cluster.containers()])
    assert seen[0] == seen[1]


def test_with_a_profile_waterfill_begins_as_if_it_had_watched_it() -> None:
    """c1 uses 20 ms now and then; in this run 3.5 ms, until it is throttled: it has its 20 + 3 ms again at once.

    Without a profile it is raised to twice what it had, and to 20 ms at least.
    """
    raised = []
    for profile in (profile_of_two(), NO_PROFILE):
        cluster = cluster_of_four(8.0)
        cluster.allocation.choose(parse("waterfill"), profile)
        for _ in range(40):
            cluster.period([[(3_500, 50 * MIB)] * 2] * 2)
        c1 = cluster.containers()[0]
        before_us = c1.quota_us
        assert before_us < 6_500
        while c1.quota_us <= before_us:
            cluster.period([[(30_000, 50 * MIB), (3_500, 50 * MIB)], [(3_500, 50 * MIB)] * 2])
        raised.append(c1.quota_us)
    assert raised[0] >= 23_000
    assert raised[1] == policy_waterfill.PROBE_US


def test_under_a_peer_who_reaches_his_limit_is_killed_and_under_ours_he_is_not() -> None:
    """The application has gigabytes free. Static 0.75x of 50 MiB: 37.5 MiB; it grows to 90 MiB."""
    for name, killed in (("static-0.75", True), ("waterfill", False)):
        cluster = cluster_of_four(8.0)
        cluster.allocation.choose(parse(name), profile_of_two())
        for _ in range(20):
            cluster.period([[(5_000, 20 * MIB)] * 2] * 2)
        if killed:
            assert cluster.containers()[0].limit_bytes == int(37.5 * MIB)
        cluster.touch(cluster.machines[0], 0, 70 * MIB)
        for _ in range(12):  # a refusal is final 200 ms after the wait began
            while cluster.network:
                cluster.deliver(0)
            cluster.now_ns += 30_000_000
            cluster.machines[0].node.memory.poll(cluster.now_ns)
            cluster.collect_requests(cluster.machines[0])
        assert (cluster.containers()[0].oom_kills > 0) is killed, name


def test_reserves_are_taken_back_from_the_nodes_when_a_peer_comes() -> None:
    cluster = cluster_of_four(8.0)
    cluster.allocation.choose(parse("waterfill"))

    def reserved() -> int:
        books = [machine.host.reserve_store.read() for machine in cluster.machines]
        return sum(reserve.left_bytes for book in books for reserve in book.values())

    for _ in range(10):
        cluster.period([[(5_000, 50 * MIB)] * 2] * 2)
    assert reserved() > 500 * MIB
    cluster.allocation.choose(parse("static-1.5"), profile_of_two())
    for _ in range(10):
        cluster.period([[(5_000, 50 * MIB)] * 2] * 2)
    assert reserved() == 0


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (b"nonsense", "Expecting value"),
        (b"[]", "a command is"),
        (b'{"policy": "escra", "speed": 1}', "a command is"),
        (b'{"policy": "captain-0.1"}', "starts from a profile"),
        (b'{"policy": "captain-0.3"}', "no policy 'captain-0.3'"),
        (b'{"policy": "captain-0.1", "profile": "/nowhere.json"}', "No such file"),
    ],
)
def test_a_wrong_command_says_why(line, told) -> None:
    with pytest.raises((ValueError, OSError), match=told):
        peer_allocator.understand(line)


def test_a_right_command_names_a_policy_and_reads_its_profile(tmp_path) -> None:
    profile = profile_of_two()
    profile.write(tmp_path / "shop.json")
    line = f'{{"policy": "captain-0.1", "profile": "{tmp_path}/shop.json"}}'.encode()
    assert peer_allocator.understand(line) == (POLICIES["captain-0.1"], profile)
    assert peer_allocator.understand(b'{"policy": null}')[0] is None
    assert peer_allocator.understand(b'{"policy": "escra:kappa=0.5"}')[0] == parse("escra:kappa=0.5")


def test_a_peer_starts_within_a_step_with_twenty_containers_and_a_minute_of_profile() -> None:
    """All containers are watched together: windows, not samples, are what costs. Processor time of this thread."""
    profile = Profile({f"w{n}": ContainerProfile((20_000, 40_000) * 300, (50 * MIB,) * 600) for n in range(20)})
    slots, known = np.arange(20), list(profile.containers.values())
    for name in PEERS:
        rules = rules_for(POLICIES[name])
        begin_s = time.thread_time()
        for rule in rules:
            rule.state.grow(20)
            rule.start(slots, known)
        assert time.thread_time() - begin_s < 2, name


@pytest.mark.parametrize(("name", "steps"), [("captain-0.1", 0), ("waterfill", 1)])
def test_peers_decide_by_whole_periods_only(name, steps) -> None:
    allocation = ExchangedAllocation()
    allocation.choose(parse(name))
    allocation.step([batch(0, [Row(throttled=1, flags=SampleFlag.EARLY)])], StepTime(1, START_NS))

    assert allocation.step_count == steps
