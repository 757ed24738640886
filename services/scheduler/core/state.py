"""The state of all jobs as a fold over the entries of the stream `SCHEDULE`: the only way that it changes. Pure.

What an entry says of workers may come twice, and that of different jobs in any order: each names its attempt, so what
is old, of an unknown job, or of a worker that has ended already changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import islice
from statistics import median
from typing import Any, Final, TypeVar

from schemas.scheduling import (
    MAX_COMPARED,
    ClusterNode,
    JobAction,
    JobControlled,
    JobOutcome,
    JobPlanned,
    JobSubmitted,
    Preemption,
    ScheduleDecision,
    ScheduleEvent,
    WorkerChange,
    WorkEvent,
)
from services.scheduler.core.attained import counted, executed_s, started
from services.scheduler.core.gittins import NOTHING_OBSERVED, Observed
from services.scheduler.core.interleaving.traffic import NO_TRAFFIC, Traffic
from services.scheduler.core.jobs import Estimate, Job, Node, Phase, changed
from services.scheduler.core.live import OVER, SPANS_KEPT, Finished, Live, Span, estimate_of, is_late, seconds
from services.scheduler.core.live_policies import live_policy, remembers
from services.scheduler.core.policies import HOLD_COSTS

_T = TypeVar("_T")

FIRST_COST_S: Final = 60.0
"""Of a preemption, before one was measured."""
KNOWN_COSTS: Final = 100
MOST_LOSSES: Final = 3
LOSSES_WITHIN_S: Final = 3_600.0
"""A job whose workers were lost in so many attempts within this time has failed."""
MOST_UNSAVED: Final = 2
"""A job that has lost its work at so many preemptions is not preempted again."""
ANSWERS_KEPT: Final = MAX_COMPARED
FINISHED_KEPT: Final = 1_000
_FINISHED_SPARE: Final = 250


@dataclass(frozen=True)  # no slots: see `changed`
class State:
    """All that is known."""

    live: dict[str, Live] = field(default_factory=dict)
    """Jobs that have not ended, by name; never changed, but replaced."""
    finished: dict[str, Finished] = field(default_factory=dict)
    """The latest `FINISHED_KEPT`, and perhaps some before them, in the order of their ends."""
    nodes: dict[str, ClusterNode] = field(default_factory=dict)
    drained: frozenset[str] = frozenset()
    """Nodes on which nothing is to be started, whether or not they are registered."""
    silent_since_s: dict[str, float] = field(default_factory=dict)
    """Of each silent node."""
    traffic: Traffic = NO_TRAFFIC
    observed: Observed = NOTHING_OBSERVED
    costs_s: tuple[float, ...] = ()
    """Of the latest preemptions of any job."""
    arrivals: int = 0
    leader: str = ""
    """Of the last entry."""
    now_s: float = 0.0
    """Of the last entry: times never run backwards."""

    @property
    def jobs(self) -> tuple[Job, ...]:
        """Those that have not ended, by arrival."""
        return tuple(live.job for live in self.live.values())

    @property
    def places(self) -> tuple[Node, ...]:
        """The nodes as decisions see them."""
        return tuple(
            Node(
                node.node,
                node.slots,
                node.rack,
                available=not (node.drained or node.silent or node.cut_off),
                device=_device(node),
                equal_workers=node.equal_workers,
            )
            for node in self.nodes.values()
        )

    @property
    def usual_cost_s(self) -> float:
        """What a preemption costs, the median of the latest, else a minute."""
        return median(self.costs_s) if self.costs_s else FIRST_COST_S

    def cost_s(self, name: str) -> float:
        """What a preemption of this job costs: its own as measured, else the usual cost."""
        return _cost_s(self.live[name], self)


def _cost_s(live: Live, state: State) -> float:
    return live.cost_s if live.cost_s is not None else state.usual_cost_s


def fold(state: State, entries: Iterable[ScheduleEvent]) -> State:
    """The state after entries, in their order; their decisions and ends are taken as they stand."""
    folding = Folding.of(state)
    for entry in entries:
        folding.fold(entry)
    return folding.state()


@dataclass(slots=True)
class Folding:
    """Copies that are changed while entries are folded in, one after another: a fold of each would copy the state."""

    live: dict[str, Live]
    finished: dict[str, Finished]
    rest: State
    at_s: float
    ended: list[float] = field(default_factory=list)
    """Service of the jobs that have ended, slot-seconds."""
    slots_until_s: float = 0.0
    """Until when the attempt that is over held its slots: by its last worker's node, where the log was told late."""

    @classmethod
    def of(cls, state: State) -> Folding:
        """From a state on."""
        return cls(dict(state.live), dict(state.finished), state, state.now_s)

    def state(self) -> State:
        """After the entries so far. It has what is changed here: no entry may follow."""
        observed = self.rest.observed.ended(*self.ended) if self.ended else self.rest.observed
        return changed(self.rest, live=self.live, finished=self.finished, observed=observed, now_s=self.at_s)

    def fold(self, entry: ScheduleEvent) -> None:
        """One more, part by part in the order of its fields."""
        self.at_s = max(self.at_s, seconds(entry.time_ns))
        if entry.leader != self.rest.leader:
            # Between two leaders a silent node may have come back and fallen silent again.
            silent = dict.fromkeys(self.rest.silent_since_s, self.at_s)
            self.rest = changed(self.rest, leader=entry.leader, silent_since_s=silent)
        if entry.nodes is not None:
            self._nodes(entry.nodes)
        if entry.links is not None:
            self.rest = changed(self.rest, traffic=replace(self.rest.traffic, links=entry.links))
        if entry.profiles:
            known = tuple(profile for profile in entry.profiles if profile.job in self.live)
            self.rest = changed(self.rest, traffic=self.rest.traffic.learned(known))
        self._of_jobs(entry)
        if entry.decision is not None:
            self._decided(entry.decision)

    def _of_jobs(self, entry: ScheduleEvent) -> None:
        """Requests, what workers did, and plans."""
        for submitted in entry.submitted:
            self._submitted(submitted)
        for controlled in entry.controlled:
            self._controlled(controlled)
        if entry.drained or entry.undrained:
            self._drained((self.rest.drained | {*entry.drained}) - {*entry.undrained})
        for event in entry.worked:
            self._worked(event)
        for answer in entry.answered:
            self._answered(answer)
        for planned in entry.planned:
            if (live := self.live.get(planned.job)) is not None:
                self.live[planned.job] = changed(live, planned=planned)

    def _answered(self, answer: JobPlanned) -> None:
        live = self.live.get(answer.job)
        if live is not None and live.job.phase is Phase.WAITING and answer.attempt == live.attempt + 1:
            others = (each for each in live.answers if each.nodes != answer.nodes)
            self.live[answer.job] = changed(live, answers=(*others, answer)[-ANSWERS_KEPT:])

    # -- nodes --------------------------------------------------------------------------------------------------------

    def _nodes(self, nodes: tuple[ClusterNode, ...]) -> None:
        self._forget_answers({node.node for node in nodes if is_other_device(self.rest.nodes.get(node.node), node)})
        before = self.rest.silent_since_s
        silent = {node.node: before.get(node.node, self.at_s) for node in nodes if node.silent}
        self.rest = changed(self.rest, nodes={node.node: node for node in nodes}, silent_since_s=silent)
        self._drained(self.rest.drained)

    def _forget_answers(self, names: set[str]) -> None:
        """About nodes whose devices are other ones now."""
        for job, live in self.live.items() if names else ():
            if live.answers:
                kept = tuple(answer for answer in live.answers if names.isdisjoint(answer.nodes))
                self.live[job] = changed(live, answers=kept)

    def _drained(self, names: frozenset[str]) -> None:
        nodes = {
            name: node if node.drained == (name in names) else node.model_copy(update={"drained": name in names})
            for name, node in self.rest.nodes.items()
        }
        self.rest = changed(self.rest, nodes=nodes, drained=names)

    # -- jobs ---------------------------------------------------------------------------------------------------------

    def _submitted(self, submitted: JobSubmitted) -> None:
        spec, estimate = submitted.spec, estimate_of(submitted)
        if spec.job in self.live:
            return
        earlier = self.finished.pop(spec.job, None)
        number = earlier.last.attempt if earlier else 0
        job = Job(
            spec.job,
            spec.all_slots,
            self.at_s,
            self.rest.arrivals,
            slots_per_worker=spec.slots,
            preemptible=spec.preemption is not Preemption.NEVER,
            estimate=None
            if estimate is None
            else Estimate(estimate.low_s, estimate.median_s, estimate.high_s, submitted.estimate_source.words),
            counted_s=self.at_s,
        )
        self.live[spec.job] = Live(job, submitted, earlier_attempts=number, attempt=number)
        self.rest = changed(self.rest, arrivals=self.rest.arrivals + 1)

    def _controlled(self, controlled: JobControlled) -> None:
        live = self.live.get(controlled.job)
        if live is None:
            return
        if controlled.action is JobAction.RELEASE:
            self.live[controlled.job] = changed(live, not_before_s=0.0)
            return
        if controlled.action is JobAction.CANCEL:
            live = changed(live, cancelled=True, asked=True)
        else:
            job = changed(live.job, yields_to_s=0.0 if controlled.not_before_ns else self.at_s)
            live = changed(live, job=job, not_before_s=seconds(controlled.not_before_ns), asked=True)
        self.live[controlled.job] = live
        if live.job.phase is Phase.RUNNING:
            self._stop(live)
        elif live.cancelled and live.job.phase is Phase.WAITING:
            self._finish(changed(live, job=counted(live.job, self.at_s)), JobOutcome.CANCELLED)

    def _decided(self, decision: ScheduleDecision) -> None:
        if remembers(decision.policy):
            self._settled(decision.policy)
        if decision.shifts is not None:
            self.rest = changed(self.rest, traffic=self.rest.traffic.decided(decision))
        for stop in decision.stops:
            live = self.live.get(stop.job)
            if live is not None and live.attempt == stop.attempt and live.job.phase is Phase.RUNNING:
                self._stop(live)
        for start in decision.starts:
            live = self.live.get(start.job)
            if live is None or live.attempt + 1 != start.attempt or live.job.phase is not Phase.WAITING:
                continue
            cost_s = _cost_s(live, self.rest)
            workers = len(start.nodes)
            self.live[start.job] = changed(
                live,
                job=started(live.job, self.at_s, start.nodes, cost_s, HOLD_COSTS * cost_s),
                attempt=start.attempt,
                start=start,
                node=self.rest.nodes.get(start.nodes[0]),
                workers=(None,) * workers,
                ran_s=(0.0,) * workers,
                stop_asked_s=0.0,
                restore_s=0.0,
                asked=False,
                not_before_s=0.0,
                failure=None,
                answers=(),
                spans=(*live.spans, Span(start.attempt, start.nodes, self.at_s))[-SPANS_KEPT:],
            )

    def _settled(self, policy: str) -> None:
        """Jobs in the queues of a policy that has some, as the decision found them."""
        if self.ended:
            self.rest = changed(self.rest, observed=self.rest.observed.ended(*self.ended))
            self.ended.clear()
        jobs = [live.job for live in self.live.values() if live.takes_part(self.at_s)]
        for job in live_policy(policy, self.rest.observed).settle(jobs, self.at_s):
            if job is not self.live[job.name].job:
                self.live[job.name] = changed(self.live[job.name], job=job)

    def _worked(self, event: WorkEvent) -> None:
        live = self.live.get(event.job)
        if live is None or not is_news(live, event):
            return
        live = self._changed(live, event)
        self.live[event.job] = live
        if event.change not in OVER:
            return
        if event.change is not WorkerChange.ENDED and live.job.phase is Phase.RUNNING:
            # A gang that has lost a worker waits in its collective for ever.
            live = self._stop(live, preempted=False)
        if OVER.issuperset(live.workers):
            then_s = seconds(event.time_ns)
            is_delayed = (
                is_late(event.time_ns, self.at_s) and then_s > live.spans[-1].begin_s
            )  # else its clock is wrong
            self.slots_until_s = then_s if is_delayed else self.at_s
            self._attempt_over(live)

    def _changed(self, live: Live, event: WorkEvent) -> Live:
        """With one worker's change. An attempt makes progress once its last worker is ready."""
        workers = _with(live.workers, event.rank, event.change)
        if event.change is WorkerChange.READY:
            restore_s = max(live.restore_s, event.took_s)
            ready = workers.count(WorkerChange.READY) == len(workers)
            progress = self._ready(live) if ready else {}
            return changed(live, workers=workers, restore_s=restore_s, **progress)
        if event.change in OVER:
            ran_s = _with(live.ran_s, event.rank, event.ran_s)
            return changed(live, workers=workers, ran_s=ran_s, failure=_first(live, event))
        return changed(live, workers=workers)

    def _ready(self, live: Live) -> dict[str, Any]:
        """Once all are: what the preemption before cost is known, and for how long this attempt is to be held."""
        job = changed(live.job, productive_from_s=self.at_s)
        if live.stop_took_s is None:
            return {"job": job}
        measured_s = live.stop_took_s + self.at_s - job.started_s
        self.rest = changed(self.rest, costs_s=(*self.rest.costs_s, measured_s)[-KNOWN_COSTS:])
        job = changed(job, held_until_s=job.started_s + HOLD_COSTS * measured_s)
        return {"job": job, "cost_s": measured_s, "stop_took_s": None}

    def _stop(self, live: Live, *, preempted: bool = True) -> Live:
        job = changed(live.job, phase=Phase.STOPPING)
        stopping = changed(live, job=job, stop_asked_s=self.at_s, preempted=preempted)
        self.live[live.job.name] = stopping
        return stopping

    # -- ends of attempts ---------------------------------------------------------------------------------------------

    def _attempt_over(self, live: Live) -> None:
        changes = set(live.workers)
        if changes == {WorkerChange.ENDED}:
            self._finish(self._counted(live), JobOutcome.ENDED)
        elif live.cancelled:
            self._finish(self._counted(live), JobOutcome.CANCELLED)
        elif WorkerChange.FAILED in changes and live.failures >= live.spec.retries:
            self._finish(self._counted(live), JobOutcome.FAILED)
        else:
            failures = live.failures + (WorkerChange.FAILED in changes)
            losses_s = (*live.losses_s, *([self.at_s] if WorkerChange.LOST in changes else []))[-MOST_LOSSES:]
            live = changed(live, failures=failures, losses_s=losses_s)
            if WorkerChange.LOST in changes and _lost_too_often(live, self.at_s):
                self._finish(self._uncounted(live), JobOutcome.FAILED)
            else:
                self._waits_again(live)

    def _waits_again(self, live: Live) -> None:
        saved = set(live.workers) <= {WorkerChange.STOPPED, WorkerChange.ENDED}
        over = self._counted(live) if saved else self._uncounted(live)
        over = changed(over, stop_took_s=self.at_s - live.stop_asked_s if saved and live.preempted else None)
        checkpoints = live.spec.preemption is Preemption.CHECKPOINT
        if WorkerChange.UNSAVED in live.workers and not live.broken and checkpoints:
            # Its checkpoints do not work: the cost doubles, so that it is held for longer, and then it is left alone.
            unsaved, doubled_s = over.unsaved + 1, 2 * _cost_s(over, self.rest)
            kept = over.job.preemptible and unsaved < MOST_UNSAVED
            over = changed(over, unsaved=unsaved, cost_s=doubled_s, job=changed(over.job, preemptible=kept))
        preemptions = over.job.preemptions + (live.preempted and not live.broken)
        job = changed(over.job, phase=Phase.WAITING, nodes=(), held_until_s=0.0, preemptions=preemptions)
        self.live[job.name] = over.without_slots(self.slots_until_s, job)

    def _finish(self, live: Live, outcome: JobOutcome) -> None:
        last = live.without_slots(self.slots_until_s, live.job) if live.workers else live
        del self.live[live.job.name]
        if (traffic := self.rest.traffic.without(live.job.name)) is not self.rest.traffic:
            self.rest = changed(self.rest, traffic=traffic)
        finished = self.finished[live.job.name] = Finished(changed(last, planned=None, answers=()), outcome, self.at_s)
        if len(self.finished) > FINISHED_KEPT + _FINISHED_SPARE:  # not one by one: that is slow at a dictionary's front
            self.finished = dict(islice(self.finished.items(), _FINISHED_SPARE + 1, None))
        if outcome is JobOutcome.ENDED:
            self.ended.append(finished.service_slot_s)

    def _counted(self, live: Live) -> Live:
        """At the end of an attempt that counts: its progress is what its slowest worker did, by the nodes' clocks."""
        return changed(live, job=self._over(live, min(live.ran_s)))

    def _uncounted(self, live: Live) -> Live:
        """At the end of an attempt that is lost."""
        assumed_s = executed_s(changed(live.job, phase=Phase.RUNNING), self.at_s) - live.job.executed_s
        return changed(live, job=self._over(live, 0.0), lost_s=live.lost_s + (max(live.ran_s) or assumed_s))

    def _over(self, live: Live, ran_s: float) -> Job:
        """The job at the end of an attempt: its nodes' clocks count, not this one's."""
        job = live.job
        return changed(
            job,
            phase=Phase.STOPPING,
            counted_s=self.at_s,
            executed_s=job.executed_s + ran_s,
            window_s=job.window_s + ran_s,
            restoring_s=job.restoring_s + (live.restore_s if job.starts > 1 else 0.0),
        )


