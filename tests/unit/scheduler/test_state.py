"""The fold over the log's entries."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.scheduling import (
    AttemptStart,
    AttemptStop,
    ClusterNode,
    JobAction,
    JobControlled,
    JobOutcome,
    JobPlanned,
    JobSpec,
    JobSubmitted,
    ScheduleDecision,
    ScheduleEvent,
    Trigger,
    WorkerChange,
    WorkEvent,
)
from services.scheduler.core.jobs import Phase
from services.scheduler.core.live import OVER, SPANS_KEPT
from services.scheduler.core.snapshot import Snapshot, decode, encode
from services.scheduler.core.state import FINISHED_KEPT, FIRST_COST_S, MOST_LOSSES, State, accepted, fold

NODES = ("n1", "n2")
Part = JobSubmitted | ScheduleDecision | JobControlled | WorkEvent
Stored = tuple[Part, float]


def submitted(job: str = "j", **fields: object) -> JobSubmitted:
    spec = {"job": job, "workers": 2, "command": ("train",), "directory": "/", "preemption": "checkpoint", **fields}
    return JobSubmitted(spec=JobSpec.model_validate(spec))


def start(job: str = "j", attempt: int = 1) -> ScheduleDecision:
    begun = AttemptStart(job=job, attempt=attempt, nodes=NODES)
    return ScheduleDecision(trigger=Trigger.QUANTUM, policy="index", starts=(begun,))


def preempt(job: str = "j", attempt: int = 1) -> ScheduleDecision:
    stop = AttemptStop(job=job, attempt=attempt)
    return ScheduleDecision(trigger=Trigger.QUANTUM, policy="index", stops=(stop,))


def control(action: JobAction, job: str = "j", not_before_ns: int = 0) -> JobControlled:
    return JobControlled(job=job, action=action, not_before_ns=not_before_ns)


def worked(change: WorkerChange, rank: int = 0, attempt: int = 1, job: str = "j", **fields: object) -> WorkEvent:
    node = NODES[rank % len(NODES)]
    event = {"job": job, "attempt": attempt, "rank": rank, "node": node, "change": change, "time_ns": 1, **fields}
    return WorkEvent.model_validate(event)


def both(change: WorkerChange, attempt: int = 1, **fields: object) -> list[Part]:
    return [worked(change, rank, attempt, **fields) for rank in range(2)]


def entry(part: Part, at_s: float) -> ScheduleEvent:
    fields: dict[str, object] = {
        JobSubmitted: {"submitted": (part,)},
        ScheduleDecision: {"decision": part},
        JobControlled: {"controlled": (part,)},
        WorkEvent: {"worked": (part,)},
    }[type(part)]
    return ScheduleEvent.model_validate({"leader": "s", "time_ns": round(at_s * 1e9), **fields})


def folded(state: State, stored: list[Stored]) -> State:
    return fold(state, [entry(part, at_s) for part, at_s in stored])


def after(*parts: Part | list[Part], state: State | None = None) -> State:
    """One entry a second."""
    flat: list[Part] = []
    for each in parts:
        flat += each if isinstance(each, list) else [each]
    begin_s = state.now_s if state else 0.0
    return folded(state or State(), [(part, begin_s + second) for second, part in enumerate(flat)])


PARTS = st.one_of(
    st.builds(submitted, st.sampled_from("ab"), retries=st.integers(0, 1)),
    st.builds(start, st.sampled_from("ab"), st.integers(1, 4)),
    st.builds(preempt, st.sampled_from("ab"), st.integers(1, 4)),
    st.builds(control, st.sampled_from(list(JobAction)), st.sampled_from("ab"), st.integers(0, 1 << 40)),
    st.builds(
        worked,
        st.sampled_from(list(WorkerChange)),
        st.integers(0, 2),
        st.integers(1, 4),
        st.sampled_from("ab"),
        ran_s=st.floats(0, 100),
        took_s=st.floats(0, 100),
    ),
)
STORIES = st.lists(PARTS, max_size=40).map(lambda parts: [(part, float(n)) for n, part in enumerate(parts)])


@given(STORIES)
def test_whatever_is_stored_the_state_makes_sense(story: list[Stored]) -> None:
    state = State()
    for part, at_s in story:
        before, state = state, folded(state, [(part, at_s)])
        assert not state.live.keys() & state.finished.keys()
        again = state.live.keys() & before.finished.keys()
        gone = {name for name, finished in before.finished.items() if state.finished.get(name) is not finished}
        assert gone == again, "what has ended has ended, until another job gets its name"
        for name, live in state.live.items():
            waits = live.job.phase is Phase.WAITING
            assert waits == (live.workers == ()) == (live.job.nodes == ())
            assert waits or not all(worker in OVER for worker in live.workers)
            assert live.job.starts == live.attempt - live.earlier_attempts
            assert waits == (not live.spans or live.spans[-1].end_s is not None)
            if (old := before.live.get(name)) is not None:
                assert live.attempt in {old.attempt, old.attempt + 1}
                assert live.job.executed_s >= old.job.executed_s
                assert live.job.submitted_s == old.job.submitted_s


@given(STORIES)
def test_what_comes_twice_counts_once(story: list[Stored]) -> None:
    requests = [(part, at_s) for part, at_s in story if not isinstance(part, JobControlled)]
    assert folded(State(), [each for each in requests for _ in range(2)]) == folded(State(), requests)


@given(STORIES, st.integers(0, 40))
def test_a_replay_in_parts_is_the_same_as_one(story: list[Stored], place: int) -> None:
    assert folded(folded(State(), story[:place]), story[place:]) == folded(State(), story)


@given(STORIES, st.integers(0, 40))
def test_a_replay_from_a_snapshot_is_the_same_as_a_whole_one(story: list[Stored], place: int) -> None:
    kept = Snapshot(place, 7, 9, "ab", {"a": (1, 2)}, folded(State(), story[:place]))
    read = decode(encode(kept))
    assert read == kept
    assert list(read.state.live) == list(kept.state.live), "their order counts"
    assert folded(read.state, story[place:]) == folded(State(), story)


@given(STORIES)
def test_what_is_no_news_changes_nothing(story: list[Stored]) -> None:
    """`accepted`, one after another, is all that the fold would take."""
    state = folded(State(), [each for each in story if not isinstance(each[0], WorkEvent)])
    events = [part for part, _ in story if isinstance(part, WorkEvent)]
    rest = ScheduleEvent(leader="s", time_ns=0)
    news = accepted(state, rest, events)
    assert fold(state, [rest.model_copy(update={"worked": news})]) == fold(
        state, [rest.model_copy(update={"worked": tuple(events)})]
    )
    assert accepted(fold(state, [rest.model_copy(update={"worked": news})]), rest, news) == ()


@given(STORIES)
def test_what_becomes_of_a_job_depends_on_its_own_events(story: list[Stored]) -> None:
    """But for what its preemption is taken to cost, and its number."""
    alone = [each for each in story if _job(each[0]) == "a"]
    found, expected = folded(State(), story), folded(State(), alone)

    ended, same = found.finished.get("a"), expected.finished.get("a")
    assert (ended is None) == (same is None)
    if ended is not None and same is not None:
        assert ended.message() == same.message()
    live, other = found.live.get("a"), expected.live.get("a")
    assert (live is None) == (other is None)
    if live is not None and other is not None:
        assert (live.attempt, live.workers, live.job.phase, live.job.executed_s, live.job.waited_s) == (
            other.attempt,
            other.workers,
            other.job.phase,
            other.job.executed_s,
            other.job.waited_s,
        )


def _job(part: Part) -> str:
    if isinstance(part, JobSubmitted):
        return part.spec.job
    return (part.starts or part.stops)[0].job if isinstance(part, ScheduleDecision) else part.job


def test_a_job_runs_to_its_end_and_is_learned_from() -> None:
    state = after(
        submitted(),
        start(),
        both(WorkerChange.STARTED),
        both(WorkerChange.READY),
        both(WorkerChange.ENDED, ran_s=300.0),
    )

    assert state.live == {}
    assert (state.finished["j"].outcome, state.finished["j"].service_slot_s) == (JobOutcome.ENDED, 600.0)
    assert state.observed.services == (600.0,)


def test_service_is_what_the_slowest_worker_did_by_its_nodes_clock() -> None:
    state = after(
        submitted(), start(), worked(WorkerChange.ENDED, 0, 1, ran_s=90.0), worked(WorkerChange.ENDED, 1, 1, ran_s=80.0)
    )
    assert state.finished["j"].service_slot_s == 160.0


def test_a_preempted_job_holds_its_slots_until_all_workers_have_stopped() -> None:
    running = after(submitted(), start(), both(WorkerChange.READY))
    stopping = folded(running, [(preempt(), 10.0), (worked(WorkerChange.STOPPED, 0, 1, ran_s=9.0, took_s=2.0), 12.0)])
    waiting = folded(stopping, [(worked(WorkerChange.STOPPED, 1, 1, ran_s=8.0, took_s=3.0), 13.0)])

    assert (stopping.live["j"].job.phase, stopping.live["j"].job.nodes) == (Phase.STOPPING, NODES)
    job = waiting.live["j"].job
    assert (job.phase, job.nodes, job.executed_s, job.preemptions) == (Phase.WAITING, (), 8.0, 1)


def test_the_cost_of_a_preemption_is_measured_from_stop_and_ready() -> None:
    first = after(
        submitted(), start(), both(WorkerChange.READY, took_s=5.0), preempt(), both(WorkerChange.STOPPED, took_s=3.0)
    )
    assert first.cost_s("j") == FIRST_COST_S, "how long it takes to be ready again is not known yet"
    again = after(
        start(attempt=2),
        both(WorkerChange.READY, attempt=2, took_s=7.0),
        preempt(attempt=2),
        both(WorkerChange.STOPPED, attempt=2, took_s=4.0),
        submitted("other"),
        state=first,
    )

    # Two seconds of the log until both had stopped, and two until both were ready again: known as soon as they are.
    ready = after(start(attempt=2), both(WorkerChange.READY, attempt=2), state=first)
    assert ready.cost_s("j") == 4.0
    assert ready.live["j"].job.held_until_s == ready.live["j"].job.started_s + 10 * 4.0, "not for ten minutes"
    # Two seconds of the log until both were ready again, and two until both had stopped: what workers measure is less.
    assert again.cost_s("j") == 4.0
    assert again.cost_s("other") == 4.0, "what was measured of others is better than a minute"


def test_a_gang_that_loses_a_worker_is_stopped_and_goes_on_later() -> None:
    running = after(submitted(), start(), both(WorkerChange.READY))
    lost = folded(running, [(worked(WorkerChange.LOST, 0, 1), 100.0)])
    waiting = folded(lost, [(worked(WorkerChange.UNSAVED, 1, 1), 130.0)])

    assert lost.live["j"].stopping
    assert (waiting.live["j"].job.phase, waiting.live["j"].job.executed_s) == (Phase.WAITING, 0.0)


def test_a_job_that_is_lost_three_times_within_an_hour_has_failed() -> None:
    def story(apart_s: float) -> State:
        state = folded(State(), [(submitted(), 0.0)])
        for attempt in range(1, MOST_LOSSES + 1):
            at_s = attempt * apart_s
            lost = [(worked(WorkerChange.LOST, rank, attempt), at_s + 1) for rank in range(2)]
            state = folded(
                state, [(start(attempt=attempt), at_s), lost[0], (worked(WorkerChange.STOPPED, 1, attempt), at_s + 2)]
            )
        return state

    assert story(600.0).finished["j"].outcome is JobOutcome.FAILED
    assert story(3_600.0).live["j"].job.phase is Phase.WAITING


def test_a_worker_that_fails_ends_the_job() -> None:
    state = after(submitted(), start(), both(WorkerChange.READY), worked(WorkerChange.FAILED, 0, 1))
    assert state.live["j"].stopping
    assert after(worked(WorkerChange.STOPPED, 1, 1), state=state).finished["j"].outcome is JobOutcome.FAILED


def test_a_job_whose_checkpoints_do_not_work_is_left_alone_after_two() -> None:
    state = after(submitted(), start(), preempt(), both(WorkerChange.UNSAVED, ran_s=50.0))
    first = state.live["j"]
    assert (first.job.executed_s, first.cost_s, first.job.preemptible) == (0.0, 2 * FIRST_COST_S, True)

    second = after(start(attempt=2), preempt(attempt=2), both(WorkerChange.UNSAVED, attempt=2), state=state).live["j"]
    assert (second.cost_s, second.job.preemptible) == (4 * FIRST_COST_S, False)


@pytest.mark.parametrize("running", [False, True])
def test_a_cancelled_job_ends_once_its_workers_have(running: bool) -> None:
    before = after(submitted(), *([start()] if running else []))
    asked = after(control(JobAction.CANCEL), state=before)

    assert ("j" in asked.finished) != running
    gone = after(both(WorkerChange.UNSAVED), state=asked) if running else asked
    assert gone.finished["j"].outcome is JobOutcome.CANCELLED


def test_a_start_that_is_not_the_next_is_not_carried_out() -> None:
    state = after(submitted(), start(attempt=2))
    assert state.live["j"].job.phase is Phase.WAITING
    assert after(start(), start(), state=state).live["j"].attempt == 1


def test_a_job_is_held_for_ten_times_the_cost() -> None:
    job = folded(State(), [(submitted(), 0.0), (start(), 100.0)]).live["j"].job
    assert (job.held_until_s, job.productive_from_s) == (700.0, 100.0)


def test_time_before_it_is_ready_is_no_progress() -> None:
    state = folded(after(submitted(), start(), preempt(), both(WorkerChange.STOPPED)), [(start(attempt=2), 100.0)])
    assert state.live["j"].job.productive_from_s == 160.0, "as long as its cost is only assumed"
    ready = folded(state, [(each, 117.0) for each in both(WorkerChange.READY, attempt=2)])
    assert ready.live["j"].job.productive_from_s == 117.0


def test_the_state_before_is_not_changed() -> None:
    before = after(submitted())
    kept = replace(before, live=dict(before.live))
    folded(before, [(start(), 5.0)])
    assert before == kept


# -- what is kept besides ----------------------------------------------------------------------------------------------


def test_a_node_that_takes_several_workers_with_it_is_one_loss() -> None:
    waiting = after(submitted(), start(), both(WorkerChange.READY), both(WorkerChange.LOST))
    assert waiting.live["j"].losses_s == (5.0,)
    assert waiting.live["j"].job.preemptions == 0


def test_the_rest_of_a_broken_gang_is_not_blamed_for_its_checkpoints() -> None:
    broken = after(submitted(), start(), worked(WorkerChange.LOST), worked(WorkerChange.UNSAVED, 1, ran_s=40.0))
    live = broken.live["j"]
    assert (live.unsaved, live.cost_s, live.lost_s) == (0, None, 40.0)


def test_a_job_that_begins_anew_is_not_punished_for_being_killed() -> None:
    state = after(submitted(preemption="restart"), start(), preempt(), both(WorkerChange.UNSAVED, ran_s=50.0))
    live = state.live["j"]
    assert (live.unsaved, live.cost_s, live.lost_s, live.job.preemptible) == (0, None, 50.0, True)


def test_a_job_with_retries_is_started_again_so_often() -> None:
    failing = [worked(WorkerChange.FAILED, exit_code=1), worked(WorkerChange.UNSAVED, 1)]
    again = after(submitted(retries=1), start(), failing)
    assert (again.live["j"].job.phase, again.live["j"].failures) == (Phase.WAITING, 1)

    failed = after(start(attempt=2), both(WorkerChange.FAILED, attempt=2, exit_code=3, reason="no data"), state=again)
    message = failed.finished["j"].message()
    assert (message.outcome, message.exit_code, message.reason, message.attempts) == (
        JobOutcome.FAILED,
        3,
        "worker 0 on n1: exit code 3: no data",
        2,
    )


def test_what_failed_first_is_why() -> None:
    first = worked(WorkerChange.FAILED, 1, exit_code=-9, oom_kills=1, reason="killed")
    state = after(submitted(), start(), first, worked(WorkerChange.FAILED, 0, exit_code=1, reason="connection reset"))
    message = state.finished["j"].message()
    assert (message.exit_code, message.out_of_memory, message.reason) == (-9, True, "worker 1 on n2: SIGKILL: killed")


def test_a_failure_without_a_code_or_words_is_told_as_far_as_it_is_known() -> None:
    unstarted = after(submitted(), start(), both(WorkerChange.FAILED, reason="No such file: train"))
    silent = after(submitted(), start(), both(WorkerChange.FAILED, exit_code=2))
    assert unstarted.finished["j"].message().reason == "worker 0 on n1: No such file: train"
    assert silent.finished["j"].message().reason == "worker 0 on n1: exit code 2"
    long = after(submitted(), start(), both(WorkerChange.FAILED, exit_code=2, reason="x" * 480 + "the last line"))
    assert len(long.finished["j"].message().reason) == 500
    assert long.finished["j"].message().reason.endswith("the last line")


def test_the_record_of_a_job_holds_all_its_times() -> None:
    """Submitted at 0, runs from 10 to 40 (25 s by its nodes), waits to 100, loads for 7 s, ends at 150 after 43 s."""
    story: list[Stored] = [
        (submitted(task={"task": "cnn"}, run="r"), 0.0),
        (start(), 10.0),
        *((each, 11.0) for each in both(WorkerChange.READY, took_s=1.0)),
        (preempt(), 36.0),
        *((each, 40.0) for each in both(WorkerChange.STOPPED, ran_s=25.0, took_s=4.0)),
        (start(attempt=2), 100.0),
        *((each, 107.0) for each in both(WorkerChange.READY, attempt=2, took_s=7.0)),
        *((each, 150.0) for each in both(WorkerChange.ENDED, attempt=2, ran_s=43.0)),
    ]
    node = ClusterNode(node="n1", slots=4, cores=8.0)
    state = folded(fold(State(), [ScheduleEvent(leader="s", time_ns=0, nodes=(node,))]), story)
    message = state.finished["j"].message()

    assert (message.ran_s, message.waited_s, message.restoring_s, message.lost_s) == (68.0, 70.0, 7.0, 0.0)
    assert (message.submitted_ns, message.started_ns, message.ended_ns) == (0, 10 * 10**9, 150 * 10**9)
    assert (message.attempts, message.preemptions, message.node, message.run) == (2, 1, node, "r")
    spans = [(span.attempt, span.begin_s, span.end_s) for span in state.finished["j"].last.spans]
    assert spans == [(1, 10.0, 40.0), (2, 100.0, 150.0)]


@pytest.mark.parametrize(("time_s", "until_s"), [(60.0, 60.0), (998.0, 1_000.0), (5.0, 1_000.0), (2_000.0, 1_000.0)])
def test_an_attempt_that_ended_while_no_scheduler_ran_held_its_slots_until_then(time_s: float, until_s: float) -> None:
    """By its node's clock, unless the log was told at once, or that clock is wrong: it began at 10."""
    story: list[Stored] = [(submitted(), 0.0), (start(), 10.0)]
    stopped = [(each, 1_000.0) for each in both(WorkerChange.STOPPED, time_ns=round(time_s * 1e9), ran_s=40.0)]
    (span,) = folded(State(), [*story, *stopped]).live["j"].spans

    assert (span.begin_s, span.end_s) == (10.0, until_s)


