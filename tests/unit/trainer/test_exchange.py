"""Messages between two ranks of a pipeline: their forms are told once a step, and what cannot be sent is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch import distributed as dist

from services.trainer.worker.exchange import Exchange
from services.trainer.worker.plan_file import RefusedError
from services.trainer.worker.routes import Message

CPU = torch.device("cpu")


class Done:
    """Of a message; it is filled in once both ends are there."""

    def __init__(self, finish: Callable[[], None]) -> None:
        self.wait = finish


class Wire:
    """Between two ranks, in one process: a message is what was sent with its tag."""

    def __init__(self) -> None:
        self.sent: dict[int, Tensor] = {}
        self.expected: list[int] = []
        self.waited: list[int] = []

    def isend(self, tensor: Tensor, _target: int, tag: int) -> Done:
        assert tag not in self.sent
        self.sent[tag] = tensor
        return Done(lambda: self.waited.append(tag))

    def irecv(self, buffer: Tensor, _source: int, tag: int) -> Done:
        self.expected.append(tag)

        def fill() -> None:
            assert buffer.shape == self.sent[tag].shape
            assert buffer.dtype is self.sent[tag].dtype
            buffer.copy_(self.sent[tag])

        return Done(fill)


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Wire:
    made = Wire()
    monkeypatch.setattr(dist, "isend", made.isend)
    monkeypatch.setattr(dist, "irecv", made.irecv)
    return made


def output(number: int, ministage: int = 3) -> Message:
    return Message(0, 1, ministage, number)


def gradient(number: int) -> Message:
    return Message(1, 0, 3, number, is_gradient=True)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("shape", [(2, 3), (), (1, 2, 1, 2, 1, 2, 1, 2)])
def test_outputs_arrive_with_their_form_told_once(wire: Wire, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    source, target = Exchange(CPU), Exchange(CPU)
    given = [torch.full(shape, value, dtype=dtype) for value in (3, 4)]
    for number, tensor in enumerate(given):
        source.send(output(number), tensor)
    source.drain(0)

    received = [target.receive(output(number)) for number in range(2)]

    for tensor, found in zip(given, received, strict=True):
        assert found is not None
        assert found.dtype is dtype
        assert torch.equal(found, tensor)
    # two outputs, and a header before the first
    assert sorted(wire.sent) == sorted([output(0).tag(is_header=True), output(0).tag(), output(1).tag()])


def test_what_follows_is_expected_before_it_is_sent(wire: Wire) -> None:
    source, target = Exchange(CPU), Exchange(CPU)
    target.expect(output(0))
    assert wire.expected == [output(0).tag(is_header=True)], "its size is not known yet"
    source.send(output(0), torch.ones(2))
    target.receive(output(0))

    target.expect(output(1))
    target.expect(output(1))

    assert wire.expected == [output(0).tag(is_header=True), output(0).tag(), output(1).tag()]


def test_gradients_are_like_their_outputs_and_need_no_header(wire: Wire) -> None:
    early, late = Exchange(CPU), Exchange(CPU)
    for number in range(2):
        early.send(output(number), torch.ones(2, dtype=torch.float64))
        late.receive(output(number))
    late.send(gradient(0), torch.tensor([5.0, 6.0], dtype=torch.float64))
    late.send(gradient(1), None)

    first, second = early.receive(gradient(0)), early.receive(gradient(1))

    assert first is not None
    assert first.tolist() == [5, 6]
    assert second is not None
    assert second.tolist() == [0, 0], "nothing flows through what comes after"
    assert gradient(0).tag(is_header=True) not in wire.sent


def test_a_gradient_of_an_output_that_is_still_to_be_sent_is_not_asked_for(wire: Wire) -> None:
    early = Exchange(CPU)

    early.expect(gradient(0))

    assert wire.expected == [], "its size is that of the output, and no header comes before it"
    early.send(output(0), torch.ones(2))
    early.expect(gradient(0))
    assert wire.expected == [gradient(0).tag()]


def test_whole_numbers_have_no_gradients(wire: Wire) -> None:
    early, late = Exchange(CPU), Exchange(CPU)
    early.send(output(0), torch.ones(2, dtype=torch.int64))
    late.receive(output(0))

    late.send(gradient(0), None)

    assert early.receive(gradient(0)) is None
    assert gradient(0).tag() not in wire.sent


def test_what_was_sent_before_the_last_pass_is_waited_for(wire: Wire) -> None:
    source = Exchange(CPU)
    for number in range(3):
        source.send(output(number), torch.ones(2))
        source.drain(1)

    # a header and two outputs: the third one was sent in the last pass
    assert wire.waited == [output(0).tag(is_header=True), output(0).tag(), output(1).tag()]
    source.drain(0)
    assert wire.waited[3:] == [output(2).tag()]


def test_a_rank_gives_itself_what_it_has(wire: Wire) -> None:
    exchange, given = Exchange(CPU), torch.ones(2)
    message = Message(4, 4, 0, 0)

    exchange.send(message, given)
    exchange.expect(message)

    assert exchange.receive(message) is given
    assert (wire.sent, wire.expected) == ({}, [])


@pytest.mark.usefixtures("wire")
def test_outputs_of_a_step_have_to_be_alike() -> None:
    source = Exchange(CPU)
    source.send(output(0), torch.ones(2, 3))
    source.send(output(0, ministage=5), torch.ones(2, 4))

    with pytest.raises(RefusedError, match=r"micro-batch 1 is float32 of shape \(2, 4\), and one before it float32"):
        source.send(output(1), torch.ones(2, 4))


@pytest.mark.usefixtures("wire")
@pytest.mark.parametrize("given", [torch.ones(2, dtype=torch.complex64), torch.ones((1,) * 9)])
def test_outputs_that_cannot_be_sent(given: Tensor) -> None:
    with pytest.raises(RefusedError, match=r"a pipeline sends float32, float64, .* of up to 8 dimensions"):
        Exchange(CPU).send(output(0), given)
