"""The agent has the last word on its node's memory: what it admits of raises, and what it says where it does not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.limits import RowStatus
from schemas.oom import OomCause, OomKind
from services._host.cgroup_snapshot import Pressure
from services._host.cgroupfs import CgroupLayout, ControllerMount
from services._host.host_load import memory_capacity, read_available, read_pressure
from services.agent.backend import node_memory_budget
from services.agent.memory.growth import MIB
from services.agent.memory.node_budget import MemoryBudget, default_reserved_bytes, grant_refusal, headroom
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


def container(node, host, name, limit_mib, *, app="shop", usage_mib=10):
    """A container with a limit (negative: none) that was sampled; its key and its control files."""
    found = host.add(name, app, quota_us=20_000, limit_bytes=limit_mib * MIB if limit_mib >= 0 else -1)
    key = node.found(found)
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
        "the memory budget of node n1 is used up: limits and reserves of its containers add up to 900.0 MiB of "
        "1000.0 MiB that are allocatable"
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
        "memory of node n1 runs out: MemAvailable is 99.0 MiB, nothing is raised below 100.0 MiB"
    )
    files.touch(295 * MIB)
    node.take_notifications(5 * MS)
    assert files.limit_bytes == 310 * MIB
    assert host.reserve_store.read()["shop"].left_bytes == 100 * MIB

    host.available_bytes = 100 * MIB
    node.memory.poll(10 * MS)
    assert files.limit_bytes > 310 * MIB


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


@given(
    capacity=st.integers(0, 1 << 60),
    reserved=st.integers(0, 1 << 60),
    committed=st.integers(0, 1 << 61),
    available=st.none() | st.integers(0, 1 << 60),
    threshold=st.integers(0, 1 << 60),
)
def test_headroom_never_passes_the_budget(capacity, reserved, committed, available, threshold):
    budget = MemoryBudget(capacity, reserved, threshold)
    room = headroom(budget, committed, available)
    assert room.left_bytes >= 0
    assert room.left_bytes == 0 or committed + room.left_bytes <= capacity - reserved
    if grant_refusal(budget, available) is not None:
        assert room.left_bytes == 0


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
