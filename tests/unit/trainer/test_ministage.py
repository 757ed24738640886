"""Gradients of a pipeline whose groups are one rank each, in threads of this process, beside those of plain autograd.

Groups of several ranks need processes: `tests/integration/test_trainer_pipelines.py` has them.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import pytest
import torch
from torch import Tensor, nn
from torch import distributed as dist

from services._jobs.layer_chain import chain_of
from services.trainer.worker.exchange import Exchange
from services.trainer.worker.flat import Placement
from services.trainer.worker.ministage import MinistageEngine
from services.trainer.worker.plan_file import RefusedError
from services.trainer.worker.routes import Message, pipeline_of
from services.trainer.worker.step_clock import StepClock
from tests.support.trainer_plans import pipeline_plan

CPU = torch.device("cpu")
DEADLINE_S: Final = 60.0
MICROBATCHES, SAMPLES = 4, 3
"""Of a step, and of one of these."""


class Received:
    """A message that is waited for."""

    def __init__(self, wire: Wire, key: tuple[int, int, int], buffer: Tensor) -> None:
        self._wire, self._key, self._buffer = wire, key, buffer

    def wait(self) -> None:
        with self._wire.changed:
            assert self._wire.changed.wait_for(lambda: self._key in self._wire.sent, DEADLINE_S), self._key
            self._buffer.copy_(self._wire.sent.pop(self._key))


class Sent:
    """A message that was sent: it is received at once."""

    def wait(self) -> None:
        pass


class Wire:
    """Between ranks that are threads, which are named after their numbers."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.sent: dict[tuple[int, int, int], Tensor] = {}

    def isend(self, tensor: Tensor, target: int, tag: int) -> Sent:
        with self.changed:
            self.sent[self._rank(), target, tag] = tensor.clone()
            self.changed.notify_all()
        return Sent()

    def irecv(self, buffer: Tensor, source: int, tag: int) -> Received:
        return Received(self, (source, self._rank(), tag), buffer)

    @staticmethod
    def _rank() -> int:
        return int(threading.current_thread().name)


def model_of() -> nn.Sequential:
    torch.manual_seed(1)
    middle = [nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 5), nn.LayerNorm(5), nn.Linear(5, 5), nn.GELU()]
    return nn.Sequential(nn.Embedding(7, 5), *middle, nn.Linear(5, 7)).double()


def loss(output: Tensor, target: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output, target, reduction="sum") / (MICROBATCHES * SAMPLES)


def engine_of(stages: Sequence[tuple[int, int]], rank: int, model: nn.Sequential) -> MinistageEngine:
    ranks = len({group for group, _ in stages})
    plan = pipeline_plan(
        [[each] for each in range(ranks)], stages, [MICROBATCHES] * ranks, [1] * ranks, microbatch=SAMPLES
    )
    return MinistageEngine(chain_of(model), pipeline_of(plan), Placement(rank, (1.0,) * ranks, CPU))


def steps_of(
    engines: Sequence[MinistageEngine],
    first: int,
    batch: tuple[Tensor, Tensor],
    optimizers: Sequence[torch.optim.Optimizer | None],
) -> list[Tensor]:
    """One step of all ranks, each in a thread; the losses."""
    inputs, targets = (given.split(SAMPLES) for given in batch)

    def step(rank: int) -> Tensor:
        threading.current_thread().name = str(rank)
        given = list(inputs) if rank == first else []
        return engines[rank].step(
            given, lambda output, number: loss(output, targets[number]), StepClock(CPU), optimizers[rank]
        )

    with ThreadPoolExecutor(len(engines)) as pool:
        return list(pool.map(step, range(len(engines)), timeout=DEADLINE_S))


STAGES = pytest.mark.parametrize(
    "stages",
    [
        [(0, 8)],
        [(0, 3), (0, 5)],
        [(0, 2), (1, 6)],
        [(1, 1), (0, 1), (1, 1), (0, 5)],
        [(0, 1), (1, 2), (2, 1), (0, 1), (1, 1), (2, 2)],
        [(0, 3), (1, 1), (0, 4)],
        [(2, 1), (1, 1), (1, 1), (0, 1), (2, 1), (0, 3)],
    ],
    ids=str,
)


