"""The policies that a scheduler can run by: the service decides as the simulation does, from what stands in its log."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pytest

from schemas.scheduling import (
    ClusterNode,
    EstimateSource,
    JobSpec,
    JobSubmitted,
    Preemption,
    RunTime,
    ScheduleEvent,
    Trigger,
    WorkerChange,
    WorkEvent,
)
from services.scheduler.core.attained import ends_s, executed_s
from services.scheduler.core.attained_service import AttainedService
from services.scheduler.core.decision import Outcome, evaluate
from services.scheduler.core.entries import decided, says_nothing, undecided
from services.scheduler.core.explain import Explainer
from services.scheduler.core.gittins import NOTHING_OBSERVED, Observed
from services.scheduler.core.jobs import Estimate, Job, Node, Phase
from services.scheduler.core.live_policies import POLICIES, SYNONYMS, live_policy
from services.scheduler.core.policies import Policy
from services.scheduler.core.simulation import simulate
from services.scheduler.core.state import FIRST_COST_S, State, fold
from services.scheduler.settings import SchedulerSettings

NODES: Final = (Node("n1", 8),)
JOBS: Final = 16


def trace(seed: int) -> list[Job]:
    """Jobs of which most wait: some end within the first queue, some reach the last, one in four has no estimate."""
    chance = random.Random(seed)
    made = []
    for number in range(JOBS):
        slots, duration_s = chance.choice((1, 1, 2, 4)), float(chance.randrange(60, 9_000))
        median_s = duration_s * chance.choice((0.5, 1.0, 1.5))
        estimate = Estimate(median_s / 2, median_s, median_s * 2) if number % 4 else None
        submitted_s = 1_000.0 + 171.0 * number
        known: dict[str, Any] = {"estimate": estimate, "duration_s": duration_s, "slots_per_worker": slots}
        made.append(Job(f"j{number:02}", slots, submitted_s, **known))
    return made


@dataclass
class Service:
    """The service's core over a log, with workers that obey at once and run as long as their jobs take."""

    policy: str
    durations_s: dict[str, float]
    log: list[ScheduleEvent] = field(default_factory=list)
    state: State = field(default_factory=State)
    last: Outcome | None = None
    ends_s: dict[str, float] = field(default_factory=dict)

    def store(self, now_s: float, **content: object) -> None:
        """An entry with its decision; workers that have to stop have stopped at once."""
        entry = ScheduleEvent.model_validate({"leader": "s", "time_ns": round(now_s * 1e9), **content})
        entry, outcome = decided(self.state, entry, self.policy, self.last)
        self.last = outcome or self.last
        if not says_nothing(entry):
            self.log.append(entry)
            self.state = fold(self.state, [entry])
        stopping = [job for job in self.state.jobs if job.phase is Phase.STOPPING]
        if stopping:
            self.store(now_s, worked=tuple(self.over(job, WorkerChange.STOPPED, now_s) for job in stopping))

    def over(self, job: Job, change: WorkerChange, now_s: float) -> WorkEvent:
        """All jobs have one worker here; it made progress until now."""
        ran_s = executed_s(replace(job, phase=Phase.RUNNING), now_s) - job.executed_s
        names = {"job": job.name, "attempt": self.state.live[job.name].attempt, "rank": 0, "node": job.nodes[0]}
        return WorkEvent.model_validate({**names, "change": change, "time_ns": round(now_s * 1e9), "ran_s": ran_s})

    def _looks_s(self) -> float:
        return math.inf if self.last is None else self.last.next_change_s

    def next_end_s(self) -> float:
        running = [job for job in self.state.jobs if job.phase is Phase.RUNNING]
        return min((self._end_s(job) for job in running), default=math.inf)

    def _end_s(self, job: Job) -> float:
        return ends_s(replace(job, duration_s=self.durations_s[job.name]))

    def run(self, arrivals: list[Job]) -> None:
        """To the last end: ends first, then arrivals, each of which the simulation decides about together."""
        nodes = tuple(ClusterNode(node=node.name, slots=node.slots) for node in NODES)
        self.store(arrivals[0].submitted_s, nodes=nodes)
        waiting = list(arrivals)
        while waiting or self.state.live:
            now_s = min(waiting[0].submitted_s if waiting else math.inf, self.next_end_s(), self._looks_s())
            over = [job for job in self.state.jobs if job.phase is Phase.RUNNING and self._end_s(job) <= now_s + 1e-6]
            came = [job for job in waiting if job.submitted_s == now_s]
            del waiting[: len(came)]
            self.ends_s |= {job.name: now_s for job in over}
            ended = tuple(self.over(job, WorkerChange.ENDED, now_s) for job in over)
            self.store(now_s, worked=ended, submitted=tuple(_submitted(job) for job in came))


