"""Jobs and nodes as queries return them: the state, the order as of now, and a forecast. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from schemas.scheduling import ClusterNode, JobPhase, JobSpan, Preemption, QueuedJob, RunTime, Trigger
from services.scheduler.core.attained import executed_s, waited_s
from services.scheduler.core.decision import Outcome, evaluate, forecasting, index_of
from services.scheduler.core.explain import Explainer, duration
from services.scheduler.core.forecast import Expected, forecast, left
from services.scheduler.core.jobs import Job, Phase
from services.scheduler.core.live import Finished, Live, Span, nanoseconds
from services.scheduler.core.live_policies import live_policy
from services.scheduler.core.shared_links import profile_of
from services.scheduler.core.state import State

MOST_FORECAST: Final = 200
"""Jobs: those that hold slots, and the first of the others. When later ones start is not known."""
MOST_AHEAD: Final = 20
_SPAN_NAMES: Final = 2_000
"""Names of nodes in the spans of one job, at most."""


@dataclass(frozen=True, slots=True)
class View:
    """One moment."""

    state: State
    now_s: float
    outcome: Outcome
    jobs: Mapping[str, Job]
    """Settled as of now."""
    explainer: Explainer

    def queued(self, name: str) -> QueuedJob:
        """A job that is waiting, running, stopping or has ended.

        Raises:
            KeyError: it is not known.
        """
        live = self.state.live.get(name)
        return self._live(live) if live is not None else _finished(self.state.finished[name])

    def order(self) -> Iterator[str]:
        """Names of the jobs that have not ended, in the policy's order; those that are kept back come last."""
        turns = [turn.job for turn in self.outcome.decision.turns]
        yield from turns
        yield from self.state.live.keys() - set(turns)

    def ended(self, within_s: float) -> Iterator[str]:
        """Names of the jobs that have ended not longer ago, the latest first."""
        for name in reversed(self.state.finished):
            if self.now_s - self.state.finished[name].ended_s <= within_s:
                yield name

    def nodes(self) -> tuple[ClusterNode, ...]:
        """With the reasons why nothing is started on them."""
        return tuple(node.model_copy(update={"why": self._why_not(node)}) for node in self.state.nodes.values())

    def _why_not(self, node: ClusterNode) -> str:
        since_s = self.state.silent_since_s.get(node.node)
        silent = f"its runner has been silent for {duration(self.now_s - since_s)}" if since_s is not None else ""
        cut_off = "none of its uplinks carries traffic" if node.cut_off else ""
        return "; ".join(filter(None, (silent, cut_off, "drained" if node.drained else "")))

    def _live(self, live: Live) -> QueuedJob:
        job = self.jobs.get(live.job.name, live.job)
        queued = _queued_job(live, job, self.now_s).model_copy(update=self._traffic(live))
        if job.name not in self.jobs:
            kept_s = live.not_before_s - self.now_s
            return queued.model_copy(update={"why": f"kept back by a person for {duration(kept_s)}"})
        explained = self.explainer.explain(job.name)
        known, expected = explained.left, explained.expected
        waits = job.phase is Phase.WAITING
        return queued.model_copy(
            update={
                "left": known and RunTime(low_s=known.low_s, median_s=known.median_s, high_s=known.high_s),
                "expected_start_ns": _finite_ns(expected.start_s) if waits and expected else 0,
                "expected_end_ns": _finite_ns(expected.end_s) if expected else 0,
                "index": index_of(job, self.explainer.policy),
                "ahead": explained.ahead[:MOST_AHEAD],
                "why": "; ".join(filter(None, (explained.why, _why_never(live), self._silence(live)))),
            }
        )

    def _traffic(self, live: Live) -> dict[str, object]:
        """What it sends and when, as far as that is known."""
        profile, shift = profile_of(self.state, live), self.state.traffic.shifts.get(live.job.name)
        current = shift is not None and shift.attempt == live.attempt
        return {
            "traffic": profile,
            "shift": shift if current else None,
            "congestion_control": "" if profile is None else profile.congestion_control,
        }

    def _silence(self, live: Live) -> str:
        silent = [name for name in dict.fromkeys(live.job.nodes) if name in self.state.silent_since_s]
        if not silent or not live.workers:
            return ""
        return f"the runner of {' '.join(silent[:3])} is silent"


