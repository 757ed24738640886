"""What each rank of a pipeline does in a step: all of it, once, in an order in which no rank waits for ever."""

from __future__ import annotations

import random
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.layers import MAX_LAYERS
from schemas.plans import MAX_BATCH, Plan
from services.trainer.worker.residency import LayerBytes, Residency, Vector, most_whole_bytes
from services.trainer.worker.routes import (
    Compute,
    Drain,
    Free,
    Gather,
    Message,
    Operation,
    Pass,
    Pipeline,
    Reduce,
    Update,
    pipeline_of,
    program,
)
from tests.support.examples import examples
from tests.support.trainer_plans import pipeline_plan

PROTOTYPE = pipeline_plan([[0, 1], [2]], [(0, 2), (1, 1), (0, 1), (1, 2)], [4, 2, 6], [40, 10, 50], microbatch=2)
"""Two groups in two turns."""
Programs = Mapping[int, Sequence[Operation]]


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """One to four groups of one to four ranks, in any order; some ranks have no samples, no state or no layers."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    ranks = draw(st.permutations(range(sum(sizes))))
    groups = [[ranks.pop() for _ in range(size)] for size in sizes]
    in_turn = st.integers(1, 3).map(lambda turns: list(range(len(groups))) * turns)
    order = draw(in_turn | st.lists(st.integers(0, len(groups) - 1), min_size=1, max_size=9))
    count, microbatches, shares = draw(st.integers(1, 8)), [0] * sum(sizes), [0.0] * sum(sizes)
    for group in sorted(set(order)):
        for _ in range(count):
            microbatches[draw(st.sampled_from(groups[group]))] += 1
        for rank in groups[group]:
            shares[rank] = draw(st.integers(0, 3))
        shares[draw(st.sampled_from(groups[group]))] += 1
    stages = [(group, draw(st.integers(1, 3))) for group in order]
    return pipeline_plan(groups, stages, microbatches, shares, draw(st.integers(1, 3)))


def layers_of(pipeline: Pipeline) -> int:
    return pipeline.ministages[-1].last_layer + 1


def programs_of(
    pipeline: Pipeline, ranks: int, sizes: Sequence[LayerBytes] | None = None
) -> dict[int, tuple[Operation, ...]]:
    """Of layers that are all alike, where no sizes are given."""
    alike = [LayerBytes(1, 1)] * layers_of(pipeline)
    return {rank: program(pipeline, rank, sizes or alike) for rank in range(ranks)}


def sizes_of(count: int) -> st.SearchStrategy[list[LayerBytes]]:
    """Of so many layers; some have no parameters. Gradients are summed in the gathered type, or a longer one.

    Four times as long is float64 beside bfloat16.
    """
    elements = st.lists(st.integers(0, 9), min_size=count, max_size=count)
    return st.builds(
        lambda sizes, longer: [LayerBytes(size, size * longer) for size in sizes], elements, st.integers(1, 4)
    )


def collectives(operations: Sequence[Operation]) -> list[Gather | Reduce]:
    """In the order in which they are begun."""
    return [operation for operation in operations if isinstance(operation, Gather | Reduce)]


class Simulation:
    """Ranks with a buffer for one message between each two of them; what does not fit waits at its source.

    A message leaves the buffer when its target takes it in its program, and not before. A group's collective is done
    once all its ranks have begun it, and those before it are done: gloo has a few threads, which take them in order.
    """

    def __init__(self, pipeline: Pipeline, programs: Programs) -> None:
        self._pipeline, self._left = pipeline, {rank: deque(own) for rank, own in programs.items()}
        self._buffers: dict[tuple[int, int], Message] = {}
        self._unsent: defaultdict[tuple[int, int], deque[Message]] = defaultdict(deque)
        self._own: set[Message] = set()
        self._begun: dict[int, list[Gather | Reduce]] = {rank: [] for rank in programs}
        self._passes: dict[int, list[set[Message]]] = {rank: [set()] for rank in programs}
        """What was sent in each of a rank's passes, and was not received yet."""

    def run(self, chance: random.Random) -> dict[int, Operation]:
        """In any order, as far as it goes; what each rank waits for that has not ended."""
        ranks, moved = list(self._left), True
        while moved:
            chance.shuffle(ranks)
            moved = sum(self._step(rank) for rank in ranks) > 0
        return {rank: left[0] for rank, left in self._left.items() if left}

    @property
    def is_empty(self) -> bool:
        """No message is on its way."""
        return not self._buffers and not any(self._unsent.values()) and not self._own

    def _step(self, rank: int) -> bool:
        """Whether the rank could do its next operation."""
        if not self._left[rank]:
            return False
        operation = self._left[rank][0]
        if not self._can(rank, operation):
            return False
        if isinstance(operation, Gather | Reduce):
            self._begun[rank].append(operation)
        elif isinstance(operation, Drain):
            self._passes[rank].append(set())
        elif isinstance(operation, Compute):
            self._compute(operation)
        self._left[rank].popleft()
        return True

    def _can(self, rank: int, operation: Operation) -> bool:
        match operation:
            case Gather():
                return True
            case Reduce(layer):
                return self._is_done(rank, [Gather(layer)])
            case Free(ministage):
                return self._is_done(rank, map(Gather, self._pipeline.ministages[ministage].layers))
            case Update(ministage):
                return self._is_done(rank, map(Reduce, self._pipeline.ministages[ministage].layers))
            case Drain(passes_left):
                return not any(self._passes[rank][: max(len(self._passes[rank]) - passes_left, 0)])
            case Compute():
                layers = self._pipeline.ministages[operation.ministage].layers
                needed = operation.layers if operation.way is Pass.BACKWARD else layers
                return self._is_done(rank, map(Gather, needed)) and self._has_come(operation.takes)

    def _is_done(self, rank: int, waited: Iterable[Gather | Reduce]) -> bool:
        """Whether all ranks of its group have come as far as the last one that it has begun of each of these."""
        members = next(ministage.ranks for ministage in self._pipeline.ministages if rank in ministage.ranks)
        own = self._begun[rank]
        for operation in waited:
            assert operation in own, "what is waited for was begun"
            count = len(own) - own[::-1].index(operation)
            if any(self._begun[member][:count] != own[:count] for member in members):
                return False
        return True

    def _has_come(self, message: Message | None) -> bool:
        if message is None or message.source == message.target:
            return True
        return (message.source, message.target) in self._buffers

    def _compute(self, operation: Compute) -> None:
        takes, gives = operation.takes, operation.gives
        if takes is not None and takes.source == takes.target:
            self._own.remove(takes)
        elif takes is not None:
            between = takes.source, takes.target
            assert self._buffers.pop(between) == takes, "messages come in the order in which they are taken"
            self._fill(between)
            for sent in self._passes[takes.source]:
                sent.discard(takes)
        if gives is not None and gives.source == gives.target:
            self._own.add(gives)
        elif gives is not None:
            self._unsent[gives.source, gives.target].append(gives)
            self._passes[gives.source][-1].add(gives)
            self._fill((gives.source, gives.target))

    def _fill(self, between: tuple[int, int]) -> None:
        if between not in self._buffers and self._unsent[between]:
            self._buffers[between] = self._unsent[between].popleft()


