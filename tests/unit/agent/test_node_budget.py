"""The agent has the last word on its node's memory: what it admits of raises, and what it says where it does not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.cfs import SampleFlag
from schemas.limits import RowStatus
from schemas.oom import MemoryReply, OomCause, OomKind
from services._host.cgroup_snapshot import Pressure
from services._host.cgroupfs import CgroupLayout, ControllerMount
from services._host.host_load import memory_capacity, read_available, read_pressure
from services.agent.backend import node_memory_budget
from services.agent.memory.growth import MIB
from services.agent.memory.node_budget import MemoryBudget, default_reserved_bytes, headroom
from services.agent.node import NodeOptions
from services.agent.settings import AgentSettings
from tests.support.agent_node import Node
from tests.support.fake_host import FakeHost
from tests.support.guarded_node import MS
from tests.support.limit_orders import reply_rows, reserve_order, send, update

GIB = 1 << 30


@pytest.fixture
def host():
    return FakeHost()


def node_of(host, allocatable_mib, *, min_available_mib=100):
    budget = MemoryBudget((allocatable_mib + 256) * MIB, 256 * MIB, min_available_mib * MIB)
    return Node("n1", 7, host, host.reserve_store, NodeOptions(memory_budget=budget))


def container(node, host, name, limit_mib, *, app="shop", usage_mib=10, enforced=True):
    """A container with a limit (negative: none) that was set, and that was sampled; its key and its control files."""
    found = host.add(name, app, quota_us=20_000, limit_bytes=limit_mib * MIB if limit_mib >= 0 else -1)
    key = node.found(found)
    node.containers.limits[key].limit_promised = enforced and limit_mib >= 0
    files = host.containers[found.container_id]
    files.run(0, memory_bytes=usage_mib * MIB)
    node.sample(0, 1)
    return key, files


def test_a_raise_beyond_the_budget_is_carried_out_in_part_and_says_why(host):
    node = node_of(host, 1000)
    web, web_files = container(node, host, "web", 300)
    container(node, host, "db", 600, app="cache")

    (reply,) = send(node, update({web: (30_000, 500 * MIB)}))

    # 300 + 600 MiB are held, 1000 are allocatable: 100 of the 200 that were ordered
    row = reply_rows(reply)[web]
    assert (row["status"], row["limit_bytes"], web_files.limit_bytes) == (RowStatus.NODE_BUDGET, 400 * MIB, 400 * MIB)
    assert row["quota_us"] == web_files.quota_us == 30_000, "processors are shared, not promised"
    assert reply.node_headroom_bytes == 0
    assert reply.node_budget_reason == (
        "the memory budget of node n1 is used up: limits, reserves and what unenforced containers use add up to "
        "900.0 MiB of 1000.0 MiB that are allocatable"
    )
    (line,) = node.events.take_events()
    assert (line.kind, line.cause, line.key) == (OomKind.GRANT_DENIED, OomCause.NODE, web)
    assert (line.limit_before_bytes, line.limit_after_bytes) == (300 * MIB, 400 * MIB)
    assert line.reason.endswith("; the limit update was 500 MiB, it got 400 MiB")


def test_who_is_refused_each_period_is_told_once_a_minute(host):
    node = node_of(host, 300)
    web, _ = container(node, host, "web", 300)
    for seq in range(1, 20):
        send(node, update({web: (0, 400 * MIB)}, seq=seq), seq * 100 * MS)
    assert len(node.events.take_events()) == 1
    assert node.budget.rejections == 19

    send(node, update({web: (0, 400 * MIB)}, seq=20), 61_000 * MS)
    assert len(node.events.take_events()) == 1


def test_a_full_node_can_still_shift_memory_within_one_order(host):
    """The raise stands first in the order, the cut makes room for it."""
    node = node_of(host, 1000)
    web, web_files = container(node, host, "web", 300)
    db, db_files = container(node, host, "db", 700)

    (reply,) = send(node, update({web: (0, 600 * MIB), db: (0, 400 * MIB)}))

    assert [row["status"] for row in reply.rows()] == [RowStatus.APPLIED] * 2
    assert (web_files.limit_bytes, db_files.limit_bytes) == (600 * MIB, 400 * MIB)


def test_cuts_pass_above_the_budget_and_nothing_is_raised(host):
    """Adopted: containers came with more than there is. None of them is cut for it, let alone below its usage."""
    node = node_of(host, 500)
    web, web_files = container(node, host, "web", 400, usage_mib=390)
    db, db_files = container(node, host, "db", 400, usage_mib=100)
    assert (web_files.limit_bytes, db_files.limit_bytes) == (400 * MIB, 400 * MIB)

    assert send(node, update({web: (0, 410 * MIB)}))[0].column("status").tolist() == [RowStatus.NODE_BUDGET]
    assert send(node, update({db: (0, 350 * MIB)}, seq=2))[0].column("status").tolist() == [RowStatus.APPLIED]
    assert (web_files.limit_bytes, db_files.limit_bytes) == (400 * MIB, 350 * MIB)


def test_a_container_without_a_limit_gets_its_first_one_on_a_full_node_too(host):
    """Unlimited it may take all that the machine has; limited just above its usage it cannot."""
    node = node_of(host, 500)
    container(node, host, "db", 500)
    web, web_files = container(node, host, "web", -1, usage_mib=80)

    (reply,) = send(node, update({web: (20_000, 300 * MIB)}))

    assert web_files.limit_bytes == 84 * MIB  # usage, and the least room above it
    assert reply_rows(reply)[web]["status"] == RowStatus.NODE_BUDGET


def test_a_reserve_is_given_as_far_as_the_node_has_room(host):
    node = node_of(host, 500)
    container(node, host, "web", 300)

    (reply,) = send(node, reserve_order(900 * MIB))

    assert reply.reserve_given_bytes == (200 * MIB,)
    assert host.reserve_store.read()["shop"].left_bytes == 200 * MIB
    assert "add up to 300.0 MiB of 500.0 MiB" in reply.node_budget_reason
    (again,) = send(node, reserve_order(900 * MIB))  # doubled by the network
    assert again.reserve_given_bytes == (200 * MIB,)


def test_grants_out_of_a_reserve_are_within_the_budget_already(host):
    node = node_of(host, 500)
    web, files = container(node, host, "web", 300)
    send(node, update({web: (0, 310 * MIB)}))
    send(node, reserve_order(190 * MIB, seq=2))
    assert node.budget.headroom_bytes == 0

    files.touch(295 * MIB)
    node.take_notifications(5 * MS)

    assert files.limit_bytes > 310 * MIB
    assert files.limit_bytes + host.reserve_store.read()["shop"].left_bytes == 500 * MIB


def test_nothing_is_raised_or_granted_while_memory_available_is_too_low(host):
    node = node_of(host, 2000)
    web, files = container(node, host, "web", 300)
    send(node, reserve_order(100 * MIB))
    send(node, update({web: (0, 310 * MIB)}, seq=2))
    host.available_bytes = 99 * MIB

    (reply,) = send(node, update({web: (0, 400 * MIB)}, seq=3))
    assert reply_rows(reply)[web]["limit_bytes"] == 310 * MIB
    assert reply.node_headroom_bytes == 0
    assert reply.node_budget_reason == (
        # 100 are kept free; of the limit of 310 MiB, 10 are used, and 100 stay in the reserve
        "memory of node n1 runs out: MemAvailable is 99.0 MiB, and 500.0 MiB are kept free or promised already"
    )
    files.touch(295 * MIB)
    node.take_notifications(5 * MS)
    assert files.limit_bytes == 310 * MIB
    assert host.reserve_store.read()["shop"].left_bytes == 100 * MIB

    host.available_bytes = 104 * MIB  # what the container may take still is not granted twice: 295 of 310 are used
    node.memory.poll(10 * MS)
    assert files.limit_bytes == 310 * MIB
    host.available_bytes = 120 * MIB
    node.memory.poll(20 * MS)
    assert files.limit_bytes == 325 * MIB
    assert host.reserve_store.read()["shop"].left_bytes == 85 * MIB


def test_limits_of_observed_containers_are_nobodys_promise(host):
    """They came with 2 GiB each, as is usual, and use 200 MiB: 8000 - 300 - 10 x 204 MiB are left."""
    node = node_of(host, 8000)
    web, files = container(node, host, "web", 300)
    for number in range(10):
        container(node, host, f"old{number}", 2048, app="old", usage_mib=200, enforced=False)
    assert node.budget.headroom_bytes == 5660 * MIB

    (reply,) = send(node, update({web: (0, 5960 * MIB)}))

    assert (reply.node_budget_reason, files.limit_bytes) == ("", 5960 * MIB)
    assert node.budget.headroom_bytes == 0


def test_page_cache_of_observed_containers_is_not_in_use(host):
    node = node_of(host, 1000)
    _, files = container(node, host, "old", 2048, usage_mib=900, enforced=False)
    files.reclaimable_bytes = 850 * MIB
    node.read_back(0)
    for number in range(50):
        node.read_back(number)
        node.sample(number, 1)
    assert node.budget.headroom_bytes == (1000 - 54) * MIB


def test_a_container_that_came_with_a_limit_counts_with_it_from_its_first_order_on(host):
    node = node_of(host, 1000)
    web, files = container(node, host, "web", 2048, usage_mib=200, enforced=False)
    assert node.budget.committed_bytes() == 204 * MIB

    send(node, update({web: (0, 250 * MIB)}))

    assert files.limit_bytes == node.budget.committed_bytes() == 250 * MIB
    again = Node("n1", 8, host, host.reserve_store, NodeOptions(memory_budget=MemoryBudget(1256 * MIB, 256 * MIB, 0)))
    again.found(next(member.found for member in node.containers.managed.values()))
    assert again.budget.committed_bytes() == 250 * MIB, "a new agent knows what the one before has set"


def test_a_limit_of_its_own_stands_where_the_node_cannot_promise_all_of_the_first_order(host):
    """200 MiB are left: it is neither promised half of what is ordered, nor cut below what it came with for that."""
    node = node_of(host, 1000)
    container(node, host, "db", 690)
    web, files = container(node, host, "web", 2048, usage_mib=96, enforced=False)

    (reply,) = send(node, update({web: (0, 1024 * MIB)}))
    assert reply_rows(reply)[web]["status"] == RowStatus.NODE_BUDGET
    assert (files.limit_bytes, node.budget.headroom_bytes) == (2048 * MIB, 210 * MIB)

    send(node, update({web: (0, 150 * MIB)}, seq=2))
    assert (files.limit_bytes, node.budget.headroom_bytes) == (150 * MIB, 160 * MIB)


def test_batches_say_which_limits_no_agent_has_set(host):
    node = node_of(host, 1000)
    container(node, host, "web", 300)
    container(node, host, "new", 300, enforced=False)
    (batch,), _ = node.sample(100 * MS, 2)
    assert (batch.column("flags") & SampleFlag.OWN_MEMORY_LIMIT).tolist() == [SampleFlag.OWN_MEMORY_LIMIT, 0]


def test_a_refusal_of_an_allocator_that_knew_less_headroom_is_asked_again(host):
    node = node_of(host, 1000)
    container(node, host, "web", 300)
    reply = MemoryReply(app="shop", epoch=1, granted_bytes=0, reclaiming_bytes=0, denial="full", node_is_full=True)
    again = node.budget.outcome(reply, 900 * MIB)
    assert again.denial == ""
    assert "that are allocatable; its node has 700.0 MiB again; full" in again.timeout  # less than was asked for
    assert node.budget.outcome(reply, 700 * MIB).timeout == "its node has 700.0 MiB again; full"
    container(node, host, "db", 700)
    assert node.budget.outcome(reply, 1).denial.endswith("that are allocatable; full")
    node = node_of(host, 1000)
    assert node.budget.outcome(reply.model_copy(update={"node_is_full": False}), 1).denial == "full"


def test_a_raise_takes_no_more_than_is_available_and_not_promised_yet(host):
    """MemAvailable 1000: 100 are kept free, 290 of web's limit and 150 of the reserve may be taken at any time."""
    node = node_of(host, 20_000)
    web, files = container(node, host, "web", 300)
    send(node, reserve_order(150 * MIB))
    host.available_bytes = 1000 * MIB

    (reply,) = send(node, update({web: (0, 15_000 * MIB)}, seq=2))

    assert files.limit_bytes == (300 + 460) * MIB
    assert reply.node_headroom_bytes == 0
    assert reply.node_budget_reason == (
        "memory of node n1 runs out: MemAvailable is 1000.0 MiB, and 540.0 MiB are kept free or promised already"
    )


