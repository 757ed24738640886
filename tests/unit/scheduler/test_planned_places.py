"""Where jobs with a model start: at the place of which the planner predicts the shortest step, as the log has it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.codec import decode, encode
from schemas.scheduling import (
    MAX_REASON_CHARACTERS,
    ClusterNode,
    JobPlanned,
    JobSubmitted,
    Preemption,
    ScheduleEvent,
    WorkerChange,
    WorkEvent,
)
from services.scheduler.core.candidates import MOST_ASKED
from services.scheduler.core.decide import Decision, decide
from services.scheduler.core.entries import decided, says_nothing, undecided
from services.scheduler.core.history import lines
from services.scheduler.core.jobs import Job, Node, Phase
from services.scheduler.core.placement import Room
from services.scheduler.core.planned_places import MOST_NAMES, Question
from services.scheduler.core.state import State, fold
from services.scheduler.core.views import view
from tests.support.layer_profiles import GIB
from tests.support.scheduled_jobs import BEGAN_NS, SECOND_NS, cluster_node, job_spec

Place = tuple[str, ...]
Planner = Callable[[Place], dict[str, Any]]
"""What it answers about a place: fields of `JobPlanned`."""


def node(name: str, kind: str = "slow", slots: int = 1, **changes: object) -> ClusterNode:
    return cluster_node(name, slots=slots, device_kind=kind, device_memory_bytes=8 * GIB, **changes)


THREE = [("slow", 2), ("slow", 1), ("fast", 1), ("fast", 1)]
"""Kinds and slots of nodes."""
SLOW, FAST = (node("n1"), node("n2")), (node("n3", "fast"), node("n4", "fast"))


def model(job: str = "try", **changes: object) -> JobSubmitted:
    return JobSubmitted(spec=job_spec(job, **({"workers": 2, "model": "tiny", "batch": 8} | changes)))


def by_fastest(place: Place) -> dict[str, Any]:
    """A step takes as long as its slowest device: 1 s on n3 and n4, else 4 s."""
    slow = any(name in {"n1", "n2"} for name in place)
    return {"step_us": 4e6 if slow else 1e6, "plan": f"of {' '.join(place)}"}


class Leader:
    """Decides about what is told, entry by entry; a replay has to find the same."""

    def __init__(self, *nodes: ClusterNode, policy: str = "index") -> None:
        self.state = State()
        self.policy = policy
        self.log: list[ScheduleEvent] = []
        self.questions: dict[str, Question] = {}
        """The latest about each job."""
        self.tell(nodes=nodes)

    def tell(self, **content: Any) -> ScheduleEvent:
        asked = ScheduleEvent(leader="s", time_ns=BEGAN_NS + len(self.log) * SECOND_NS, **content)
        entry, outcome = decided(self.state, asked, self.policy)
        if outcome is not None:
            self.questions = {question.spec.job: question for question in outcome.questions}
        if not says_nothing(entry):
            self.log.append(entry)
            self.state = fold(self.state, [entry])
        return entry

    def answer(self, planner: Planner, job: str = "try") -> ScheduleEvent:
        """By the planner, to all that is asked about a job."""
        question = self.questions[job]
        places = [tuple(node.node for node in place) for place in question.places]
        return self.tell(
            answered=tuple(
                JobPlanned(job=job, attempt=question.attempt, nodes=place, **planner(place)) for place in places
            )
        )

    def asked(self, job: str = "try") -> list[Place]:
        return [tuple(node.node for node in place) for place in self.questions[job].places]

    def nodes(self, job: str = "try") -> Place:
        return self.state.live[job].job.nodes

    def work(self, job: str, change: WorkerChange) -> ScheduleEvent:
        live = self.state.live[job]
        return self.tell(
            worked=tuple(
                WorkEvent(job=job, attempt=live.attempt, rank=rank, node=name, change=change, time_ns=1, ran_s=1.0)
                for rank, name in enumerate(live.job.nodes)
            )
        )

    def why(self, job: str = "try") -> str:
        return view(self.state, self.state.now_s, self.policy).queued(job).why

    def told(self, what: str, job: str = "try") -> list[str]:
        """What `jobs explain` says of it."""
        return [line.why for line in lines(job, enumerate(self.log)) if line.what == what]

    def check(self) -> None:
        state = State()
        for entry in self.log:
            assert decided(state, undecided(entry), self.policy)[0] == entry
            state = fold(state, [entry])
        assert state == self.state


def test_a_job_starts_on_the_faster_pair_although_a_slower_one_comes_first() -> None:
    leader = Leader(*SLOW, *FAST)
    assert leader.tell(submitted=(model(),)).decision is None
    assert leader.asked()[0] == ("n1", "n2")
    assert ("n3", "n4") in leader.asked()
    assert len(leader.asked()) <= 8

    entry = leader.answer(by_fastest)
    assert leader.nodes() == ("n3", "n4")
    assert leader.state.live["try"].plan == "of n3 n4"
    assert [planned.nodes for planned in entry.planned] == [("n3", "n4")]
    (compared,) = leader.told("compared")
    first, *others = compared.split("\n")
    assert first == "n3 n4: step 1 s: chosen"
    assert "n1 n2: step 4 s, 4 times as long" in others
    assert len(others) == len(entry.answered) - 1
    assert leader.state.live["try"].answers == ()
    leader.check()


def test_a_job_without_a_model_does_not_wait_for_one_that_is_asked_about() -> None:
    leader = Leader(*SLOW, *FAST)
    entry = leader.tell(submitted=(model(), JobSubmitted(spec=job_spec("plain"))))
    assert entry.decision is not None
    assert [start.job for start in entry.decision.starts] == ["plain"]
    assert "as soon as the planner has answered" in leader.why()
    leader.answer(by_fastest)
    assert leader.state.live["try"].job.phase is Phase.RUNNING
    leader.check()


def test_the_slots_of_a_job_that_is_asked_about_are_kept_for_it() -> None:
    leader = Leader(*SLOW)
    leader.tell(submitted=(model(),))
    assert leader.tell(submitted=(JobSubmitted(spec=job_spec("later")),)).decision is None
    leader.answer(by_fastest)
    assert leader.nodes() == ("n1", "n2")
    leader.check()


def test_of_places_with_equal_steps_that_on_the_fewest_nodes() -> None:
    leader = Leader(node("n1"), node("n2"), node("n3", "fast", slots=4))
    leader.tell(submitted=(model(),))
    assert len({len(set(place)) for place in leader.asked()}) == 2
    leader.answer(lambda _place: {"step_us": 2e6, "plan": "a"})
    assert leader.nodes() == ("n3", "n3")
    assert "n1 n2: step 2 s, as long on more nodes" in leader.told("compared")[0]


def test_a_place_that_does_not_fit_is_not_chosen_however_fast() -> None:
    leader = Leader(*SLOW, *FAST)
    leader.tell(submitted=(model(),))
    leader.answer(lambda place: {"missing_bytes": GIB} if "n3" in place else by_fastest(place))
    assert "n3" not in leader.nodes()
    assert "n3 n4: does not fit: 1 GiB of memory are missing" in leader.told("compared")[0]
    leader.check()


def test_where_it_fits_nowhere_the_slots_go_to_the_next_and_it_is_asked_again_about_other_nodes() -> None:
    leader = Leader(*SLOW)
    leader.tell(submitted=(model(),))
    question = leader.questions
    leader.tell(submitted=(JobSubmitted(spec=job_spec("next", workers=2)),))
    assert leader.questions == question
    entry = leader.answer(lambda _place: {"missing_bytes": 3 * GIB})
    assert entry.decision is not None
    assert [start.job for start in entry.decision.starts] == ["next"]
    leader.work("next", WorkerChange.ENDED)
    assert leader.questions == {}, "nothing has changed"
    assert leader.why().startswith("by the planner it does not fit into the memory of free nodes: n1 n2 (3 GiB ")

    leader.tell(nodes=(*SLOW, *FAST))
    assert ("n1", "n2") not in leader.asked()
    leader.answer(by_fastest)
    assert leader.nodes() == ("n3", "n4")
    leader.check()


def test_nobody_is_preempted_for_a_job_that_would_not_fit_there() -> None:
    """Else the two would change places for ever: it is asked only once the other has stopped."""
    leader = Leader(*SLOW)
    stays = JobSubmitted(spec=job_spec("stays", workers=2, preemption=Preemption.CHECKPOINT))
    leader.tell(submitted=(model(),))
    leader.answer(lambda _place: {"missing_bytes": GIB})
    leader.tell(submitted=(stays,))
    leader.work("stays", WorkerChange.READY)
    leader.log.append(ScheduleEvent(leader="s", time_ns=BEGAN_NS + 10**6 * SECOND_NS))  # long after it is held
    leader.state = fold(leader.state, leader.log[-1:])
    entry, outcome = decided(leader.state, ScheduleEvent(leader="s", time_ns=leader.log[-1].time_ns), "index")
    assert outcome is not None
    assert outcome.decision.preempts == ()
    assert entry.decision is None


def test_without_any_plan_a_job_starts_where_it_would_without_a_model() -> None:
    leader = Leader(*SLOW, *FAST)
    leader.tell(submitted=(model(),))
    leader.answer(lambda _place: {"why": "no layer profile"})
    assert leader.nodes() == ("n1", "n2")
    assert leader.told("divided evenly") == ["no layer profile"]
    leader.check()


def test_a_place_with_a_plan_goes_before_one_of_which_nothing_is_known() -> None:
    leader = Leader(*SLOW, *FAST)
    leader.tell(submitted=(model(),))
    leader.answer(lambda place: by_fastest(place) if place == ("n3", "n4") else {"why": "no layer profile of slow"})
    assert leader.nodes() == ("n3", "n4")
    assert "n1 n2: no plan: no layer profile of slow" in leader.told("compared")[0]


def test_an_entry_with_a_long_comparison_can_be_read_again() -> None:
    """The longest sentence that an answer may have; that of the comparison names the place besides."""
    leader = Leader(*SLOW, *FAST)
    leader.tell(submitted=(model(),))
    entry = leader.answer(lambda _place: {"why": "x" * MAX_REASON_CHARACTERS})
    assert entry.planned[0].compared[0].startswith("n1 n2: no plan: xxx")
    assert decode(encode(entry)) == entry


def test_under_fifo_a_job_that_does_not_fit_keeps_those_behind_it_waiting() -> None:
    """Also where what it leaves would be taken such that the last one finds no room: found by drawing."""
    nodes = (node("n0", slots=3), node("n1"), node("n2", slots=4, rack="r"), node("n3"))
    leader = Leader(*nodes, policy="fifo")
    leader.tell(submitted=(model(),))
    while leader.questions:
        leader.answer(lambda _place: {"missing_bytes": GIB})
    leader.tell(
        submitted=(
            JobSubmitted(spec=job_spec("two", workers=2)),
            JobSubmitted(spec=job_spec("three", workers=3)),
            JobSubmitted(spec=job_spec("wide", slots=2)),
        )
    )
    assert leader.why().startswith("by the planner it does not fit")
    assert {live.job.phase for live in leader.state.live.values()} == {Phase.WAITING}
    leader.check()


def test_many_jobs_that_do_not_fit_take_a_few_decisions(monkeypatch: pytest.MonkeyPatch) -> None:
    """One for each would be seconds, of hundreds of jobs, whenever something happens."""
    jobs, taken = [f"large-{number}" for number in range(30)], []
    leader = Leader(node("n1"))
    leader.tell(submitted=tuple(model(job, workers=1) for job in jobs))

    def counted(*given: Any) -> Decision:
        taken.append(given)
        return decide(*given)

    monkeypatch.setattr("services.scheduler.core.decision.decide", counted)
    leader.tell(
        answered=tuple(JobPlanned(job=job, attempt=1, nodes=("n1",), missing_bytes=GIB) for job in jobs),
        submitted=(JobSubmitted(spec=job_spec("small")),),
    )
    assert len(taken) == 2
    assert leader.nodes("small") == ("n1",)
    leader.check()


def test_the_best_place_may_be_taken_meanwhile() -> None:
    leader = Leader(*SLOW, *FAST)
    leader.tell(submitted=(model(),))
    question = leader.questions
    leader.tell(drained=("n3",))
    leader.questions = question
    leader.answer(by_fastest)
    assert ("n2", "n4") in leader.asked(), "which was none of the places before"
    leader.answer(by_fastest)
    assert leader.nodes() == ("n1", "n2")
    assert "n3 n4: step 1 s, but there is no room any more" in leader.told("compared")[0]
    leader.check()


def test_where_nodes_have_to_have_as_many_workers_others_are_no_places() -> None:
    """Slurm refuses them where GPUs are slots: 3 workers on nodes of 2, 1, 1 and 1."""
    nodes = [node(f"n{number}", kind, slots, equal_workers=True) for number, (kind, slots) in enumerate(THREE)]
    leader = Leader(*nodes)
    leader.tell(submitted=(model(workers=3),))
    assert leader.asked()
    assert all(len(set(place)) == 3 for place in leader.asked())
    leader.answer(by_fastest)
    assert len(set(leader.nodes())) == 3
    leader.tell(submitted=(model("next", workers=2),))
    leader.answer(by_fastest, "next")
    leader.work("try", WorkerChange.ENDED)
    assert leader.state.live["next"].job.phase is Phase.RUNNING
    leader.check()


def test_without_nodes_that_have_as_many_workers_a_job_waits() -> None:
    leader = Leader(node("n1", slots=2, equal_workers=True), node("n2", equal_workers=True))
    leader.tell(submitted=(model(workers=3), JobSubmitted(spec=job_spec("plain"))))
    assert leader.questions == {}
    assert leader.nodes("plain")
    leader.work("plain", WorkerChange.ENDED)
    assert leader.why().startswith(
        "needs 3 slots, as many workers on each of its nodes, and the cluster has 3: it will"
    )
    leader.check()


def test_without_a_model_too_all_nodes_have_as_many_workers_where_they_have_to() -> None:
    """Slurm would end it: on nodes of 2, 1 and 1 slots the fewest nodes for 3 workers are n1 twice and n2."""
    sizes = {"n1": 2, "n2": 1, "n3": 1}
    leader = Leader(*(node(name, slots=slots, equal_workers=True) for name, slots in sizes.items()))
    leader.tell(submitted=(JobSubmitted(spec=job_spec("plain", workers=3)),))
    assert sorted(leader.nodes("plain")) == ["n1", "n2", "n3"]
    leader.tell(submitted=(JobSubmitted(spec=job_spec("next", workers=3)),))
    leader.work("plain", WorkerChange.ENDED)
    assert sorted(leader.nodes("next")) == ["n1", "n2", "n3"]
    leader.check()


def test_it_waits_for_such_nodes_while_slots_are_enough_and_others_use_them() -> None:
    """Of 3 and 2 slots one is taken, of the smaller gap: 4 workers find 3 and 1, and need 2 and 2."""
    leader = Leader(node("n1", slots=3, equal_workers=True), node("n2", slots=2, equal_workers=True))
    leader.tell(submitted=(JobSubmitted(spec=job_spec("one")),))
    assert leader.nodes("one") == ("n2",)
    leader.tell(submitted=(JobSubmitted(spec=job_spec("four", workers=4)),))
    assert leader.nodes("four") == ()
    assert leader.why("four").startswith(
        "4 slots are left for it, but not 1 on one node for each worker, as many workers on each of its nodes"
    )
    leader.tell(submitted=(JobSubmitted(spec=job_spec("last")),))
    assert leader.nodes("last") == ("n2",)
    leader.work("last", WorkerChange.ENDED)
    leader.work("one", WorkerChange.ENDED)
    assert leader.nodes("four") == ("n2", "n2", "n1", "n1")
    leader.check()


def test_a_later_start_of_the_same_decision_keeps_its_room() -> None:
    """The faster node is the only one with two slots for the worker of the other job."""
    nodes = (node("n1"), node("n2", "fast", slots=2))
    leader = Leader(*nodes)
    wide = JobSubmitted(spec=job_spec("wide", slots=2))
    leader.tell(submitted=(model(workers=1), wide))
    assert leader.nodes("wide") == ("n2", "n2")[:1]
    leader.answer(lambda place: {"step_us": 1e6 if "n2" in place else 4e6, "plan": "a"})
    assert leader.nodes() == ("n1",)


def test_answers_about_a_node_with_other_devices_than_before_are_forgotten() -> None:
    leader = Leader(*SLOW)
    leader.tell(submitted=(model(),))
    leader.answer(lambda _place: {"missing_bytes": GIB})
    leader.tell(nodes=(SLOW[0], node("n2", "fast")))
    assert leader.asked() == [("n1", "n2")]
    leader.answer(by_fastest)
    assert leader.nodes() == ("n1", "n2")
    leader.check()


def test_answers_about_another_attempt_or_a_job_that_runs_are_no_facts() -> None:
    leader = Leader(*SLOW)
    leader.tell(submitted=(model(),))
    leader.tell(answered=(JobPlanned(job="try", attempt=2, nodes=("n1", "n2"), plan="late"),))
    assert leader.state.live["try"].answers == ()
    leader.answer(by_fastest)
    leader.tell(answered=(JobPlanned(job="try", attempt=2, nodes=("n1", "n2"), plan="early"),))
    assert (leader.state.live["try"].plan, leader.state.live["try"].answers) == ("of n1 n2", ())


# -- candidates ----------------------------------------------------------------------------------------------------


def test_candidates_have_as_many_workers_as_possible_on_each_kind_of_device() -> None:
    kinds = {"n1": "a", "n2": "a", "n3": "b", "n4": "b", "n5": "c", "n6": "c", "n7": "c", "n8": "c"}
    room = Room([Node(name, 1, device=kind) for name, kind in kinds.items()])
    found = room.candidates(Job("x", 4, 0.0), 8, by_device=True)
    most = {kind: max(sum(kinds[name] == kind for name in place) for place in found) for kind in "abc"}
    assert most == {"a": 2, "b": 2, "c": 4}
    assert any({kinds[name] for name in place} == {"a", "b"} for place in found), "without the third kind"
    assert len({tuple(sorted(place)) for place in found}) == len(found) <= 8


def test_a_rack_goes_before_several_where_it_has_as_many_of_a_kind() -> None:
    racks = {"n1": "r1", "n2": "r2", "n3": "r2", "n4": "r3", "n5": "r3"}
    kinds = {"n1": "fast", "n2": "fast", "n3": "fast", "n4": "slow", "n5": "slow"}
    room = Room([Node(name, 1, rack, device=kinds[name]) for name, rack in racks.items()])
    assert ("n2", "n3") in room.candidates(Job("x", 2, 0.0), 3, by_device=True)


def test_a_question_names_a_bounded_number_of_nodes() -> None:
    workers = MOST_NAMES // 2
    leader = Leader(*(node(f"n{number}", kind, slots=workers) for number, kind in enumerate("abc")))
    leader.tell(submitted=(model(workers=workers),))
    assert len(leader.asked()) == 2


# -- what holds always ----------------------------------------------------------------------------------------------

JOBS = st.lists(
    st.tuples(st.integers(1, 4), st.booleans(), st.booleans()), min_size=1, max_size=4
)  # workers, a model, may be preempted
NODES = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(1, 3), st.sampled_from(["", "r"])), min_size=1, max_size=5
)
ANSWERS = st.sampled_from(["step", "step", "missing", "unknown"])


@given(nodes=NODES, jobs=JOBS, data=st.data())
def test_what_starts_fits_and_a_replay_finds_the_same(
    nodes: list[tuple[str, int, str]], jobs: list[tuple[int, bool, bool]], data: st.DataObject
) -> None:
    known: dict[tuple[str, Place], dict[str, Any]] = {}

    def planner(job: str) -> Planner:
        def answer(place: Place) -> dict[str, Any]:
            kind = data.draw(ANSWERS)
            step_us = float(data.draw(st.integers(1, 3)))
            fields: dict[str, dict[str, Any]] = {
                "step": {"step_us": step_us, "plan": "a"},
                "missing": {"missing_bytes": GIB},
                "unknown": {"why": "no profile"},
            }
            return known.setdefault((job, place), fields[kind])

        return answer

    leader = Leader(*(node(f"n{number}", kind, slots, rack=rack) for number, (kind, slots, rack) in enumerate(nodes)))
    for number, (workers, has_model, stops) in enumerate(jobs):
        changes = {"preemption": Preemption.RESTART if stops else Preemption.NEVER, "workers": workers}
        leader.tell(submitted=(model(f"j{number}", **changes, **({} if has_model else {"model": "", "batch": 0})),))
        for _ in range(data.draw(st.integers(0, 2))):
            _answer_one(leader, planner)
    while leader.questions:
        _answer_one(leader, planner)
    _check_starts(leader, known)
    leader.check()


def _answer_one(leader: Leader, planner: Callable[[str], Planner]) -> None:
    for job in sorted(leader.questions)[:1]:
        leader.answer(planner(job), job)


def _check_starts(leader: Leader, known: dict[tuple[str, Place], dict[str, Any]]) -> None:
    """Of each entry: nothing starts where it does not fit, nor where a step is known to be longer than elsewhere."""
    state = State()
    for entry in leader.log:
        after = fold(state, [undecided(entry)])
        starts = entry.decision.starts if entry.decision is not None else ()
        planned = {answer.job: answer.nodes for answer in entry.planned}
        assert planned == {start.job: start.nodes for start in starts if after.live[start.job].spec.model}
        for job, place in planned.items():
            answer = known[job, place]
            assert "missing_bytes" not in answer
            if len(starts) == 1:  # else one may leave room for another
                steps = _steps(job, known, Room(after.places, after.jobs))
                assert answer.get("step_us", 9.0) == min(steps, default=9.0)
        state = fold(state, [entry])
        held = Counter(name for live in state.live.values() for name in live.job.nodes)
        assert all(count <= state.nodes[name].slots for name, count in held.items())


def _steps(job: str, known: dict[tuple[str, Place], dict[str, Any]], free: Room) -> Iterable[float]:
    places = ((place, answer) for (name, place), answer in known.items() if name == job and free.has(place, 1))
    return [answer["step_us"] for _, answer in places if "step_us" in answer]


@given(nodes=NODES, shapes=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3)), min_size=1, max_size=4))
def test_where_there_is_room_for_all_wherever_each_is_placed_all_find_some(
    nodes: list[tuple[str, int, str]], shapes: list[tuple[int, int]]
) -> None:
    room = Room([Node(f"n{number}", slots, rack) for number, (_, slots, rack) in enumerate(nodes)])
    jobs = [
        Job(f"j{number}", workers * slots, 0.0, slots_per_worker=slots)
        for number, (workers, slots) in enumerate(shapes)
    ]
    holds = room.holds(jobs)
    assert not room.holds([Job("more", room.slots + 1, 0.0)])
    for job in jobs:
        where = room.find(job)
        if where is not None:
            room.take(where, job.slots_per_worker)
        assert where is not None or not holds


def test_a_decision_asks_about_a_few_jobs_and_the_next_about_those_behind_them() -> None:
    jobs = [f"job-{number:02}" for number in range(MOST_ASKED + 2)]
    leader = Leader(node("n1", slots=len(jobs)))
    leader.tell(submitted=tuple(model(job, workers=1) for job in jobs))
    assert list(leader.questions) == jobs[:MOST_ASKED]
    assert leader.why(jobs[-1]).startswith("the planner is asked about it once it has answered about others")
    leader.tell(submitted=(JobSubmitted(spec=job_spec("plain")),))
    assert leader.nodes("plain") == (), "the slots are kept"
    for job in jobs:
        leader.answer(by_fastest, job)
    assert {leader.state.live[job].job.phase for job in jobs} == {Phase.RUNNING}
    leader.check()