@given(plans(), st.integers(0, 1 << 32), st.data())
@settings(max_examples=examples(10_000), deadline=None)
def test_no_rank_waits_for_ever_and_no_message_is_left(plan: Plan, seed: int, data: st.DataObject) -> None:
    pipeline = pipeline_of(plan)
    sizes = data.draw(sizes_of(layers_of(pipeline)))
    simulation = Simulation(pipeline, programs_of(pipeline, len(plan.devices), sizes))

    assert simulation.run(random.Random(seed)) == {}
    assert simulation.is_empty


def test_the_simulation_finds_ranks_that_wait_for_ever() -> None:
    """Ranks that wait until each message was received: 2 for 0 to take its first, and 0 for 2 to take its second."""
    pipeline = pipeline_of(pipeline_plan([[0, 1], [2]], [(0, 1), (1, 1), (0, 1), (1, 1)], [2, 2, 4], [1, 1, 2]))
    waiting: dict[int, list[Operation]] = {}
    for rank, own in programs_of(pipeline, 3).items():
        waiting[rank] = []
        for operation in own:
            waiting[rank] += [operation, Drain(0)] if isinstance(operation, Compute) else [operation]

    found = Simulation(pipeline, waiting).run(random.Random(0))

    assert found == {0: Drain(0), 1: Drain(0), 2: Drain(0)}


