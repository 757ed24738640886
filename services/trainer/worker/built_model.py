"""The user's model without its values, which are computed one after another; each rank keeps its part of them.

Where `build()` cannot be recorded (`services._jobs.recorded_build`), the model is there as a whole at first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from services._jobs.recorded_build import RecordedBuild, UnrecordableError, recorded
from services._jobs.user_module import UserCodeError, call


@dataclass(slots=True)
class BuiltModel:
    """A model, and what its parameters are computed by."""

    model: nn.Module
    recording: RecordedBuild | None = None
    """None: all values are in the model."""
    whole_because: str = ""
    """Why it could not be recorded."""

    def parts(self, owned: Mapping[str, slice]) -> dict[str, Tensor]:
        """Compute the values; empty where the model has them already.

        Args:
            owned: which elements of a parameter, as one row, are returned; by its name in the model, which goes on
                without values. Parameters and buffers that are not named here are put into the model.
        """
        if self.recording is None:
            return {}
        found: dict[str, Tensor] = {}
        held = dict(self.model.named_parameters()) | dict(self.model.named_buffers())
        for name, value in self.recording.values():
            if name in owned:
                found[name] = value.reshape(-1)[owned[name]].clone()
            else:
                replace(self.model, held[name], value)
        self.recording = None
        return found

    @property
    def has_shared_parameters(self) -> bool:
        """Whether a parameter stands in several places."""
        places = self.model.named_parameters(remove_duplicate=False)
        return sum(1 for _ in places) > sum(1 for _ in self.model.parameters())


def build_model(build: Callable[[], Any], name: str) -> BuiltModel:
    """What the user's function returns, without values where that is possible.

    Raises:
        UserCodeError: it fails, or returns something else.
    """

    def built() -> nn.Module:
        model = call(build, name)
        if not isinstance(model, nn.Module):
            raise UserCodeError(f"{name} gives a {type(model).__name__}, not a torch.nn.Module")
        return model

    try:
        return BuiltModel(*recorded(built))
    except (UnrecordableError, UserCodeError) as error:  # also for want of values: then it is no error
        return BuiltModel(built(), whole_because=str(error))


def replace(model: nn.Module, old: Tensor, value: Tensor) -> None:
    """Put a value in every place of a parameter or buffer."""
    new = nn.Parameter(value, requires_grad=old.requires_grad) if isinstance(old, nn.Parameter) else value
    for module in model.modules():
        parameters = module.named_parameters(recurse=False, remove_duplicate=False)
        buffers = module.named_buffers(recurse=False, remove_duplicate=False)
        for key in [key for key, held in (*parameters, *buffers) if held is old]:
            setattr(module, key, new)


def emptied(model: nn.Module, parameter: nn.Parameter) -> None:
    """Leave a parameter without elements, on the CPU."""
    if parameter.is_meta:
        replace(model, parameter, torch.empty(0, dtype=parameter.dtype))
    else:
        parameter.data = parameter.new_empty(0)
