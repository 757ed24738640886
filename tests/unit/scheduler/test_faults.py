"""The leader's core against nodes that lose, double and delay everything, restart, reboot and fall silent.

Pure: time is a number, and every message waits until the machine chooses to deliver, double or drop it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from schemas.scheduling import (
    ClusterLink,
    ClusterNode,
    EstimateSource,
    JobAction,
    JobControlled,
    JobOutcome,
    JobPlanned,
    JobSpec,
    JobSubmitted,
    OrderAction,
    Preemption,
    RunTime,
    ScheduleEvent,
    TrafficProfile,
    WorkerChange,
    WorkerState,
    WorkEvent,
    WorkReply,
)
from services.scheduler.core.entries import decided, gathered, says_nothing, undecided
from services.scheduler.core.jobs import Phase
from services.scheduler.core.live import OVER
from services.scheduler.core.live_policies import POLICIES
from services.scheduler.core.orders import Order, news, orders
from services.scheduler.core.placement import Room
from services.scheduler.core.planned_places import Question
from services.scheduler.core.snapshot import Snapshot, decode, encode
from services.scheduler.core.state import State, fold
from tests.support.examples import examples
from tests.support.traffic import MBIT, profile

SLOTS = 3
NODES = ("n1", "n2")
LINKS = (ClusterLink(link="up", bits_per_s=100 * MBIT, nodes=("n1",)),)
LOST_AFTER_S = 330.0
FENCE_S = 300.0
"""A runner that is cut off stops its workers that may be preempted, and has done so after their grace period."""
GRACE_S = 30.0
Worker = tuple[str, int, int]


def _plan(job: str, attempt: int, nodes: tuple[str, ...]) -> str:
    """Each second attempt has one."""
    return f"{job} {attempt} {nodes}" if attempt % 2 else ""


def _answers(question: Question) -> tuple[JobPlanned, ...]:
    """The planner's, by which a step on n2 is the shortest."""
    job, attempt = question.spec.job, question.attempt
    places = [tuple(node.node for node in place) for place in question.places]
    return tuple(
        JobPlanned(
            job=job, attempt=attempt, nodes=place, plan=_plan(job, attempt, place), step_us=1 + place.count("n1")
        )
        for place in places
    )


@dataclass
class Host:
    """A node: what is true of its workers, and what it has obeyed."""

    node: str
    incarnation: int = 1
    silent_since_s: float | None = None
    workers: dict[Worker, WorkEvent] = field(default_factory=dict)
    stopping: set[Worker] = field(default_factory=set)
    obeyed: dict[str, int] = field(default_factory=dict)

    def running(self) -> list[Worker]:
        return sorted(worker for worker, last in self.workers.items() if last.change not in OVER)

    def change(self, worker: Worker, change: WorkerChange) -> WorkEvent:
        job, attempt, rank = worker
        event = WorkEvent(
            job=job, attempt=attempt, rank=rank, node=self.node, change=change, time_ns=1, ran_s=5.0, took_s=1.0
        )
        self.workers[worker] = event
        return event