@given(plans())
def test_a_rank_keeps_what_it_has_sent_in_two_passes_at_most(plan: Plan) -> None:
    pipeline = pipeline_of(plan)
    for own in programs_of(pipeline, len(plan.devices)).values():
        passes: list[set[tuple[int, Pass]]] = [set()]
        for operation in own:
            if isinstance(operation, Drain):
                passes = [*passes[len(passes) - operation.passes_left :], set()]
            elif isinstance(operation, Compute):
                passes[-1].add((operation.ministage, operation.way is Pass.FORWARD))
                assert len(passes) <= 2
                assert len(passes[-1]) == 1, "a pass is of one ministage"


def test_the_backward_pass_begins_while_outputs_are_on_their_way() -> None:
    """Rank 1 has taken one output of two: rank 0 takes the gradient of that one, and waits for the other's."""
    pipeline = pipeline_of(pipeline_plan([[0], [1]], [(0, 1), (1, 1)], [2, 2], [1, 1]))
    programs = programs_of(pipeline, 2)
    first = next(place for place, operation in enumerate(programs[1]) if isinstance(operation, Compute))

    found = Simulation(pipeline, {0: programs[0], 1: programs[1][: first + 1]}).run(random.Random(0))

    assert found == {0: Compute(0, 1, Pass.BACKWARD, range(1), Message(1, 0, 0, 1, is_gradient=True), None)}


@given(plans())
def test_each_micro_batch_passes_each_layer_once_each_way(plan: Plan) -> None:
    pipeline = pipeline_of(plan)
    passed: Counter[tuple[int, int, Pass]] = Counter()
    for rank, own in programs_of(pipeline, len(plan.devices)).items():
        for operation in own:
            if isinstance(operation, Compute):
                assert pipeline.ministages[operation.ministage].owners[operation.microbatch] == rank
                whole = pipeline.ministages[operation.ministage].layers
                if operation.way is not Pass.BACKWARD:
                    passed.update((layer, operation.microbatch, Pass.FORWARD) for layer in whole)
                if operation.way is not Pass.FORWARD:
                    passed.update((layer, operation.microbatch, Pass.BACKWARD) for layer in operation.layers)

    count = plan.batch // pipeline.microbatch_samples
    expected = {
        (layer, number, way)
        for layer in range(layers_of(pipeline))
        for number in range(count)
        for way in (Pass.FORWARD, Pass.BACKWARD)
    }
    assert passed == Counter(expected)
    for device in plan.devices:
        assert len(pipeline.microbatches(device.rank)) == device.microbatches


@given(plans(), st.data())
def test_a_layer_is_gathered_twice_a_groups_last_ones_once_and_reduced_once(plan: Plan, data: st.DataObject) -> None:
    pipeline = pipeline_of(plan)
    sizes = data.draw(sizes_of(layers_of(pipeline)))
    for rank, own in programs_of(pipeline, len(plan.devices), sizes).items():
        gathers = Counter(operation.layer for operation in own if isinstance(operation, Gather))
        reduces = Counter(operation.layer for operation in own if isinstance(operation, Reduce))
        mine = [place for place, ministage in enumerate(pipeline.ministages) if rank in ministage.ranks]
        layers = {layer: place for place in mine for layer in pipeline.ministages[place].layers}
        assert gathers == {layer: 1 if place == mine[-1] else 2 for layer, place in layers.items()}
        assert reduces == dict.fromkeys(layers, 1)
        assert [operation.ministage for operation in own if isinstance(operation, Update)] == mine[::-1]


@given(plans(), st.data())
def test_ranks_of_a_group_begin_the_same_collectives_in_the_same_order(plan: Plan, data: st.DataObject) -> None:
    pipeline = pipeline_of(plan)
    programs = programs_of(pipeline, len(plan.devices), data.draw(sizes_of(layers_of(pipeline))))
    for group in pipeline.groups:
        first, *others = [collectives(programs[rank]) for rank in group]
        assert all(other == first for other in others)


