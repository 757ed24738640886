"""Micro-batches' outputs and gradients between the groups of a pipeline, by gloo in the processor's memory.

gloo sends nothing before the target has said where to, so a message is expected ahead, while what comes before it is
computed. A gradient is like the output that it is of; of a ministage's outputs the first one from each source has a
header in each step, and the others have to be like it. NCCL is not used: two ranks' messages in both directions are
put into one order there, and would wait for each other.
"""

from __future__ import annotations

from itertools import chain
from typing import Final, NamedTuple

import torch
from torch import Tensor
from torch import distributed as dist

from services.trainer.worker.gather import rank_failures
from services.trainer.worker.plan_file import RefusedError
from services.trainer.worker.routes import Message

_MOST_DIMENSIONS: Final = 8
_DTYPES: Final = (
    *(torch.float32, torch.float64, torch.bfloat16, torch.float16),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
)
_Channel = tuple[int, int, int]
"""Of outputs and their gradients: rank that has computed the output, rank that has not, and the ministage."""


class Form(NamedTuple):
    """Of a tensor."""

    dtype: torch.dtype
    shape: tuple[int, ...]


class _Coming(NamedTuple):
    """What the source may send now."""

    buffer: Tensor
    work: dist.Work


class Exchange:
    """Messages of one rank in one step."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._forms: dict[_Channel, Form] = {}
        self._headers: dict[_Channel, _Coming] = {}
        self._coming: dict[Message, _Coming] = {}
        self._sent: list[list[tuple[dist.Work, Tensor]]] = [[]]
        """By pass; a tensor has to stay until it was received."""
        self._own: dict[Message, Tensor | None] = {}
        """From this rank to itself."""

    def send(self, message: Message, tensor: Tensor | None) -> None:
        """Does not wait.

        Args:
            message: which one.
            tensor: None: a gradient that is none, as nothing flows through what comes after.

        Raises:
            RefusedError: it has no form that a header has room for, or is not like those of the step before it.
            RankFailedError: the target has failed.
        """
        if message.source == message.target:
            self._own[message] = tensor
            return
        channel = _channel(message)
        if tensor is None:
            form = self._forms[channel]
            if not form.dtype.is_floating_point:
                return
            tensor = torch.zeros(form.shape, dtype=form.dtype)
        form = Form(tensor.dtype, tuple(tensor.shape))
        if channel not in self._forms:
            self._start(message, _header(form), is_header=True)
        if self._forms.setdefault(channel, form) != form:
            raise RefusedError(
                f"where the plan cuts the layers, micro-batch {message.microbatch} is {_text(form)}, and one before it "
                f"{_text(self._forms[channel])}: in a pipeline those of a step have to be alike"
            )
        self._start(message, tensor.detach().cpu().contiguous())

    def expect(self, message: Message) -> None:
        """Let the source send it, as far as its size is known; does not wait. It has to be received in this step.

        Raises:
            RankFailedError: the source has failed.
        """
        channel = _channel(message)
        form = self._forms.get(channel)
        if message.source == message.target:
            return
        if form is None and message.is_gradient:
            return  # of an output that is still to be sent
        if form is None and channel not in self._headers:
            header = torch.empty(2 + _MOST_DIMENSIONS, dtype=torch.int64)
            self._headers[channel] = self._await(message, header, is_header=True)
        elif form is not None and message not in self._coming and _is_sent(message, form):
            self._coming[message] = self._await(message, torch.empty(form.shape, dtype=form.dtype))

    def receive(self, message: Message) -> Tensor | None:
        """Wait for it; None: it is a gradient of whole numbers, or nothing flows through what comes after.

        Raises:
            RankFailedError: the source has failed.
        """
        if message.source == message.target:
            return self._own.pop(message)
        channel = _channel(message)
        self.expect(message)
        if channel not in self._forms:
            header = self._headers.pop(channel)
            with rank_failures():
                header.work.wait()
            self._forms[channel] = _form(header.buffer)
            self.expect(message)
        if message not in self._coming:
            return None
        coming = self._coming.pop(message)
        with rank_failures():
            coming.work.wait()
        return coming.buffer.to(self._device)

    def drain(self, passes_left: int) -> None:
        """Wait until what was sent was received, and begin a pass.

        Args:
            passes_left: of so many of the last passes it need not be.

        Raises:
            RankFailedError: a target has failed.
        """
        count = max(len(self._sent) - passes_left, 0)
        done, self._sent = self._sent[:count], [*self._sent[count:], []]
        with rank_failures():
            for work, _ in chain.from_iterable(done):
                work.wait()

    def _start(self, message: Message, tensor: Tensor, *, is_header: bool = False) -> None:
        with rank_failures():
            work = dist.isend(tensor, message.target, tag=message.tag(is_header=is_header))
        assert work is not None
        self._sent[-1].append((work, tensor))

    def _await(self, message: Message, buffer: Tensor, *, is_header: bool = False) -> _Coming:
        with rank_failures():
            work = dist.irecv(buffer, message.source, tag=message.tag(is_header=is_header))
        assert work is not None
        return _Coming(buffer, work)


def _channel(message: Message) -> _Channel:
    ends = (message.target, message.source) if message.is_gradient else (message.source, message.target)
    return (*ends, message.ministage)


def _is_sent(message: Message, form: Form) -> bool:
    return form.dtype.is_floating_point or not message.is_gradient


def _header(form: Form) -> Tensor:
    if form.dtype not in _DTYPES or len(form.shape) > _MOST_DIMENSIONS:
        kinds = ", ".join(str(dtype).removeprefix("torch.") for dtype in _DTYPES)
        raise RefusedError(
            f"where the plan cuts the layers, an output is {_text(form)}: a pipeline sends {kinds} of up to "
            f"{_MOST_DIMENSIONS} dimensions"
        )
    unused = [0] * (_MOST_DIMENSIONS - len(form.shape))
    return torch.tensor([_DTYPES.index(form.dtype), len(form.shape), *form.shape, *unused], dtype=torch.int64)


def _form(header: Tensor) -> Form:
    dtype, dimensions, *shape = header.tolist()
    return Form(_DTYPES[dtype], tuple(shape[:dimensions]))


def _text(form: Form) -> str:
    return f"{str(form.dtype).removeprefix('torch.')} of shape {form.shape}"