def _submitted(job: Job) -> JobSubmitted:
    spec = JobSpec(job=job.name, slots=job.slots, command=("x",), directory="/", preemption=Preemption.CHECKPOINT)
    if job.estimate is None:
        return JobSubmitted(spec=spec)
    estimate = RunTime(low_s=job.estimate.low_s, median_s=job.estimate.median_s, high_s=job.estimate.high_s)
    return JobSubmitted(spec=spec, estimate=estimate, estimate_source=EstimateSource.JOB)


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningQueues(AttainedService):
    """For simulations: it learns of each end, as the service's state does."""

    observed: Observed = NOTHING_OBSERVED

    def ended(self, job: Job, /) -> LearningQueues:
        observed = self.observed.ended(job.executed_s * job.slots)
        return replace(self, observed=observed).informed(observed)


def simulated(name: str) -> Policy:
    return LearningQueues(learns=True, exact=True) if name == "gittins" else POLICIES[name]


@pytest.mark.parametrize("name", POLICIES)
def test_the_service_decides_as_the_simulation_does(name: str) -> None:
    """Completion times of all jobs are equal, and a replay of its log finds each decision again.

    On one node: of free slots that lie on several, the service keeps those that are about to be whole (decision 70).
    """
    jobs = trace(seed=1)
    service = Service(name, {job.name: job.duration_s or 0.0 for job in jobs})
    service.run(jobs)
    run = simulate(jobs, NODES, simulated(name), FIRST_COST_S)

    assert service.ends_s == {each.job.name: pytest.approx(each.ended_s, abs=1e-3) for each in run.ended}
    assert service.state.finished.keys() == {job.name for job in jobs}
    preemptions = {each.job.name: each.job.preemptions for each in run.ended}
    assert {name: ended.last.job.preemptions for name, ended in service.state.finished.items()} == preemptions
    assert (sum(preemptions.values()) > 0) == POLICIES[name].preemptive
    state = State()
    for entry in service.log:
        assert decided(state, undecided(entry), name)[0] == entry
        state = fold(state, [entry])
    assert state == fold(State(), service.log) == service.state


def test_policies_order_the_same_jobs_differently() -> None:
    """Else a name that stands for another's policy would not be noticed."""
    jobs = trace(seed=1)
    orders = {name: [each.job.name for each in simulate(jobs, NODES, simulated(name)).ended] for name in POLICIES}

    assert len({tuple(order) for order in orders.values()}) == len(POLICIES)


@pytest.mark.parametrize("name", [*POLICIES, *SYNONYMS])
def test_each_is_to_choose_by_a_setting(name: str) -> None:
    assert SchedulerSettings.load({}, policy=name).policy == name
    assert (
        live_policy(name, NOTHING_OBSERVED).preemptive
        == live_policy(SYNONYMS.get(name, name), NOTHING_OBSERVED).preemptive
    )


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("srsf", "what has the least left by its estimate goes first; by the job file's estimate "),
        ("shortest", "what has the least left by its estimate goes first; by the job file's estimate "),
        ("sjf", "the fewest slots go first"),
        ("las", "queue 1 of 3: it had 0 slot-seconds, and they end at 3250, 7200"),
        ("dlas", "queue 1 of 3: it had 0 s, and they end at 3250, 7200"),
    ],
)
def test_it_is_told_by_what_a_job_stands_where_it_stands(name: str, told: str) -> None:
    known = Job("known", 1, 1_000.0, estimate=Estimate(50, 100, 200))
    state = fold(State(), [ScheduleEvent(leader="s", time_ns=10**12, submitted=(_submitted(known),))])
    outcome = evaluate(state, 1_000.0, name, Trigger.QUANTUM)
    explainer = Explainer(outcome.situation, outcome.decision, {}, live_policy(name, state.observed))

    assert told in explainer.explain("known").why


def test_a_job_without_an_estimate_goes_behind_those_that_have_one() -> None:
    jobs = [Job("first", 8, 0.0), Job("second", 8, 1.0, 1, estimate=Estimate(50, 100, 200))]
    policy = live_policy("srsf", NOTHING_OBSERVED)

    assert [job.name for job in policy.order(policy.settle(jobs, 2.0))] == ["second", "first"]
    assert policy.order_reason(jobs[0], 2.0) == "without an estimate it goes behind those that have one"
    assert policy.order_reason(jobs[1], 2.0) == "what has the least left by its estimate goes first"


def test_a_look_at_queues_is_never_at_the_same_moment_again() -> None:
    """A job of one slot has had 3,249.5 of the 3,250 s of its queue: in whole seconds nothing is left of it."""
    job = Job("job", 1, 0.0, duration_s=3_300.0, phase=Phase.RUNNING, window_s=3_249.5, executed_s=3_249.5, level=0)
    for policy in (AttainedService(), AttainedService(exact=True), AttainedService(counts_slots=False)):
        assert policy.next_change_s([job], 0.0) >= 0.5


def test_traces_with_parts_of_seconds_come_to_an_end() -> None:
    jobs = [Job(f"j{number}", 1, 0.5 + number / 3, duration_s=4_000.25) for number in range(3)]

    assert len(simulate(jobs, (Node("n1", 2),), AttainedService()).ended) == 3
