"""A trained network as bytes: tensors and plain values, so reading it runs no code (``weights_only``)."""

from __future__ import annotations

import io
import pickle
from dataclasses import asdict
from typing import Any, Final

import torch

from schemas.predictions import Objective
from services.advisor.core.preparation import Preparation
from services.advisor.core.thesis.inputs import Inputs, SeriesScale
from services.advisor.core.thesis.learning import Trained
from services.advisor.core.thesis.model import FittedClassifier, FittedRegressor
from services.advisor.core.thesis.network import Architecture, Norm, Output, Sizes

FORMAT: Final = "turnbuckle thesis network 1"
_ARCHIVE: Final = b"PK\x03\x04"
"""How torch's files begin; its older format, a bare pickle, is not read."""


class UnreadableNetworkError(ValueError):
    """The bytes are no network that this version can read."""


def to_bytes(fitted: FittedRegressor | FittedClassifier) -> bytes:
    """Return everything that was learned."""
    prepared, scale = fitted.inputs.preparation, fitted.inputs.series_scale
    arrays = {
        "kept": prepared.kept, "logarithmic": prepared.logarithmic, "middle": prepared.middle,
        "scale": prepared.scale, "series_middle": scale.middle, "series_deviation": scale.deviation,
    }  # fmt: skip
    architecture = asdict(fitted.architecture) | {
        name: str(getattr(fitted.architecture, name)) for name in ("objective", "output", "norm")
    }
    content = {
        "format": FORMAT,
        "architecture": architecture,
        "layer_types": list(fitted.inputs.layer_types),
        "unit": fitted.unit if isinstance(fitted, FittedRegressor) else None,
        "inputs": {name: torch.from_numpy(values.copy()) for name, values in arrays.items()},
        "tensors": {name: torch.from_numpy(values.copy()) for name, values in fitted.trained.tensors.items()},
        "curves": {name: torch.from_numpy(values.copy()) for name, values in fitted.curves.items()},
    }
    file = io.BytesIO()
    torch.save(content, file)
    return file.getvalue()


def from_bytes(data: bytes) -> FittedRegressor | FittedClassifier:
    """Return what `to_bytes` was given.

    Raises:
        UnreadableNetworkError: The bytes are damaged, hold anything but tensors and plain values, or are of another
            version.
    """
    if not data.startswith(_ARCHIVE):
        raise UnreadableNetworkError("this is no stored network: no archive of tensors")
    try:
        content = torch.load(io.BytesIO(data), weights_only=True, map_location="cpu")
    except (RuntimeError, pickle.UnpicklingError, EOFError, ValueError, KeyError) as error:
        raise UnreadableNetworkError(f"this is no stored network: {error}") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise UnreadableNetworkError("this is no stored network, or one of another version")
    return _fitted(content)


def _fitted(content: dict[str, Any]) -> FittedRegressor | FittedClassifier:
    known = {name: values.numpy() for name, values in content["inputs"].items()}
    inputs = Inputs(
        Preparation(*(known[name] for name in ("kept", "logarithmic", "middle", "scale"))),
        tuple(content["layer_types"]),
        SeriesScale(known["series_middle"], known["series_deviation"]),
    )
    said = content["architecture"]
    architecture = Architecture(
        Objective(said["objective"]), Output(said["output"]), Norm(said["norm"]), said["static_width"],
        Sizes(**said["sizes"]),
    )  # fmt: skip
    trained = Trained(
        *({name: values.numpy() for name, values in content[part].items()} for part in ("tensors", "curves"))
    )
    if content["unit"] is None:
        return FittedClassifier(inputs, architecture, trained)
    return FittedRegressor(inputs, architecture, trained, float(content["unit"]))
