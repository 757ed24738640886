"""Whatever happens in whatever order: memory is conserved, no wait is endless, one request at a time."""

from hypothesis import event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from services._host.cgroup_snapshot import Notification, NotificationKind
from services.agent.memory.growth import MIB
from services.agent.memory.policy import POLL_NS
from services.agent.memory.records import RequestOutcome
from services.agent.node import NodeOptions
from tests.support.agent_node import Node
from tests.support.examples import examples
from tests.support.fake_host import FakeHost
from tests.support.limit_orders import reserve_order, send, update

MS = 1_000_000
DEADLINE_NS = 300 * MS
MOST_MIB = 700
amounts = st.integers(1, 400)


class GuardedNode(RuleBasedStateMachine):
    """One node, three containers of one application; orders, alarms and answers come late, twice, or never."""

    def __init__(self):
        super().__init__()
        self.host = FakeHost()
        self.found = []
        self.now_ns, self.seq, self.incarnation = 0, 0, 0
        self.paused_since = {}
        self.unanswered = []
        self.orders = []
        self.limits = {}
        self.maximum_unknown = False
        """A restarted agent learns it with its first reserve order, and rather grants than kills until then."""

    @initialize()
    def begin(self):
        self.found = [self.host.add(name, limit_bytes=64 * MIB) for name in ("a", "b", "c")]
        self.restart()
        for key in list(self.limits):
            self.send(update({key: (0, 65 * MIB)}, seq=self.next_seq(), incarnation=self.incarnation))

    def restart(self):
        self.incarnation += 1
        options = NodeOptions(oom_wait_timeout_ns=DEADLINE_NS)
        self.node = Node("n1", self.incarnation, self.host, self.host.reserve_store, options)
        for found in self.found:
            self.node.found(found)
        self.unanswered, self.orders = [], []
        self.maximum_unknown = self.incarnation > 1
        self.paused_since = dict.fromkeys(self.paused_since, self.now_ns)
        self.look()

    def next_seq(self):
        self.seq += 1
        return self.seq

    def send(self, message):
        send(self.node, message, self.now_ns)
        self.look()

    def look(self):
        """After every step, as the service does."""
        self.unanswered += self.node.events.take_requests()
        assert len(self.unanswered) <= 1
        for line in self.node.events.take_events():
            event(str(line.kind))
            assert line.limit_after_bytes >= line.limit_before_bytes
        for found in self.found:
            container = self.host.containers[found.container_id]
            if not container.paused:
                self.paused_since.pop(found.key, None)
            elif self.limits.get(found.key) != container.limit_bytes:  # it went on, and waits again
                self.paused_since[found.key] = self.now_ns
            self.limits[found.key] = container.limit_bytes

    def container(self, position):
        return self.host.containers[self.found[position].container_id]

    @rule(position=st.integers(0, 2), amount=amounts)
    def grow(self, position, amount):
        container = self.container(position)
        container.touch(amount * MIB)
        if container.paused:
            self.paused_since.setdefault(container.key, self.now_ns)

    @rule(position=st.integers(0, 2), amount=amounts)
    def shrink(self, position, amount):
        if not self.container(position).paused:
            self.container(position).free(amount * MIB)

    @rule()
    def notifications(self):
        self.node.take_notifications(self.now_ns)
        self.look()

    @rule()
    def alarms_are_lost(self):
        self.host.take_notifications()

    @rule(position=st.integers(0, 2), kind=st.sampled_from(NotificationKind))
    def false_alarm(self, position, kind):
        self.container(position).notifications.append(Notification(self.found[position].key, kind))
        self.node.take_notifications(self.now_ns)
        self.look()

    @rule(periods=st.integers(1, 12))
    def time_passes(self, periods):
        for _ in range(periods):
            tick_ns = self.now_ns + 100 * MS
            while (due_ns := self.node.memory.next_poll_ns(self.now_ns)) is not None and due_ns < tick_ns:
                self.now_ns = due_ns
                self.node.memory.poll(self.now_ns)
                self.look()
            self.now_ns = tick_ns
            batches, _ = self.node.sample(self.now_ns, self.now_ns)
            self.look()
            self.check_batch(batches[0])

    def check_batch(self, batch):
        """A batch tells the limits and the reserve of one moment: what the kernel and the book hold."""
        for row in batch.rows():
            assert row["memory_limit_bytes"] == self.limits[row["container"]]
        reserve = self.host.reserve_store.read().get("shop")
        if reserve is not None:
            assert (batch.reserve_given_bytes, batch.reserve_used_bytes) == reserve

    @rule(amount=amounts)
    def reserve_is_ordered(self, amount):
        used = self.node.reserves.report("shop").used_bytes
        order = reserve_order(
            used + amount * MIB, seq=self.next_seq(), incarnation=self.incarnation, most_bytes=MOST_MIB * MIB
        )
        before = self.held()
        self.orders.append(order)
        raised = used + amount * MIB - self.node.reserves.report("shop").given_bytes
        self.send(order)
        assert self.held() == before + raised

    @precondition(lambda self: self.orders)
    @rule(data=st.data())
    def an_order_comes_again(self, data):
        before = self.held()
        self.send(data.draw(st.sampled_from(self.orders)))
        assert self.held() == before

    @precondition(lambda self: self.unanswered)
    @rule(
        answer=st.sampled_from(
            [RequestOutcome(), RequestOutcome(denial="nothing left"), RequestOutcome(timeout="nobody")]
        )
    )
    def an_answer_comes(self, answer):
        before = self.held()
        self.node.memory.answered(self.unanswered.pop(), answer, self.now_ns)
        self.look()
        assert self.held() == before

    @rule(position=st.integers(0, 2), amount=amounts)
    def limit_is_ordered(self, position, amount):
        key = self.found[position].key
        self.send(update({key: (0, amount * MIB)}, seq=self.next_seq(), incarnation=self.incarnation))

    @rule()
    def agent_is_killed_and_restarted(self):
        self.restart()

    def held(self):
        """What counts against the application's limit."""
        reserve = self.host.reserve_store.read().get("shop")
        limits = sum(container.limit_bytes for container in self.host.containers.values())
        return limits + (reserve.left_bytes if reserve else 0)

    @invariant()
    def nothing_is_granted_beyond_the_reserve_or_the_maximum(self):
        for app, reserve in self.host.reserve_store.read().items():
            assert 0 <= reserve.used_bytes <= reserve.given_bytes, app
        for container in self.host.containers.values():
            assert self.maximum_unknown or container.limit_bytes <= MOST_MIB * MIB

    @invariant()
    def no_task_waits_beyond_the_deadline(self):
        """A tick and a poll later than the setting at most; a restarted agent counts anew."""
        for since_ns in self.paused_since.values():
            assert self.now_ns - since_ns <= DEADLINE_NS + 100 * MS + POLL_NS


TestGuardedNode = GuardedNode.TestCase
TestGuardedNode.settings = settings(max_examples=examples(150), stateful_step_count=60, deadline=None)