def ledger_of(own: Sequence[Operation], pipeline: Pipeline, rank: int, sizes: Sequence[LayerBytes]) -> Residency:
    """After a step."""
    mine = [ministage.layers for ministage in pipeline.ministages if rank in ministage.ranks]
    ledger = Residency(most_whole_bytes([[sizes[layer] for layer in layers] for layers in mine]))
    for operation in own:
        match operation:
            case Gather(layer):
                ledger.hold(layer, Vector.PARAMETERS, sizes[layer].gathered)
            case Reduce(layer):
                ledger.reduce(layer, sizes[layer].reduced)
            case Free(ministage) | Update(ministage):
                for layer in pipeline.ministages[ministage].layers:
                    ledger.free(layer)
            case Compute() if operation.way is not Pass.FORWARD:
                for layer in operation.layers:
                    ledger.hold(layer, Vector.GRADIENT, sizes[layer].gathered)
    return ledger


@given(plans(), st.data())
def test_no_rank_has_more_than_two_ministages_and_a_layer_whole(plan: Plan, data: st.DataObject) -> None:
    pipeline = pipeline_of(plan)
    sizes = data.draw(sizes_of(layers_of(pipeline)))
    for rank, own in programs_of(pipeline, len(plan.devices), sizes).items():
        ledger = ledger_of(own, pipeline, rank, sizes)
        assert ledger.held_bytes == 0
        assert ledger.peak_bytes <= ledger.limit_bytes


@given(plans())
def test_forward_the_next_ministage_is_gathered_before_this_one_computes(plan: Plan) -> None:
    pipeline = pipeline_of(plan)
    for rank, own in programs_of(pipeline, len(plan.devices)).items():
        mine = [place for place, ministage in enumerate(pipeline.ministages) if rank in ministage.ranks]
        for place, following in pairwise(mine):
            freed = own.index(Free(place))
            computing = [at for at in range(freed) if isinstance(own[at], Compute) and is_of(own[at], place)]
            begun = [own.index(Gather(layer)) for layer in pipeline.ministages[following].layers]
            assert max(begun) < min([freed, *computing])


def is_of(operation: Operation, place: int) -> bool:
    return isinstance(operation, Compute) and operation.ministage == place


def test_backward_layers_of_the_next_ministage_take_the_room_of_those_that_are_done() -> None:
    """Ministages of layers 0, 1 and 2, 3 of one byte each: 5 bytes at most.

    Layers 2 and 3 with their gradients are 4. Without the parameters of 3 they are 3, and layers 1 and 0 make 5.
    """
    pipeline = pipeline_of(pipeline_plan([[0, 1]], [(0, 2), (0, 2)], [1, 1], [1, 1]))

    found = [
        operation for operation in program(pipeline, 0, [LayerBytes(1, 1)] * 4) if not isinstance(operation, Drain)
    ]

    back = found.index(Free(0)) + 1
    assert found[:4] == [Gather(0), Gather(1), Gather(2), Gather(3)]
    assert [replace(each, takes=None, gives=None) if isinstance(each, Compute) else each for each in found[back:]] == [
        *(Compute(1, 0, Pass.BOTH, range(3, 4), None, None), Reduce(3), Gather(1), Gather(0)),
        *(Compute(1, 0, Pass.BACKWARD, range(2, 3), None, None), Reduce(2)),
        Update(1),
        *(Compute(0, 0, Pass.BACKWARD, range(1, 2), None, None), Reduce(1)),
        *(Compute(0, 0, Pass.BACKWARD, range(1), None, None), Reduce(0)),
        Update(0),
    ]


def test_what_finds_no_room_is_gathered_once_the_gradients_are_summed() -> None:
    """The same in bfloat16: a gradient that is summed is as large as it was with its parameters; a layer is room."""
    pipeline = pipeline_of(pipeline_plan([[0, 1]], [(0, 2), (0, 2)], [1, 1], [1, 1]))

    found = collectives(program(pipeline, 0, [LayerBytes(2, 4)] * 4))

    assert found[4:] == [Reduce(3), Gather(1), Reduce(2), Gather(0), Reduce(1), Reduce(0)]
    operations = program(pipeline, 0, [LayerBytes(2, 4)] * 4)
    again = [at for at, operation in enumerate(operations) if operation == Gather(0)][-1]
    assert operations[again - 1] == Update(1)


