"""Containers for which their application has no room: limits from when they are found, whatever comes in which order.

Real allocator and agent. The sum of limits is the application's at most, but for floors, which are named.
"""

from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.apps import AppSpec
from services._host.cgroup_snapshot import Limits
from services.agent.limits.accepted_updates import SpecLimit
from tests.support.examples import examples
from tests.support.lossy_cluster import floors
from tests.support.shared_node import SharedNode

MIB = 1 << 20
SECOND = 10
"""Periods."""
FLOOR = Limits(1_000, 6 * MIB)


def limits(container):
    """In the kernel."""
    return Limits(container.quota_us, container.limit_bytes)


class Application:
    """One application on one node, whose agent knows what is announced."""

    def __init__(self, cores=1.0, memory_mib=256, policy="waterfill", **values):
        self.spec = AppSpec(name="shop", cpu_limit=cores, memory_limit=memory_mib * MIB, policy=policy, **values)
        self.shared = SharedNode((self.spec,), None, busy=True)
        known = SpecLimit(self.spec.cpu_limit_us, int(self.spec.memory_limit), FLOOR)
        self.shared.node.limits.spec_limits = {"shop": known}
        self.usage_mib = []

    @property
    def owner(self):
        return self.shared.owners["shop"]

    def start(self, usage_mib):
        """A container that is found; its agent gives it its floor at once."""
        container = self.shared.start_container("shop")
        self.usage_mib.append(usage_mib)
        self.shared.act_of_agent(lambda: self.shared.node.limits.write_floors("shop", self.shared.now_ns))
        return container

    def stop(self, position):
        self.shared.stop_container(position)
        return self.usage_mib.pop(position)

    def periods(self, count=1):
        for _ in range(count):
            self.shared.run([mib * MIB for mib in self.usage_mib])
            self.shared.deliver_all(reclaim=True)

    def refusals(self):
        return {container: reason for (_, container), reason in self.owner.refused.reasons.items()}


def test_a_container_has_its_floor_before_any_owner_has_decided():
    app = Application()
    container = app.start(1)
    assert limits(container) == FLOOR


def test_a_full_application_s_next_container_gets_its_floor_and_is_named_with_what_is_missing():
    """The first uses all of 256 MiB; the second would use 900."""
    app = Application()
    first = app.start(400)
    app.periods(10 * SECOND)
    assert first.limit_bytes > 240 * MIB
    second = app.start(900)
    app.periods(5 * SECOND)

    assert second.limit_bytes <= 16 * MIB
    assert second.quota_us > 30_000, "CPU is independent"
    assert app.shared.limits_bytes() <= 256 * MIB + second.limit_bytes
    [(name, reason)] = app.refusals().items()
    assert name == app.shared.found[1].key
    assert "MiB of memory" in reason
    assert "of 256 MiB are free" in reason

    app.stop(0)
    app.periods(3 * SECOND)
    assert app.refusals() == {}
    assert second.limit_bytes > 100 * MIB


def test_a_refusal_that_lasts_is_told_once_and_so_is_its_end():
    app, told = Application(), []
    step = app.owner.step

    def watched(*arguments, **keywords):
        outcome = step(*arguments, **keywords)
        told.extend(outcome.refusals)
        return outcome

    app.owner.step = watched
    app.start(400)
    app.periods(10 * SECOND)
    app.start(900)
    app.periods(SECOND)
    assert told == []
    app.periods(3 * SECOND)
    [first] = told
    assert (first.app, first.node, first.container) == ("shop", "n1", app.shared.found[1].key)
    app.stop(0)
    app.periods(3 * SECOND)
    assert [each.ended for each in told] == [False, True]
    assert told[1].reason.startswith(f"there is room, after: {first.container} needs at least ")


def test_a_container_that_needs_more_than_the_whole_limit_is_named_at_once():
    app = Application(memory_mib=64)
    app.shared.node.limits.spec_limits = None  # this agent has not read any
    app.shared.start_container("shop")
    app.usage_mib.append(100)
    app.periods(3)
    [container] = app.shared.containers()
    assert container.limit_bytes == 104 * MIB
    assert "needs at least 104 MiB of memory" in next(iter(app.refusals().values()))


def test_a_restarted_container_has_limits_again_at_once_and_takes_nothing_from_the_others():
    app = Application()
    for _ in range(3):
        app.start(90)
    app.periods(5 * SECOND)
    usage = app.stop(1)
    app.periods(2)
    held = app.shared.limits_bytes()
    again = app.start(usage)
    assert limits(again) == FLOOR
    assert app.shared.limits_bytes() <= held + FLOOR.memory_bytes
    app.periods(3 * SECOND)
    assert again.limit_bytes > 60 * MIB


STEP = st.one_of(
    st.tuples(st.just("start"), st.sampled_from([1, 30, 200, 900])),
    st.tuples(st.just("stop"), st.integers(0, 9)),
    st.tuples(st.just("restart"), st.integers(0, 9)),
    st.tuples(st.just("grow"), st.integers(0, 9)),
    st.tuples(st.just("pass"), st.integers(1, 12)),
)


@settings(max_examples=examples(60), deadline=None)
@given(
    policy=st.sampled_from(["waterfill", "escra"]),
    cores=st.sampled_from([0.03, 0.5, 2.0]),
    memory_mib=st.sampled_from([32, 256]),
    announced=st.integers(0, 3),
    steps=st.lists(STEP, max_size=25),
)
def test_all_limits_add_up_to_the_application_s_and_the_named_floors(policy, cores, memory_mib, announced, steps):
    app = Application(cores, memory_mib, policy, announced_containers=announced)
    sums = (0, 0)
    for what, value in [*steps, ("pass", 2 * SECOND)]:
        position = value % len(app.usage_mib) if app.usage_mib else None
        if what == "start":
            app.start(value)
        elif what == "restart" and position is not None:
            app.start(app.stop(position))
        elif what == "stop" and position is not None:
            app.stop(position)
        elif what == "grow" and position is not None:
            app.usage_mib[position] += 100
        for _ in range(value if what == "pass" else 1):
            app.periods()
            assert all(min(limits(container)) > 0 for container in app.shared.containers())
            floor_us, floor_bytes = floors(app.owner)
            before, sums = sums, (app.shared.quotas_us(), app.shared.limits_bytes())
            assert sums[0] <= max(app.spec.cpu_limit_us + floor_us, before[0])
            assert sums[1] <= max(int(app.spec.memory_limit) + floor_bytes, before[1])
    rows = app.owner.cluster.rows
    short = {app.owner.cluster.keys[row] for row in range(rows.count) if rows.short[row]}
    assert short == app.refusals().keys()