def test_a_name_that_is_used_again_goes_on_with_its_attempts() -> None:
    """Else a runner, or an event that is late, would take them for those of the job before."""
    ended = after(submitted(), start(), both(WorkerChange.ENDED))
    again = after(submitted(), start(), state=ended)
    assert again.live["j"].attempt == 1, "an attempt of that number has been"
    assert "j" not in again.finished

    running = after(start(attempt=2), worked(WorkerChange.STARTED, attempt=1), state=again)
    assert (running.live["j"].attempt, running.live["j"].job.starts) == (2, 1)
    assert running.live["j"].workers == (None, None)


def test_only_the_latest_are_kept() -> None:
    state = State()
    for number in range(FINISHED_KEPT + 300):
        state = after(submitted(f"j{number}"), control(JobAction.CANCEL, f"j{number}"), state=state)
    latest = [f"j{number}" for number in range(300, FINISHED_KEPT + 300)]
    assert list(state.finished)[-FINISHED_KEPT:] == latest
    assert len(state.finished) < FINISHED_KEPT + 300

    state = after(submitted())
    for attempt in range(1, SPANS_KEPT + 3):
        state = after(
            start(attempt=attempt), preempt(attempt=attempt), both(WorkerChange.STOPPED, attempt), state=state
        )
    assert [span.attempt for span in state.live["j"].spans] == list(range(3, SPANS_KEPT + 3))