@given(plans())
def test_tags_of_messages_between_two_ranks_differ(plan: Plan) -> None:
    pipeline = pipeline_of(plan)
    tags: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for own in programs_of(pipeline, len(plan.devices)).values():
        for operation in own:
            if isinstance(operation, Compute) and operation.gives is not None:
                message = operation.gives
                tags[message.source, message.target] += [message.tag(), message.tag(is_header=True)]

    assert all(len(set(found)) == len(found) for found in tags.values())


def test_tags_are_whole_numbers_that_gloo_takes() -> None:
    last = Message(0, 1, MAX_LAYERS - 1, MAX_BATCH - 1, is_gradient=True)

    assert 0 <= last.tag(is_header=True) < 1 << 31
    assert 0 <= last.tag() < 1 << 31


def test_by_hand() -> None:
    pipeline = pipeline_of(PROTOTYPE)

    # rank 0 is done with its micro-batches at 1/4, 2/4, 3/4 and 1 of the time, rank 1 at 1/2 and 1
    assert pipeline.ministages[0].owners == (0, 0, 1, 0, 0, 1)
    assert pipeline.ministages[1].owners == (2,) * 6
    assert pipeline.groups == ((0, 1), (2,))
    assert pipeline.sample_positions(1) == (4, 5, 10, 11)
    one = Message(1, 2, 0, 2), Message(1, 2, 0, 5)
    two = Message(2, 1, 1, 2), Message(2, 1, 1, 5)
    three = Message(1, 2, 2, 2), Message(1, 2, 2, 5)
    back = [[replace_back(message) for message in messages] for messages in (one, two, three)]
    assert program(pipeline, 1, [LayerBytes(1, 1)] * 6) == (
        *(Gather(0), Gather(1), Gather(3), Drain(1)),
        *(Compute(0, 2, Pass.FORWARD, range(2), None, one[0]), Compute(0, 5, Pass.FORWARD, range(2), None, one[1])),
        *(Free(0), Drain(1)),
        Compute(2, 2, Pass.FORWARD, range(3, 4), two[0], three[0]),
        Compute(2, 5, Pass.FORWARD, range(3, 4), two[1], three[1]),
        Drain(1),
        Compute(2, 2, Pass.BACKWARD, range(3, 4), back[2][0], back[1][0]),
        Compute(2, 5, Pass.BACKWARD, range(3, 4), back[2][1], back[1][1]),
        # two ministages and a layer are 5: the gradient of layer 3, and both layers of the next one
        *(Reduce(3), Gather(1), Gather(0), Update(2), Drain(1)),
        Compute(0, 2, Pass.BACKWARD, range(2), back[0][0], None),
        *(Compute(0, 5, Pass.BACKWARD, range(1, 2), back[0][1], None), Reduce(1)),
        *(Compute(0, 5, Pass.BACKWARD, range(1), None, None), Reduce(0)),
        *(Update(0), Drain(0)),
    )
    ways = [
        operation.way for operation in program(pipeline, 2, [LayerBytes(1, 1)] * 6) if isinstance(operation, Compute)
    ]
    # its last ministage has two layers, through which the last micro-batch goes back one by one
    assert ways == [Pass.FORWARD] * 6 + [Pass.BOTH] * 6 + [Pass.BACKWARD] * 7


def replace_back(message: Message) -> Message:
    """The gradient of an output."""
    return replace(message, source=message.target, target=message.source, is_gradient=True)


def test_a_rank_between_the_ends_loads_no_samples() -> None:
    pipeline = pipeline_of(pipeline_plan([[0], [1], [2]], [(0, 1), (1, 1), (2, 1)], [2, 2, 2], [1, 1, 1]))

    assert [pipeline.sample_positions(rank) for rank in range(3)] == [(0, 1), (), (0, 1)]


def test_a_group_without_layers_does_nothing() -> None:
    pipeline = pipeline_of(pipeline_plan([[0], [1], [2]], [(0, 1), (2, 2)], [2, 0, 2], [1, 0, 1]))

    assert program(pipeline, 1, [LayerBytes(1, 1)] * 3) == ()
    assert (pipeline.microbatches(1), pipeline.sample_positions(1)) == ((), ())


