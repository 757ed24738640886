"""Variants of our policies, one constant changed at a time: what `run --sensitivity` measures."""

from __future__ import annotations

from typing import Final

from schemas.apps import AppSpec
from services.allocator.cpu import waterfill as policy_waterfill
from tests.bench.escra.policies import parse

ESCRA: Final[dict[str, tuple[float, ...]]] = {
    "kappa": (0.4, 1.0),
    "gamma": (0.05, 0.1, 0.4),
    "upsilon": (5.0, 10.0, 40.0),
    "window": (5, 20),
}
"""The thesis' parameters (2.6.1: 0.8, 0.2, 20); window: periods."""
FACTORS: Final = (0.5, 2.0)
"""Each constant of waterfill is multiplied with these."""

NO_CHOICES: Final = ("WEIGHT_SCALE",)
"""A resolution."""


def variants() -> list[str]:
    """Names of all variants, those without a change first."""
    names = ["escra", "waterfill"]
    for parameter, values in ESCRA.items():
        default = float(AppSpec.model_fields[parameter].default)
        names += [f"escra:{parameter}={value:g}" for value in values if value != default]
    for constant, value in vars(policy_waterfill).items():
        known = constant.isupper() and not constant.startswith("_") and isinstance(value, int | float)
        if known and constant not in NO_CHOICES:
            changed = {type(value)(value * factor) for factor in FACTORS} - {value}
            names += [f"waterfill:{constant}={other}" for other in sorted(changed)]
    for name in names:
        parse(name)
    return names
