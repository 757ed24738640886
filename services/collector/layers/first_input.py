"""Inputs of a model's first layer, of any number of samples: made up by shape, or out of what the user gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from services._jobs.user_module import UserCodeError, call

FirstInput = Callable[[int], Tensor]
"""So many samples, the same at every call."""


def of_example(example: Any) -> FirstInput:
    """Samples of the user's example input, again from its beginning where it has fewer.

    Raises:
        UserCodeError: it is no tensor with samples first.
    """
    if isinstance(example, tuple) and len(example) == 1:
        (example,) = example
    if not isinstance(example, Tensor) or example.dim() == 0 or not len(example):
        raise UserCodeError(f"the example input is a {type(example).__name__}, not one tensor with the samples first")
    given: Tensor = example
    return lambda samples: given[torch.arange(samples) % len(given)]


def of_data(dataset: Any, name: str) -> FirstInput:
    """Inputs of a data set whose samples are pairs (input, target), as a training job's.

    Raises:
        UserCodeError: it is none.
    """
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__") and len(dataset)):
        raise UserCodeError(
            f"{name} gives a {type(dataset).__name__}: it has to return a data set with a length and samples by index"
        )

    def collated(samples: int) -> Any:
        return torch.utils.data.default_collate([dataset[place % len(dataset)] for place in range(samples)])

    def first(samples: int) -> Tensor:
        batch = call(collated, f"reading {name}", samples)
        if not isinstance(batch, list | tuple) or len(batch) != 2 or not isinstance(batch[0], Tensor):
            raise UserCodeError(f"samples of {name} have to be pairs (input, target) that torch collates to tensors")
        return batch[0]

    return first


def cast(first_input: FirstInput, dtype: torch.dtype) -> FirstInput:
    """Whole numbers as they are, others in the type that the model computes in."""

    def given(samples: int) -> Tensor:
        found = first_input(samples)
        return found.to(dtype) if found.is_floating_point() else found

    return given