def changed(place: int, **update: object) -> Plan:
    """The prototype's plan with another stage."""
    stages = list(PROTOTYPE.stages)
    stages[place] = stages[place].model_copy(update=update)
    return PROTOTYPE.model_copy(update={"stages": tuple(stages)})


def with_device(rank: int, **update: object) -> Plan:
    """The prototype's plan with another device."""
    devices = list(PROTOTYPE.devices)
    devices[rank] = devices[rank].model_copy(update=update)
    return PROTOTYPE.model_copy(update={"devices": tuple(devices)})


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (PROTOTYPE.model_copy(update={"stages": ()}), "it has no stages"),
        (changed(0, first_layer=1), "its first stage begins with layer 1 instead of 0"),
        (changed(2, first_layer=4), "layer 2 of a stage is followed by 4 of the next one"),
        (changed(2, ranks=(0,)), "group 0 has ranks 0 by its stages, but 0, 1 by its devices"),
        (with_device(1, samples=2, microbatches=2), "micro-batches have 1, 2 samples, but all have to be alike"),
        (with_device(2, samples=0, microbatches=0), "group 1 has layers, but no samples"),
        (with_device(1, stage=3), "group 0 has ranks 0, 1 by its stages, but 0 by its devices"),
    ],
)
def test_a_plan_whose_parts_do_not_fit_together(plan: Plan, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        pipeline_of(plan)


def test_state_without_layers() -> None:
    plan = pipeline_plan([[0], [1], [2]], [(0, 1), (2, 2)], [2, 0, 2], [1, 1, 1])

    with pytest.raises(ValueError, match="rank 1 holds state, but its group has no layers"):
        pipeline_of(plan)


def test_gradients_that_are_summed_in_a_much_longer_type_have_room() -> None:
    """Of float64 and bfloat16: 8 and 16 bytes in place of twice 2 and 4, so two ministages of 12, and a layer of 8."""
    assert most_whole_bytes([[LayerBytes(2, 8), LayerBytes(4, 16)], [LayerBytes(2, 4)]]) == 2 * (4 + 8) + 8
    assert most_whole_bytes([[LayerBytes(1, 3)]]) == 3 * 2
    assert most_whole_bytes([]) == 0


def test_the_ledger_refuses_more_than_its_limit() -> None:
    # two ministages of 7, and a layer of 5
    ledger = Residency(most_whole_bytes([[LayerBytes(3, 3), LayerBytes(4, 8)], [LayerBytes(5, 5)]]))
    ledger.hold(0, Vector.PARAMETERS, 9)
    ledger.hold(0, Vector.PARAMETERS, 9)
    ledger.hold(0, Vector.GRADIENT, 10)

    assert (ledger.held_bytes, ledger.limit_bytes) == (19, 19)
    with pytest.raises(ValueError, match="would take 20 bytes of the 19 that they may with the parameters of layer 1"):
        ledger.hold(1, Vector.PARAMETERS, 1)
    ledger.reduce(0, 18)
    ledger.hold(1, Vector.PARAMETERS, 1)
    assert ledger.held_bytes == 19
    ledger.free(0)
    assert (ledger.held_bytes, ledger.peak_bytes) == (1, 19)


def test_layers_are_gathered_ahead_only_where_gradients_have_room_that_are_longer_once_they_are_summed() -> None:
    """Summed in float64 beside bfloat16 a layer of 1 byte takes 4, where its parameters and gradient took 2.

    Ministages of layers 0 to 2 and 3 to 5: 14 bytes at most, of which the three sums take 12.
    """
    pipeline = pipeline_of(pipeline_plan([[0, 1]], [(0, 3), (0, 3)], [1, 1], [1, 1]))
    sizes = [LayerBytes(1, 4)] * 6

    own = program(pipeline, 0, sizes)

    ledger = ledger_of(own, pipeline, 0, sizes)
    assert (ledger.limit_bytes, ledger.peak_bytes) == (14, 14)
    summing = own[own.index(Reduce(5)) : own.index(Update(1))]
    assert [operation.layer for operation in summing if isinstance(operation, Gather)] == [2, 1]
