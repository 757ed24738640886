"""Limits against what the nodes have: what `apply`, `top` and `explain` say, with figures."""

import pytest

from schemas.apps import AppSpec
from schemas.containers import NodeInfo
from services.cli.apps.capacity import capacity_warnings, node_warnings
from services.cli.apps.live_view import plain_lines
from services.cli.apps.view_model import ViewModel

GIB = 1 << 30


def node(name="h1", *, cpus=2, memory=24 * GIB, **values):
    known = {"allocatable_memory_bytes": memory * 19 // 20, "committed_memory_bytes": 0, "committed_cpu_us": 0}
    return NodeInfo(
        node=name,
        incarnation=1,
        time_ns=0,
        host_cpus=cpus,
        memory_bytes=memory,
        cgroup_version=2,
        telemetry_source="bpf",
        docker=True,
        container_count=0,
        version="1",
        **(known | values),
    )


def app(name, cores, memory, mode="enforce"):
    return AppSpec(name=name, cpu_limit=cores, memory_limit=memory, mode=mode)


def test_an_application_larger_than_all_nodes_is_told_with_figures():
    """19/20 of 24 GiB are 22.8 GiB."""
    assert capacity_warnings(app("big", 500, 10 << 40), {}, [node()]) == [
        (
            "big may use 10 TiB of memory, the registered node h1 has 22.8 GiB allocatable for containers: "
            "agents refuse what is beyond"
        ),
        "big may use 500 cores, the registered node h1 has 2 cores: its limit never holds it back",
    ]


def test_two_that_promise_more_together_are_both_named():
    announced = {"shop": app("shop", 1, GIB), "cache": app("cache", 2, 15 * GIB)}
    assert capacity_warnings(app("shop", 1.5, 10 * GIB), announced, [node()]) == [
        (
            "cache (15 GiB) and shop (10 GiB) together may use 25 GiB of memory, the registered node h1 has 22.8 GiB "
            "allocatable for containers: agents refuse what is beyond"
        ),
        (
            "cache (2 cores) and shop (1.5 cores) together may use 3.5 cores, the registered node h1 has 2 cores: "
            "they are overcommitted, and shared when all are busy"
        ),
    ]


@pytest.mark.parametrize(
    ("spec", "announced", "nodes"),
    [
        (app("big", 500, 10 << 40), {}, []),  # nothing is known of any node
        (app("big", 500, 10 << 40, "observe"), {}, [node()]),  # promises nothing
        (app("shop", 2, 22 * GIB), {"cache": app("cache", 2, 22 * GIB, "observe")}, [node()]),
        (app("shop", 2, 22 * GIB), {"shop": app("shop", 2, 22 * GIB)}, [node()]),  # its own old limits
        (app("shop", 4, 44 * GIB), {}, [node("h1"), node("h2")]),
        (app("shop", 2, 24 * GIB), {}, [node(allocatable_memory_bytes=None)]),  # an agent that sets no bound
    ],
)
def test_nothing_is_said_where_nothing_is_wrong(spec, announced, nodes):
    assert capacity_warnings(spec, announced, nodes) == []


def test_where_all_nodes_have_a_cpu_budget_agents_refuse_what_is_beyond():
    """1.5 x 2 cores on each of two nodes: 6 cores."""
    nodes = [node("h1", allocatable_cpu_us=300_000), node("h2", allocatable_cpu_us=300_000)]
    has = "the 2 registered nodes have 6 cores for CPU limits: agents refuse what is beyond"
    assert capacity_warnings(app("big", 7, GIB), {}, nodes) == [f"big may use 7 cores, {has}"]
    assert capacity_warnings(app("big", 4, GIB), {"shop": app("shop", 3, GIB)}, nodes) == [
        f"big (4 cores) and shop (3 cores) together may use 7 cores, {has}"
    ]
    assert capacity_warnings(app("big", 4, GIB), {"shop": app("shop", 2, GIB)}, nodes) == []


def test_overcommit_is_silent_where_all_nodes_allow_it_and_compared_with_cores_where_one_warns():
    allows, warns = node("h1", warns_cpu_overcommit=False), node("h2")
    bounded = node("h3", allocatable_cpu_us=300_000, warns_cpu_overcommit=False)
    assert capacity_warnings(app("big", 500, GIB), {}, [allows]) == []
    assert capacity_warnings(app("big", 500, GIB), {}, [allows, bounded]) == []
    [told] = capacity_warnings(app("big", 500, GIB), {}, [allows, warns, bounded])
    assert told.endswith("the 3 registered nodes have 6 cores: its limit never holds it back")
    assert node_warnings(node(committed_cpu_us=450_000, warns_cpu_overcommit=False)) == []


@pytest.mark.parametrize(
    ("committed_us", "word"), [(285_000, None), (290_000, "near"), (300_000, "near"), (310_000, "above")]
)
def test_a_node_near_or_above_its_cpu_budget(committed_us, word):
    full = node(committed_cpu_us=committed_us, allocatable_cpu_us=300_000, warns_cpu_overcommit=False)
    sums = f"CPU limits of its containers add up to {committed_us / 100_000:.2f} of 3.00 cores, it has 2"
    expected = [] if word is None else [f"node h1 is {word} its CPU budget: {sums}; what is beyond is refused"]
    assert node_warnings(full) == expected


def test_of_many_the_largest_are_named():
    announced = {f"a{index:02}": app(f"a{index:02}", 1, (index + 1) * GIB) for index in range(12)}
    memory, _ = capacity_warnings(app("shop", 1, GIB), announced, [node()])
    assert memory.startswith("a04 (5 GiB), a05 (6 GiB)")
    assert " and 5 others together may use 79 GiB" in memory


def test_a_node_that_is_full_overcommitted_or_under_pressure():
    busy = node(
        memory=2 * GIB,
        allocatable_memory_bytes=1792 << 20,
        committed_memory_bytes=1780 << 20,
        committed_cpu_us=450_000,
        cpu_pressure_percent=61.4,
        memory_pressure_percent=3.0,
    )
    assert node_warnings(busy) == [
        (
            "node h1 is nearly full: limits, reserves and what is in use beside them add up to 1.74 GiB of 1.75 GiB "
            "allocatable; what is beyond is refused"
        ),
        "node h1 has 2 cores, CPU limits of its containers add up to 4.50: overcommitted",
        "node h1: tasks waited for processors in 61 % of the last 10 s (PSI)",
    ]
    adopted = node(allocatable_memory_bytes=GIB, committed_memory_bytes=2 * GIB)
    assert "above its memory budget" in node_warnings(adopted)[0]
    assert node_warnings(node()) == []
    assert node_warnings(node(allocatable_memory_bytes=None, committed_memory_bytes=None, committed_cpu_us=None)) == []


def test_top_tells_it_below_the_applications_and_forgets_nodes_that_have_gone():
    state = ViewModel()
    state.announce(app("shop", 1, GIB))
    state.register("h1", node(committed_cpu_us=450_000))
    assert plain_lines(state)[-1].strip().startswith("node h1 has 2 cores, CPU limits of its containers add up to 4.50")
    [plain] = state.snapshot()["nodes"]
    assert (plain["node"], len(plain["warnings"])) == ("h1", 1)
    state.register("h1", None)
    assert state.snapshot()["nodes"] == []