def test_a_plan_is_kept_until_the_job_has_ended() -> None:
    """A thousand ended jobs are kept, and a plan has 64 KiB."""
    begun = entry(start(), 1).model_copy(
        update={"planned": (JobPlanned(job="j", attempt=1, nodes=NODES, plan="of both"),)}
    )
    state = fold(after(submitted()), [begun])
    assert state.live["j"].plan == "of both"

    assert after(both(WorkerChange.ENDED), state=state).finished["j"].last.planned is None


def test_a_person_keeps_a_job_back_for_some_time() -> None:
    running = after(submitted(), start())
    asked = after(control(JobAction.PREEMPT, not_before_ns=900 * 10**9), state=running)
    kept = after(both(WorkerChange.STOPPED), state=asked)
    assert asked.live["j"].stopping
    assert (kept.live["j"].job.phase, kept.live["j"].not_before_s) == (Phase.WAITING, 900.0)
    assert after(control(JobAction.RELEASE), state=kept).live["j"].not_before_s == 0.0


def test_a_job_that_a_person_preempts_yields_to_those_that_wait_until_it_starts_again() -> None:
    running = after(submitted(), start())
    asked = folded(running, [(control(JobAction.PREEMPT), 10.0)])
    waiting = after(both(WorkerChange.STOPPED), state=asked)

    assert waiting.live["j"].job.yields_to_s == 10.0
    assert after(start(attempt=2), state=waiting).live["j"].job.yields_to_s == 0.0