def accepted(state: State, entry: ScheduleEvent, events: Iterable[WorkEvent]) -> tuple[WorkEvent, ...]:
    """Those events that are news, one after another, if they are folded with the rest of their entry."""
    folding = Folding.of(state)
    folding.fold(entry)
    found = []
    for event in events:
        live = folding.live.get(event.job)
        if live is not None and is_news(live, event):
            found.append(event)
            folding.fold(ScheduleEvent(leader=entry.leader, time_ns=entry.time_ns, worked=(event,)))
    return tuple(found)


def is_news(live: Live, event: WorkEvent) -> bool:
    """Whether an event is of this job's attempt, by the node where that rank was placed, and news."""
    if live.attempt != event.attempt or event.rank >= len(live.workers) or live.job.nodes[event.rank] != event.node:
        return False
    known = live.workers[event.rank]
    early = known is WorkerChange.READY and event.change is WorkerChange.STARTED
    return known not in OVER and known is not event.change and not early


def _device(node: ClusterNode) -> str:
    """Its kind, and its memory to the nearest power of two: shares of two hosts' memory are never quite the same."""
    memory_bytes = node.device_memory_bytes
    return f"{node.device_kind} {round(math.log2(memory_bytes))}" if memory_bytes else node.device_kind


def is_other_device(before: ClusterNode | None, node: ClusterNode) -> bool:
    """Whether what the planner was asked with does not hold any more."""
    return before is not None and (before.device_kind, before.device_memory_bytes, before.gpus > 0) != (
        node.device_kind,
        node.device_memory_bytes,
        node.gpus > 0,
    )


def _with(values: tuple[_T, ...], place: int, value: _T) -> tuple[_T, ...]:
    return (*values[:place], value, *values[place + 1 :])


def _first(live: Live, event: WorkEvent) -> WorkEvent | None:
    """What went wrong first; a failure goes before a loss."""
    if event.change is WorkerChange.FAILED:
        failed = live.failure is not None and live.failure.change is WorkerChange.FAILED
        return live.failure if failed else event
    return live.failure or (event if event.change is WorkerChange.LOST else None)


def _lost_too_often(live: Live, at_s: float) -> bool:
    return len(live.losses_s) >= MOST_LOSSES and at_s - live.losses_s[0] <= LOSSES_WITHIN_S