def _why_never(live: Live) -> str:
    """Why a running job may not be preempted; empty: it may."""
    if live.job.preemptible or live.job.phase is not Phase.RUNNING:
        return ""
    if live.spec.preemption is Preemption.NEVER:
        return "its job says `preemption: never`, which is the default"
    return f"its work was lost at {live.unsaved} preemptions"


def plain(state: State, name: str, now_s: float) -> QueuedJob:
    """One job without its place in the order.

    Raises:
        KeyError: it is not known.
    """
    live = state.live.get(name)
    return _queued_job(live, live.job, now_s) if live is not None else _finished(state.finished[name])


def view(state: State, now_s: float, policy: str) -> View:
    """All jobs as of now, with a forecast."""
    outcome = evaluate(state, now_s, policy, Trigger.QUANTUM)
    jobs = {job.name: job for job in outcome.decision.jobs}
    expected = _expected(state, outcome, policy)
    explainer = Explainer(outcome.situation, outcome.decision, expected, live_policy(policy, state.observed))
    return View(state, now_s, outcome, jobs, explainer)


def _expected(state: State, outcome: Outcome, policy: str) -> Mapping[str, Expected]:
    """Of those that will start again: of a cancelled one only its slots count, which are about to be free."""
    situation, decision = outcome.situation, outcome.decision
    jobs = {job.name: job for job in situation.jobs}
    first = [turn.job for turn in decision.turns if not state.live[turn.job].cancelled]
    first.sort(key=lambda name: jobs[name].phase is Phase.WAITING)  # stable: else in the order of turns
    chosen = set(first[:MOST_FORECAST])
    some = replace(situation, jobs=tuple(job for job in situation.jobs if job.name in chosen))
    longest_s = max((_left_s(job, outcome) for job in some.jobs), default=0.0)
    return forecast(some, forecasting(policy, situation, longest_s))


def _left_s(job: Job, outcome: Outcome) -> float:
    known = left(job, outcome.situation.observed, outcome.situation.now_s)
    return known.median_s if known else 0.0


def _queued_job(live: Live, job: Job, now_s: float) -> QueuedJob:
    return QueuedJob(
        job=job.name,
        phase=JobPhase(job.phase.value),
        workers=live.spec.workers,
        slots=job.slots,
        preemption=live.spec.preemption,
        nodes=job.nodes,
        attempt=live.attempt,
        preemptions=job.preemptions,
        submitted_ns=nanoseconds(job.submitted_s),
        started_ns=nanoseconds(job.first_start_s or 0.0),
        ran_s=executed_s(job, now_s),
        waited_s=waited_s(job, now_s),
        restoring_s=job.restoring_s,
        lost_s=live.lost_s,
        estimate=live.submitted.estimate,
        estimate_source=live.submitted.estimate_source,
        spans=_spans(live.spans),
    )


def _finished(finished: Finished) -> QueuedJob:
    last = finished.last
    queued = _queued_job(last, replace(last.job, phase=Phase.STOPPING), finished.ended_s)
    return queued.model_copy(
        update={
            "phase": JobPhase(finished.outcome.value),
            "nodes": (),
            "ended_ns": nanoseconds(finished.ended_s),
            "why": finished.message().reason,
        }
    )


def _spans(spans: tuple[Span, ...]) -> tuple[JobSpan, ...]:
    most = max(1, _SPAN_NAMES // max(1, *(len(span.nodes) for span in spans))) if spans else 0
    return tuple(
        JobSpan(
            attempt=span.attempt,
            begin_ns=nanoseconds(span.begin_s),
            end_ns=0 if span.end_s is None else nanoseconds(span.end_s),
            nodes=span.nodes,
        )
        for span in spans[-most:]
    )


def _finite_ns(time_s: float) -> int:
    return 0 if math.isinf(time_s) else nanoseconds(time_s)
