"""What the user's functions give, checked: a model; then a data set, a loss and an optimizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from services._jobs.user_module import UserCodeError, call, load, output_on_stderr, own_modules_hidden
from services.trainer.worker.built_model import BuiltModel, build_model
from services.trainer.worker.options import Options
from services.trainer.worker.refusals import check_optimizer


@dataclass(frozen=True, slots=True)
class UserCode:
    """Their data set and functions."""

    dataset: torch.utils.data.Dataset[Any]
    dataset_samples: int
    loss: Callable[[Tensor, Tensor], Tensor]
    _optimizer: Callable[[list[nn.Parameter]], object]
    _optimizer_name: str

    def optimizer(self, parameters: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
        """Their optimizer over these parameters.

        Raises:
            RefusedError: it cannot be used on cut vectors.
            UserCodeError: their function fails.
        """
        given = list(parameters)
        with output_on_stderr():
            return check_optimizer(call(self._optimizer, self._optimizer_name, given), given)


def load_model(options: Options) -> BuiltModel:
    """Import their module and call what builds the model; all ranks draw the same parameters.

    Raises:
        UserCodeError: the module or function cannot be used.
    """
    with output_on_stderr(), own_modules_hidden():
        torch.manual_seed(options.seed)
        return build_model(_function(options.model), options.model)


def load_user_code(options: Options) -> UserCode:
    """Import their modules and call what builds the data set, once the model has its values: both may draw.

    Raises:
        UserCodeError: a module or function cannot be used.
    """
    with output_on_stderr(), own_modules_hidden():
        dataset = call(_function(options.data), options.data)
        loss, optimizer = _function(options.loss), _function(options.optimizer)
    samples = len(dataset) if hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__") else 0
    if samples < 1:
        raise UserCodeError(
            f"{options.data} gives a {type(dataset).__name__}: it has to return a data set with a length and "
            "samples by index, each a pair (input, target)"
        )
    return UserCode(dataset, samples, loss, optimizer, options.optimizer)


def _function(name: str) -> Callable[..., Any]:
    found = load(name)
    if not callable(found):
        raise UserCodeError(f"{name} is a {type(found).__name__}, not a function")
    return found  # type: ignore[no-any-return]  # what it returns is checked