@STAGES
def test_gradients_are_those_of_one_process(stages: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch) -> None:
    wire, single = Wire(), model_of()
    monkeypatch.setattr(dist, "isend", wire.isend)
    monkeypatch.setattr(dist, "irecv", wire.irecv)
    inputs, targets = torch.randint(0, 7, (2, MICROBATCHES * SAMPLES), generator=torch.Generator().manual_seed(2))
    groups = [group for group, _ in stages]
    engines = [engine_of(stages, rank, copy.deepcopy(single)) for rank in sorted(set(groups))]

    values = steps_of(engines, groups[0], (inputs, targets), [None] * len(engines))
    expected = loss(single(inputs), targets)
    torch.autograd.backward(expected)

    assert float(sum(values)) == pytest.approx(float(expected.detach()), abs=1e-12)
    owners = [group for group, layers in stages for _ in range(layers)]
    for index, layer in enumerate(single):
        gradients = [parameter.grad.reshape(-1) for parameter in layer.parameters() if parameter.grad is not None]
        for rank, engine in enumerate(engines):
            found = engine.blocks[index].parameter.grad
            assert found is not None
            if rank != owners[index] or not gradients:
                assert found.numel() == 0
            else:
                assert torch.allclose(found, torch.cat(gradients), rtol=0, atol=1e-12)
    assert not wire.sent
    for engine in engines:
        assert engine.residency.held_bytes == 0
        assert 0 < engine.residency.peak_bytes <= engine.residency.limit_bytes


class Recording(torch.optim.AdamW):
    """Records which parameters have a gradient in each call."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        super().__init__(parameters, lr=1e-2)
        self.stepped: list[list[int]] = []

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        parameters = self.param_groups[0]["params"]
        self.stepped.append([place for place, each in enumerate(parameters) if each.grad is not None])
        super().step(closure)


@STAGES
def test_an_optimizer_steps_each_ministage_once_it_is_summed(
    stages: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    wire, single = Wire(), model_of()
    monkeypatch.setattr(dist, "isend", wire.isend)
    monkeypatch.setattr(dist, "irecv", wire.irecv)
    groups = [group for group, _ in stages]
    engines = [engine_of(stages, rank, copy.deepcopy(single)) for rank in sorted(set(groups))]
    optimizers = [Recording(engine.parameters) for engine in engines]
    expected = torch.optim.AdamW(single.parameters(), lr=1e-2)

    for seed in range(3):
        batch = torch.randint(0, 7, (2, MICROBATCHES * SAMPLES), generator=torch.Generator().manual_seed(seed))
        steps_of(engines, groups[0], (batch[0], batch[1]), optimizers)
        expected.zero_grad()
        torch.autograd.backward(loss(single(batch[0]), batch[1]))
        expected.step()

    owners = [group for group, layers in stages for _ in range(layers)]
    for index, layer in enumerate(single):
        weights = [parameter.detach().reshape(-1) for parameter in layer.parameters()]
        if weights:
            held = engines[owners[index]].blocks[index].parameter
            assert torch.allclose(held, torch.cat(weights), rtol=0, atol=1e-12)
    for rank, (engine, optimizer) in enumerate(zip(engines, optimizers, strict=True)):
        count = len(engine.parameters)
        per_step = groups.count(rank) + 1
        assert len(optimizer.stepped) == 3 * per_step, "each of its ministages, and at the end what others hold"
        for step in range(3):
            calls = optimizer.stepped[step * per_step : (step + 1) * per_step]
            assert sorted(place for call in calls for place in call) == list(range(count)), "each parameter once"
            mine = [min(call) for call in calls[:-1] if call]
            assert mine == sorted(mine, reverse=True), "the last ministage first"
        assert all(float(optimizer.state[parameter]["step"]) == 3 for parameter in engine.parameters)


def test_what_is_taken_next_is_expected_while_this_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also across passes: gloo sends nothing before the target has asked for it."""
    wire, single = Wire(), model_of()
    expected_at: dict[int, list[tuple[bool, Message]]] = {0: [], 1: []}

    class Watched(Exchange):
        def __init__(self, device: torch.device) -> None:
            super().__init__(device)
            self.expected: set[Message] = set()

        def expect(self, message: Message) -> None:
            self.expected.add(message)
            super().expect(message)

        def receive(self, message: Message) -> Tensor | None:
            expected_at[message.target].append((message in self.expected, message))
            return super().receive(message)

    monkeypatch.setattr(dist, "isend", wire.isend)
    monkeypatch.setattr(dist, "irecv", wire.irecv)
    monkeypatch.setattr("services.trainer.worker.ministage.Exchange", Watched)
    stages = [(0, 2), (1, 2), (0, 2), (1, 2)]
    engines = [engine_of(stages, rank, copy.deepcopy(single)) for rank in range(2)]
    inputs, targets = torch.randint(0, 7, (2, MICROBATCHES * SAMPLES), generator=torch.Generator().manual_seed(2))

    steps_of(engines, 0, (inputs, targets), [None, None])

    # a step's first operation that takes anything is preceded by others on rank 0 only
    assert [ahead for ahead, _ in expected_at[0]] == [True] * 3 * MICROBATCHES
    assert [ahead for ahead, _ in expected_at[1]] == [False, *[True] * (3 * MICROBATCHES - 1)]


def test_a_model_of_another_number_of_layers() -> None:
    with pytest.raises(RefusedError, match="the plan's stages have 5 layers, but the model has 8: plan anew"):
        engine_of([(0, 2), (1, 3)], 0, model_of())