def test_an_attempt_that_its_runner_stopped_is_no_preemption() -> None:
    """As `turnbuckle up` does with the jobs of its cluster at its end."""
    stopped = after(submitted(preemption="never"), start(), both(WorkerChange.READY), both(WorkerChange.STOPPED))
    again = after(start(attempt=2), preempt(attempt=2), both(WorkerChange.STOPPED, attempt=2), state=stopped)

    assert (stopped.live["j"].job.phase, stopped.live["j"].job.preemptions) == (Phase.WAITING, 0)
    assert again.live["j"].job.preemptions == 1


def test_a_job_that_may_not_be_preempted_is_by_a_person() -> None:
    running = after(submitted(preemption="never"), start())
    assert after(control(JobAction.PREEMPT), state=running).live["j"].stopping


@pytest.mark.parametrize(
    "forged",
    [worked(WorkerChange.ENDED, 0, node="n2"), worked(WorkerChange.ENDED, 1, node="n3"), worked(WorkerChange.ENDED, 7)],
)
def test_a_node_tells_of_its_own_workers_only(forged: WorkEvent) -> None:
    running = after(submitted(), start())
    assert after(forged, state=running).live == running.live
    assert accepted(running, ScheduleEvent(leader="s", time_ns=0), [forged]) == ()


def test_times_do_not_run_backwards() -> None:
    state = folded(State(), [(submitted(), 100.0), (start(), 40.0)])
    assert (state.now_s, state.live["j"].job.started_s, state.live["j"].job.waited_s) == (100.0, 100.0, 0.0)


def test_nodes_are_drained_and_silent_since() -> None:
    def nodes(at_s: float, *, silent: bool) -> ScheduleEvent:
        told = (ClusterNode(node="n1", slots=2), ClusterNode(node="n2", slots=2, silent=silent))
        return ScheduleEvent(leader="s", time_ns=round(at_s * 1e9), nodes=told)

    drained = ScheduleEvent(leader="s", time_ns=2, drained=("n1",))
    state = fold(State(), [nodes(0.0, silent=False), drained, nodes(10.0, silent=True), nodes(20.0, silent=True)])
    assert [place.available for place in state.places] == [False, False]
    assert (state.nodes["n1"].drained, state.silent_since_s) == (True, {"n2": 10.0})

    back = fold(state, [ScheduleEvent(leader="s", time_ns=3, undrained=("n1",)), nodes(30.0, silent=False)])
    assert [place.available for place in back.places] == [True, True]
    assert back.silent_since_s == {}