class Faults(RuleBasedStateMachine):
    """One cluster under one leader after another."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1_000.0
        self.policy = "index"
        self.log: list[ScheduleEvent] = []
        self.state = State()
        self.hosts = {node: Host(node) for node in NODES}
        self.inbox: list[WorkEvent] = []
        self.requests: list[JobSubmitted | JobControlled] = []
        self.questions: tuple[Question, ...] = ()
        """That the planner answers before the next decision."""
        self.events: list[WorkEvent] = []
        """On their way."""
        self.sent: list[tuple[int, Order]] = []
        """With the sequence at which they were sent."""
        self.replies: list[tuple[Order, WorkReply]] = []
        self.starts: Counter[Worker] = Counter()
        self.profiles: dict[str, TrafficProfile] = {}
        self.numbers = 0
        self.leaders = 0

    @initialize(policy=st.sampled_from([name for name, policy in POLICIES.items() if policy.backfills]))
    def choose(self, policy: str) -> None:
        """Under the others a job that is too large keeps all back that came later."""
        self.policy = policy

    # -- people -------------------------------------------------------------------------------------------------------

    @rule(
        workers=st.integers(1, 3),
        slots=st.integers(1, 2),
        preemption=st.sampled_from(Preemption),
        retries=st.integers(0, 1),
        estimate_s=st.none() | st.floats(1, 1e5),
    )
    def submit(self, workers: int, slots: int, preemption: Preemption, retries: int, estimate_s: float | None) -> None:
        """Jobs with a model are those whose workers have one slot, and may start again after a failure."""
        self.numbers += 1
        spec = JobSpec(
            job=f"j{self.numbers % 5}",
            workers=workers,
            slots=slots,
            preemption=preemption,
            retries=retries,
            model="m" if retries and slots == 1 else "",
            command=("x",),
            directory="/",
        )
        if spec.job not in self.state.live:
            estimate = estimate_s and RunTime(low_s=estimate_s / 2, median_s=estimate_s, high_s=estimate_s * 2)
            source = EstimateSource.JOB if estimate else EstimateSource.NONE
            self.requests.append(JobSubmitted(spec=spec, estimate=estimate or None, estimate_source=source))

    @precondition(lambda self: self.state.live)
    @rule(data=st.data(), action=st.sampled_from(JobAction), for_s=st.sampled_from([0.0, 100.0]))
    def ask(self, data: st.DataObject, action: JobAction, for_s: float) -> None:
        job = data.draw(st.sampled_from(sorted(self.state.live)))
        until_ns = round((self.now_s + for_s) * 1e9) if for_s else 0
        self.requests.append(JobControlled(job=job, action=action, not_before_ns=until_ns))

    @precondition(lambda self: self.state.live)
    @rule(data=st.data(), period_ms=st.sampled_from([1_000, 1_030, 1_415]), sending_ms=st.sampled_from([300, 450, 990]))
    def learn(self, data: st.DataObject, period_ms: int, sending_ms: int) -> None:
        """How much a job sends: all nodes have one link to the others."""
        job = data.draw(st.sampled_from(sorted(self.state.live)))
        attempt = max(1, self.state.live[job].attempt)
        self.profiles[job] = profile(job, period_ms, sending_ms, attempt=attempt)

    @rule(sending_ms=st.sampled_from([300, 450]))
    def share_the_link(self, sending_ms: int) -> None:
        """Two jobs have a worker on each node, as no two fit on one; their traffic is learned, and another leads."""
        self.wait(1.0)
        for slots in (SLOTS - 1, 1):
            self.submit(len(NODES), slots, Preemption.CHECKPOINT, 0, None)
        self.nothing_fails()
        for job in sorted(self.state.live):
            attempt = max(1, self.state.live[job].attempt)
            self.profiles[job] = profile(job, 1_000, sending_ms, attempt=attempt)
        self.nothing_fails()
        self.another_begins_at_a_snapshot()

    # -- the leader ---------------------------------------------------------------------------------------------------

    @rule()
    def decide(self) -> None:
        told = tuple(self._node(host) for host in self.hosts.values())
        same = {node.node: node for node in told} == self.state.nodes
        asked = ScheduleEvent(
            leader=f"s{self.leaders}",
            time_ns=round(self.now_s * 1e9),
            nodes=None if same else told,
            links=None if self.state.traffic.links else LINKS,
            profiles=tuple(self.profiles.values()),
            submitted=tuple(each for each in self.requests if isinstance(each, JobSubmitted)),
            controlled=tuple(each for each in self.requests if isinstance(each, JobControlled)),
            answered=tuple(answer for question in self.questions for answer in _answers(question)),
        )
        self.requests, self.profiles, self.questions = [], {}, ()
        inbox, self.inbox = self.inbox, []
        entry, outcome = decided(self.state, gathered(self.state, asked, inbox, LOST_AFTER_S), self.policy)
        self.questions = outcome.questions if outcome is not None else ()
        if not says_nothing(entry):
            self.log.append(entry)
            self.state = fold(self.state, [entry])

    def _node(self, host: Host) -> ClusterNode:
        silent_s = self.now_s - host.silent_since_s if host.silent_since_s is not None else 0.0
        return ClusterNode(
            node=host.node, slots=SLOTS, incarnation=host.incarnation, silent=silent_s > 30, address=host.node
        )

    @rule()
    def order(self) -> None:
        """Everything that holds now is sent."""
        self.sent += [(len(self.log), order) for order in orders(self.state)]

    @rule()
    def nothing_fails(self) -> None:
        """One round: decided, ordered, obeyed, heard."""
        self.decide()
        self.sent, sent = [], self.sent
        self.order()
        for sequence, order in self.sent:
            if self.hosts[order.node].silent_since_s is None:
                self._obey(sequence, order)
        for order, reply in self.replies:
            self.inbox += news(self.state, order, reply, 1)
        self.sent, self.replies = sent, []
        self.decide()

    @rule()
    def another_leads(self) -> None:
        """What the leader had heard and not stored is gone."""
        self.inbox, self.requests, self.questions = [], [], ()
        self.leaders += 1
        self.log.append(ScheduleEvent(leader=f"s{self.leaders}", time_ns=round(self.now_s * 1e9)))
        self.state = fold(State(), self.log)

    @rule()
    def another_begins_at_a_snapshot(self) -> None:
        """As `another_leads`: what it folds is only what was stored since."""
        kept = decode(encode(Snapshot(len(self.log), 0, 0, state=self.state))).state
        self.another_leads()
        self.state = fold(kept, self.log[-1:])

    # -- the network --------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.sent)
    @rule(data=st.data(), again=st.booleans(), dropped=st.booleans())
    def deliver_order(self, data: st.DataObject, again: bool, dropped: bool) -> None:
        at = data.draw(st.integers(0, len(self.sent) - 1))
        sequence, order = self.sent[at] if again else self.sent.pop(at)
        if not dropped and self.hosts[order.node].silent_since_s is None:
            self._obey(sequence, order)

    @precondition(lambda self: self.replies)
    @rule(data=st.data(), again=st.booleans(), dropped=st.booleans())
    def deliver_reply(self, data: st.DataObject, again: bool, dropped: bool) -> None:
        at = data.draw(st.integers(0, len(self.replies) - 1))
        order, reply = self.replies[at] if again else self.replies.pop(at)
        if not dropped:
            self.inbox += news(self.state, order, reply, 1)

    @precondition(lambda self: self.events)
    @rule(data=st.data(), again=st.booleans(), dropped=st.booleans())
    def deliver_event(self, data: st.DataObject, again: bool, dropped: bool) -> None:
        at = data.draw(st.integers(0, len(self.events) - 1))
        event = self.events[at] if again else self.events.pop(at)
        if not dropped:
            self.inbox.append(event)

    # -- nodes --------------------------------------------------------------------------------------------------------

    def _obey(self, sequence: int, order: Order) -> None:
        host = self.hosts[order.node]
        if sequence < host.obeyed.get(order.job, 0):
            self.replies.append((order, WorkReply(obeyed=False, reason="obeyed a later one")))
            return
        host.obeyed[order.job] = sequence
        for worker in ((order.job, order.attempt, rank) for rank in order.ranks):
            if order.action is OrderAction.RUN and worker not in host.workers:
                self.starts[worker] += 1
                self.events.append(host.change(worker, WorkerChange.STARTED))
            elif order.action in {OrderAction.STOP, OrderAction.KILL} and worker in host.running():
                host.stopping.add(worker)
        known = {rank: host.workers.get((order.job, order.attempt, rank)) for rank in order.ranks}
        workers = tuple(WorkerState(rank=rank, last=last) for rank, last in known.items() if last is not None)
        self.replies.append((order, WorkReply(obeyed=True, workers=workers)))

    @rule(
        node=st.sampled_from(NODES),
        place=st.integers(0, 5),
        change=st.sampled_from([WorkerChange.READY, WorkerChange.ENDED, WorkerChange.FAILED]),
        saved=st.booleans(),
    )
    def work(self, node: str, place: int, change: WorkerChange, saved: bool) -> None:
        host = self.hosts[node]
        running = host.running()
        if not running:
            return
        worker = running[place % len(running)]
        if worker in host.stopping and change is WorkerChange.ENDED:
            change = WorkerChange.STOPPED if saved else WorkerChange.UNSAVED
        if host.workers[worker].change is not change:
            self.events.append(host.change(worker, change))

    @rule(node=st.sampled_from(NODES), rebooted=st.booleans())
    def restart(self, node: str, rebooted: bool) -> None:
        """Its runner; or the machine, and nothing is there any more."""
        host = self.hosts[node]
        host.incarnation += 1
        if rebooted:
            for worker in host.running():
                self.events.append(host.change(worker, WorkerChange.LOST))

    @rule(node=st.sampled_from(NODES))
    def fall_silent(self, node: str) -> None:
        if self.hosts[node].silent_since_s is None:
            self.hosts[node].silent_since_s = self.now_s

    @rule(node=st.sampled_from(NODES))
    def come_back(self, node: str) -> None:
        self.hosts[node].silent_since_s = None
        self.decide()  # the leader follows the registrations; one that takes the lead later begins to count anew

    @rule(node=st.sampled_from(NODES), minutes=st.integers(1, 9))
    def be_away(self, node: str, minutes: int) -> None:
        """For some time, in which the others go on."""
        self.fall_silent(node)
        for _ in range(minutes):
            self.wait(61.0)
            self.nothing_fails()
            self.no_job_runs_in_two_attempts()
        self.come_back(node)

    @rule(seconds=st.sampled_from([0.1, 1.0, 31.0, 61.0, 400.0]))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        for host in self.hosts.values():
            if host.silent_since_s is not None and self.now_s - host.silent_since_s >= FENCE_S + GRACE_S:
                for worker in self._preemptible(host.running()):
                    self.events.append(host.change(worker, WorkerChange.UNSAVED))

    def _preemptible(self, workers: Iterable[Worker]) -> list[Worker]:
        specs = {each.spec.job: each.spec for entry in self.log for each in entry.submitted}
        return [worker for worker in workers if specs[worker[0]].preemption is not Preemption.NEVER]

    # -- what holds always --------------------------------------------------------------------------------------------

    @invariant()
    def no_worker_is_started_twice(self) -> None:
        assert max(self.starts.values(), default=1) == 1

    @invariant()
    def no_slot_is_held_twice(self) -> None:
        held: Counter[str] = Counter()
        for live in self.state.live.values():
            for node in live.job.nodes:
                held[node] += live.spec.slots
        assert all(slots <= SLOTS for slots in held.values())

    @invariant()
    def no_slot_is_used_twice(self) -> None:
        """Of the nodes themselves: but where a person gave up a job that may not be preempted."""
        for host in self.hosts.values():
            specs = {each.spec.job: each.spec for entry in self.log for each in entry.submitted}
            assert sum(specs[job].slots for job, _, _ in self._preemptible(host.running())) <= SLOTS

    @invariant()
    def no_job_runs_in_two_attempts(self) -> None:
        """But for one that a person gave up, as above."""
        running = self._preemptible(worker for host in self.hosts.values() for worker in host.running())
        assert len({worker[:2] for worker in running}) == len({job for job, _, _ in running})

    @invariant()
    def workers_get_the_plan_of_their_own_attempt(self) -> None:
        for live in self.state.live.values():
            start = live.start
            if start is not None and live.spec.model:
                assert live.plan == _plan(start.job, start.attempt, start.nodes)
            else:
                assert not live.plan

    @invariant()
    def a_replay_finds_the_same(self) -> None:
        assert fold(State(), self.log) == self.state

    def teardown(self) -> None:
        """A replay finds the recorded decisions; and once nothing fails any more, all that can end does."""
        state = State()
        for entry in self.log:
            if not says_nothing(entry):
                again, outcome = decided(state, undecided(entry), self.policy)
                assert again == entry
                decision = entry.decision
                changes = decision is not None and bool(decision.starts or decision.stops)
                assert (outcome is not None and outcome.changes) == changes
            state = fold(state, [entry])
        self._recover()
        for live in self.state.live.values():
            room = Room(self.state.places).find(live.job)
            assert live.job.phase is Phase.WAITING
            assert room is None, "there is room for it, and it was kept back by nobody"

    def _recover(self) -> None:
        for host in self.hosts.values():
            host.silent_since_s = None
        self.sent, self.replies = [], []
        for _ in range(60):
            self.now_s += 61.0
            self.decide()
            self.order()
            for sequence, order in self.sent:
                self._obey(sequence, order)
            self.sent = []
            for host in self.hosts.values():
                for worker in host.running():
                    stops = worker in host.stopping
                    self.events.append(host.change(worker, WorkerChange.STOPPED if stops else WorkerChange.ENDED))
            for order, reply in self.replies:
                self.inbox += news(self.state, order, reply, 1)
            self.inbox += self.events
            self.replies, self.events = [], []

    @invariant()
    def only_running_attempts_are_shifted(self) -> None:
        for shift in self.state.traffic.shifts.values():
            live = self.state.live[shift.job]
            assert (live.job.phase, live.attempt) == (Phase.RUNNING, shift.attempt)
        assert self.state.traffic.profiles.keys() <= self.state.live.keys()

    @invariant()
    def what_has_ended_has_a_record(self) -> None:
        told = [each for entry in self.log for each in entry.ended]
        assert all(each.outcome in JobOutcome for each in told)
        assert len({(each.job, each.submitted_ns, each.ended_ns) for each in told}) == len(told)
        assert all(finished.message() in told for finished in self.state.finished.values())


TestFaults = Faults.TestCase
TestFaults.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