def test_grants_leave_what_other_containers_may_take_within_their_limits(host):
    """MemAvailable falls after the promises: 100 are kept free, db may take 290 still, so 60 of 450 can be granted."""
    node = node_of(host, 2000)
    web, files = container(node, host, "web", 300)
    db, db_files = container(node, host, "db", 300)
    send(node, reserve_order(400 * MIB))
    send(node, update({web: (0, 310 * MIB), db: (0, 301 * MIB)}, seq=2))
    db_files.run(0, memory_bytes=11 * MIB)
    node.sample(2 * MS, 2)
    host.available_bytes = 450 * MIB
    files.touch(500 * MIB)
    node.take_notifications(5 * MS)
    assert files.limit_bytes == (310 + 60) * MIB


def test_batches_say_what_the_node_has_left(host):
    node = node_of(host, 1000)
    container(node, host, "web", 300)
    container(node, host, "db", -1, app="cache", usage_mib=96)
    batches, _ = node.sample(100 * MS, 2)
    # 1000 - 300 - (96 + 4: what a first limit needs at least)
    assert {batch.app: batch.node_headroom_bytes for batch in batches} == {"shop": 600 * MIB, "cache": 600 * MIB}

    (unbounded, _) = Node("n2", 8, FakeHost(), FakeHost().reserve_store).sample(0, 1)
    assert unbounded == []
    assert Node("n2", 8, FakeHost(), FakeHost().reserve_store).empty_batch("shop", 1).node_headroom_bytes == -1


