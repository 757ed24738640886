"""One range's parameters and moments: gradients are summed in order of rank, then torch's optimizer makes the step.

Both are elementwise, so that the result has the same bits wherever the vector is cut, however often a range is moved,
and in whatever order pushes arrive. Optimizers of which that does not hold are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Final, Literal

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from services._jobs.aggregation_frames import VALUE_BYTES

_KINDS: Final[Mapping[str, Callable[..., object]]] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}
_FP32: Final = np.dtype("<f4")
_MOMENTS: Final = {
    "sgd": ("momentum_buffer",),
    "adam": ("exp_avg", "exp_avg_sq"),
    "adamw": ("exp_avg", "exp_avg_sq"),
}
"""Names in torch, each as long as the range; adam and adamw have the number of steps beside them."""


class OptimizerSpec(BaseModel):
    """Which optimizer of torch.optim, and its options; those that are missing are torch's."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["sgd", "adam", "adamw"]
    lr: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Of sgd."""
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.999)
    """Of adam and adamw."""
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0

    @property
    def vectors(self) -> int:
        """Moments that a range has at most."""
        return len(_MOMENTS[self.kind])

    def has_moments(self, vectors: Sequence[str], scalars: Mapping[str, float]) -> bool:
        """Whether these are all that it keeps of a range beside parameters, or nothing, as before its first step."""
        counts = {"step"} if vectors and self.kind != "sgd" else set()
        return tuple(vectors) in ((), _MOMENTS[self.kind]) and set(scalars) == counts

    def optimizer(self, parameters: Tensor) -> torch.optim.Optimizer:
        """The optimizer of one range."""
        own: dict[str, Any] = {"momentum": self.momentum} if self.kind == "sgd" else {"betas": self.betas}
        made = _KINDS[self.kind]([parameters], lr=self.lr, weight_decay=self.weight_decay, foreach=False, **own)
        assert isinstance(made, torch.optim.Optimizer)
        return made


class StateError(ValueError):
    """A state that does not fit its range; the text says why."""


class RangeState:
    """Parameters and moments of one range, in fp32 on the processor."""

    def __init__(self, spec: OptimizerSpec, parameters: bytes | bytearray) -> None:
        self._spec = spec
        self._parameters = _tensor(parameters)
        self._optimizer = spec.optimizer(self._parameters)

    def step(self, gradients: Sequence[bytes | bytearray]) -> None:
        """Sum one gradient of each rank, in order of rank, and update the parameters."""
        total = np.frombuffer(gradients[0], _FP32).copy()
        for gradient in gradients[1:]:
            total += np.frombuffer(gradient, _FP32)
        self._parameters.grad = torch.from_numpy(total)
        self._optimizer.step()
        self._parameters.grad = None

    @property
    def parameters(self) -> bytes:
        """As they are now."""
        return _bytes(self._parameters)

    def vector(self, name: str) -> tuple[bytes, dict[str, float]] | None:
        """One moment, and the numbers that are not per element; None: there is none of this name, or none yet."""
        held = self._moments()
        found = held.get(name)
        if not isinstance(found, Tensor) or not found.ndim:
            return None
        return _bytes(found), _scalars(held)

    def packed(self) -> tuple[tuple[str, ...], dict[str, float], bytes]:
        """Names of the moments, numbers that are not per element, and the content of `StateHeader`."""
        held = self._moments()
        vectors = {name: value for name, value in held.items() if isinstance(value, Tensor) and value.ndim}
        content = b"".join(map(_bytes, (self._parameters, *vectors.values())))
        return tuple(vectors), _scalars(held), content

    def _moments(self) -> dict[str, object]:
        state: dict[str, object] = self._optimizer.state[self._parameters]
        return state

    @classmethod
    def unpacked(
        cls, spec: OptimizerSpec, vectors: Sequence[str], scalars: Mapping[str, float], content: bytes | bytearray
    ) -> RangeState:
        """The state that `packed` has described, to the bit.

        Raises:
            StateError: it is not what this optimizer has.
        """
        if not spec.has_moments(vectors, scalars):
            raise StateError(f"not the moments of {spec.kind}: {', '.join((*vectors, *scalars))}")
        if len(content) % (VALUE_BYTES * (len(vectors) + 1)):
            raise StateError(f"{len(content)} bytes are not parameters and {len(vectors)} vectors")
        length = len(content) // (len(vectors) + 1)
        parts = [content[start : start + length] for start in range(0, len(content), length)]
        state = cls(spec, parts[0])
        moments = {name: _tensor(part) for name, part in zip(vectors, parts[1:], strict=True)}
        moments |= {name: torch.tensor(value, dtype=torch.float32) for name, value in scalars.items()}
        if moments:
            state._moments().update(moments)
        return state


def _scalars(moments: Mapping[str, object]) -> dict[str, float]:
    return {name: float(value) for name, value in moments.items() if isinstance(value, Tensor) and not value.ndim}


def _tensor(content: bytes | bytearray) -> Tensor:
    """A copy: torch writes where it is, which bytes do not allow."""
    return torch.from_numpy(np.frombuffer(content, _FP32).copy())


def _bytes(tensor: Tensor) -> bytes:
    return tensor.detach().numpy().tobytes()
