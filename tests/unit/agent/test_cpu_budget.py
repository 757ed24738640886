"""A node whose settings name a ratio: what its agent admits of CPU raises, and what it says where it does not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.apps import LEAST_RAISE_US
from schemas.limits import RowStatus
from services._runtime.settings_error import SettingsError
from services.agent.backend import node_cpu_budget
from services.agent.limits.accepted_updates import CpuBudget, admitted_us, counted_us
from services.agent.memory.growth import MIB
from services.agent.memory.node_budget import MemoryBudget
from services.agent.node import NodeOptions
from services.agent.settings import AgentSettings
from tests.support.agent_node import Node
from tests.support.fake_host import FakeHost
from tests.support.guarded_node import MS
from tests.support.limit_orders import reply_rows, send, update

USED_UP = "the CPU budget of node n1 is used up: CPU limits of its containers add up to"


@pytest.fixture
def host():
    return FakeHost()


def node_of(host, ratio):
    """Two cores, so 200,000 us per period."""
    return Node("n1", 7, host, host.reserve_store, NodeOptions(cpu_budget=CpuBudget(2, ratio)))


def container(node, host, name, quota_us, *, app="shop", used_us=0, enforced=True):
    """A container with a quota (negative: none) that was set, and that was sampled; its key and its control files."""
    found = host.add(name, app, quota_us=quota_us, limit_bytes=100 * MIB)
    key = node.found(found)
    node.containers.limits[key].quota_ordered = enforced and quota_us >= 0
    files = host.containers[found.container_id]
    node.sample(node.now_ns + 100 * MS, 1)  # usage counts from here
    files.run(used_us, memory_bytes=10 * MIB)
    node.sample(node.now_ns + 100 * MS, 2)
    return key, files


def test_a_raise_beyond_the_budget_is_carried_out_in_part_and_says_why(host):
    node = node_of(host, 1.5)
    web, web_files = container(node, host, "web", 100_000)
    container(node, host, "db", 150_000, app="cache")

    (reply,) = send(node, update({web: (180_000, 0)}))

    # 1.5 x 2 cores are 300 ms; 250 are held: 50 of the 80 that were ordered
    row = reply_rows(reply)[web]
    assert (row["status"], row["quota_us"], web_files.quota_us) == (RowStatus.NODE_BUDGET, 150_000, 150_000)
    assert reply.node_cpu_headroom_us == 0
    assert reply.node_budget_reason == f"{USED_UP} 2.50 of 3.00 cores (1.5 x 2)"
    assert node.limits.take_failures() == [(web, RowStatus.NODE_BUDGET, reply.node_budget_reason)]
    [refusal] = node.limits.cpu_budget.take_refusals()
    assert refusal.container == web
    assert refusal.reason == f"{reply.node_budget_reason}; the limit update was 1.80 cores, its limit is 1.50 cores"


def test_who_is_refused_each_period_is_told_once_a_minute(host):
    node = node_of(host, 0.5)
    web, files = container(node, host, "web", 100_000)
    for seq in range(1, 20):
        send(node, update({web: (110_000, 0)}, seq=seq), seq * 100 * MS)
    assert len(node.limits.cpu_budget.take_refusals()) == 1
    assert (node.limits.cpu_budget.rejections, files.writes) == (19, [])

    send(node, update({web: (110_000, 0)}, seq=20), 61_000 * MS)
    assert len(node.limits.cpu_budget.take_refusals()) == 1


def test_a_full_node_can_still_shift_cores_within_one_order(host):
    """The raise stands first in the order; the other container is idle, so its decrease waits for no boundary."""
    node = node_of(host, 1.0)
    web, web_files = container(node, host, "web", 80_000)
    db, db_files = container(node, host, "db", 120_000)
    node.sample(node.now_ns + 100 * MS, 3)  # nothing ran

    (reply,) = send(node, update({web: (150_000, 0), db: (50_000, 0)}))

    assert [row["status"] for row in reply.rows()] == [RowStatus.APPLIED] * 2
    assert (web_files.quota_us, db_files.quota_us) == (150_000, 50_000)


def test_cuts_pass_above_the_budget_and_nothing_is_raised(host):
    """Adopted: containers came with more than the ratio allows. None of them is cut for it."""
    node = node_of(host, 0.5)
    web, web_files = container(node, host, "web", 150_000)
    db, db_files = container(node, host, "db", 150_000)
    node.sample(node.now_ns + 100 * MS, 3)

    assert send(node, update({web: (151_000, 0)}))[0].column("status").tolist() == [RowStatus.NODE_BUDGET]
    assert send(node, update({db: (90_000, 0)}, seq=2))[0].column("status").tolist() == [RowStatus.APPLIED]
    assert (web_files.quota_us, db_files.quota_us) == (150_000, 90_000)


def test_a_container_without_a_quota_counts_what_it_used_and_gets_its_first_one_on_a_full_node_too(host):
    """Without one it may take all processors; limited to what it used it cannot."""
    node = node_of(host, 1.0)
    container(node, host, "db", 200_000)
    web, web_files = container(node, host, "web", -1, used_us=70_000)
    assert node.limits.cpu_budget.committed_us() == 270_000

    (reply,) = send(node, update({web: (120_000, 0)}))

    assert web_files.quota_us == 70_000
    assert reply_rows(reply)[web]["status"] == RowStatus.NODE_BUDGET


def test_quotas_of_observed_containers_are_nobodys_promise(host):
    """They came with a core each, and use a tenth: 200 ms are allocatable, of which a quota and 3 x 10 ms are taken."""
    node = node_of(host, 1.0)
    web, files = container(node, host, "web", 10_000, used_us=10_000)
    old = [container(node, host, f"old{number}", 100_000, app="old", enforced=False)[1] for number in range(3)]
    for each in old:
        each.run(10_000)
    node.sample(node.now_ns + 100 * MS, 3)
    assert node.limits.cpu_budget.committed_us() == 40_000
    assert node.limits.cpu_budget.headroom_us == 160_000

    (reply,) = send(node, update({web: (150_000, 0)}))

    assert (reply.node_budget_reason, files.quota_us) == ("", 150_000)


def test_a_quota_that_a_previous_agent_has_set_still_counts(host):
    node = node_of(host, 1.0)
    web, files = container(node, host, "web", 50_000, enforced=False)
    send(node, update({web: (120_000, 0)}))
    again = Node("n1", 8, host, host.reserve_store, NodeOptions(cpu_budget=CpuBudget(2, 1.0)))
    again.found(next(member.found for member in node.containers.managed.values()))
    assert files.quota_us == again.limits.cpu_budget.committed_us() == 120_000


def test_memory_and_cpu_of_one_row_are_refused_with_both_reasons(host):
    options = NodeOptions(memory_budget=MemoryBudget(400 * MIB, 300 * MIB, 0), cpu_budget=CpuBudget(2, 0.5))
    node = Node("n1", 7, host, host.reserve_store, options)
    web, _ = container(node, host, "web", 100_000)
    node.containers.limits[web].limit_promised = True

    (reply,) = send(node, update({web: (120_000, 200 * MIB)}))

    memory, cpu = reply.node_budget_reason.split("; ")
    assert memory.startswith("the memory budget of node n1 is used up")
    assert cpu.startswith(USED_UP)
    assert node.limits.take_failures()[0].reason == reply.node_budget_reason


def test_without_a_ratio_nothing_is_refused(host):
    node = Node("n1", 7, host, host.reserve_store)
    web, files = container(node, host, "web", 100_000)
    (reply,) = send(node, update({web: (900_000, 0)}))
    assert (files.quota_us, reply.node_cpu_headroom_us, reply.node_budget_reason) == (900_000, -1, "")


def test_batches_say_what_the_node_has_left(host):
    node = node_of(host, 2.0)
    container(node, host, "web", 100_000)
    container(node, host, "db", 50_000, app="cache")
    batches, _ = node.sample(node.now_ns + 100 * MS, 3)
    assert {batch.app: batch.node_cpu_headroom_us for batch in batches} == {"shop": 250_000, "cache": 250_000}
    assert node.empty_batch("gone", 1).node_cpu_headroom_us == 250_000


@pytest.mark.parametrize(
    ("text", "budget"),
    [("", None), ("warn", None), ("allow", None), ("1.5", CpuBudget(4, 1.5)), ("1", CpuBudget(4, 1.0))],
)
def test_the_setting_is_a_word_or_a_ratio(text, budget):
    settings = AgentSettings.load({"TURNBUCKLE_AGENT__CPU_OVERCOMMIT": text})
    assert node_cpu_budget(settings, 4) == budget


@pytest.mark.parametrize("text", ["off", "0", "-1", "nan", "inf", "1001", "150%", "true"])
def test_anything_else_is_one_clear_error(text):
    with pytest.raises(SettingsError) as caught:
        AgentSettings.load({"TURNBUCKLE_AGENT__CPU_OVERCOMMIT": text})
    [problem] = caught.value.problems
    assert problem.startswith(f"TURNBUCKLE_AGENT__CPU_OVERCOMMIT={text}: ")
    assert "must be warn, allow, or a ratio of limits to cores above 0, at most 1000" in problem


QUOTAS = st.just(-1) | st.integers(1_000, 800_000)


@given(
    budget=st.builds(CpuBudget, st.integers(1, 8), st.floats(0.01, 4)),
    held=st.lists(st.tuples(QUOTAS, st.integers(0, 800_000)), min_size=1, max_size=6),
    orders=st.lists(st.tuples(st.integers(0, 5), st.integers(1_000, 800_000)), max_size=20),
)
def test_no_order_leads_the_sum_beyond_the_budget_and_every_decrease_passes(budget, held, orders):
    """... nor further beyond it than it was found. ``held``: quota and usage of each container."""
    quotas, used = [each[0] for each in held], [each[1] for each in held]
    for position, ordered in orders:
        row = position % len(held)
        before = sum(map(counted_us, quotas, used))
        got = admitted_us(ordered, quotas[row], used[row], budget.allocatable_us - before)
        assert 0 <= got <= ordered
        if ordered <= quotas[row]:
            assert got == ordered
        if quotas[row] < 0:
            assert got >= min(ordered, used[row], 1_000)
        if ordered > got > quotas[row] >= 0:
            assert got - quotas[row] >= LEAST_RAISE_US
        quotas[row] = got or quotas[row]
        assert sum(map(counted_us, quotas, used)) <= max(budget.allocatable_us, before)