@pytest.mark.parametrize(
    ("capacity_bytes", "reserved_bytes"),
    [(24 * GIB, 24 * GIB // 20), (2 * GIB, 256 * MIB), (1 * GIB, 256 * MIB), (256 * MIB, 128 * MIB)],
)
def test_by_default_five_percent_are_reserved_and_256_mib_at_least(capacity_bytes, reserved_bytes):
    assert default_reserved_bytes(capacity_bytes) == reserved_bytes
    assert node_memory_budget(AgentSettings.load({}), capacity_bytes) == MemoryBudget(
        capacity_bytes, reserved_bytes, 100 * MIB
    )


def test_settings_say_how_much_there_is():
    environ = {
        "TURNBUCKLE_AGENT__NODE_MEMORY_BYTES": "2GiB",
        "TURNBUCKLE_AGENT__SYSTEM_RESERVED_MEMORY_BYTES": "134217728",
        "TURNBUCKLE_AGENT__MIN_AVAILABLE_MEMORY_BYTES": "0",
    }
    budget = node_memory_budget(AgentSettings.load(environ), 24 * GIB)
    assert (budget.allocatable_bytes, budget.min_available_bytes) == (2 * GIB - 128 * MIB, 0)


def test_no_more_is_promised_than_the_machine_has():
    settings = AgentSettings.load({"TURNBUCKLE_AGENT__NODE_MEMORY_BYTES": "64GiB"})
    assert node_memory_budget(settings, 24 * GIB).capacity_bytes == 24 * GIB


@given(
    budget=st.builds(MemoryBudget, st.integers(0, 1 << 60), st.integers(0, 1 << 60), st.integers(0, 1 << 60)),
    committed=st.integers(0, 1 << 61),
    available=st.none() | st.integers(0, 1 << 60),
    unused=st.integers(0, 1 << 60),
)
def test_headroom_passes_neither_the_budget_nor_what_is_available(budget, committed, available, unused):
    left = headroom(budget, committed, available, unused).left_bytes
    assert left >= 0
    assert left == 0 or committed + left <= budget.capacity_bytes - budget.reserved_bytes
    assert left == 0 or available is None or unused + left <= available - budget.min_available_bytes


def test_readings_of_a_machine(tmp_path):
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:       24000000 kB\nMemFree:         1000 kB\nMemAvailable:    2048 kB\n")
    assert read_available(meminfo) == 2 * MIB
    assert read_available(tmp_path / "missing") is None
    (tmp_path / "cpu").write_text("some avg10=12.34 avg60=1.00 avg300=0.10 total=123\nfull avg10=0.00 avg60=0.00\n")
    assert read_pressure(tmp_path) == Pressure(cpu_percent=12.34, memory_percent=None)


def test_capacity_is_the_limit_of_the_root_group_where_that_is_less(tmp_path):
    """Inside of a container, the root that is mounted is the container's own group."""
    layout = CgroupLayout(2, hybrid=False, mounts={"memory": ControllerMount(str(tmp_path), "/", read_only=False)})
    total_bytes = memory_capacity(layout)
    assert total_bytes > 256 * MIB
    (tmp_path / "memory.max").write_text("max\n")
    assert memory_capacity(layout) == total_bytes
    (tmp_path / "memory.max").write_text(f"{128 * MIB}\n")
    assert memory_capacity(layout) == 128 * MIB
