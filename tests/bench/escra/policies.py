"""The policies that are compared, by name, in the order of the tables; and variants of ours with other constants.

A variant's name is a policy's name, a colon and constants: ``waterfill:HEADROOM_US=10000,MEMORY_PERIODS=100``,
``escra:kappa=0.5,gamma=0.05``. Names in capitals are constants of the policy's module, of the dead band, of the memory
policy or of a pipeline; kappa, gamma, upsilon, window and delta are the application's parameters (`AppSpec`),
overridden.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType, ModuleType
from typing import Final, Literal, TypeAlias

from services.allocator.cpu import dead_band
from services.allocator.cpu import escra as policy_escra
from services.allocator.cpu import pipeline as cpu_pipeline
from services.allocator.cpu import waterfill as policy_waterfill
from services.allocator.memory import pipeline as memory_pipeline
from services.allocator.memory import policy as memory

Family: TypeAlias = Literal["none", "static", "autopilot", "vpa", "captain", "escra", "waterfill"]

TIME_COMPRESSION: Final = 10
"""`vpa` and `autopilot-60s` act every 6 s instead of every minute, and remember a tenth as long: a run of some ten
seconds shows how they act. Printed wherever they are shown. A day of `vpa` is one minute: `peers.vpa`."""
_FIXED: Final = frozenset({"PAGE_BYTES", "PERIOD_US", "RECLAIM_BYTES", "MAX_WINDOW", "UNLIMITED"})
"""Constants that others import by name or that shape arrays: setting them in their module would do half of it."""
SPEC_PARAMETERS: Final = ("kappa", "gamma", "upsilon", "window", "delta")
"""Fields of `AppSpec` that a variant of ours may override."""


@dataclass(frozen=True)
class PolicySpec:
    """One policy with its constants."""

    name: str
    family: Family
    constants: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    title: str = ""
    """For tables and figures."""
    note: str = ""
    """What a reader of the tables must know of it."""

    @property
    def ours(self) -> bool:
        """Whether it runs the product's own code, memory guard included."""
        return self.family in {"escra", "waterfill"}

    @property
    def limited(self) -> bool:
        """Whether it sets limits at all."""
        return self.family != "none"

    @property
    def needs_profile(self) -> bool:
        """Whether it cannot start without a profile."""
        return self.limited and not self.ours


def _spec(name: str, family: Family, title: str, note: str = "", **constants: float) -> PolicySpec:
    return PolicySpec(name, family, MappingProxyType(constants), title, note)


_COMPRESSED: Final = f"acts every 6 s: its minute is compressed by {TIME_COMPRESSION}"
_COMPRESSED_DAY: Final = f"{_COMPRESSED}, its day of 24 h to one minute"
_TUNED: Final = "weights tuned for it on the shop and the cache"
_CAPTAIN: Final = "begins as after 150 s on the profile; knows no memory: limits of static 1.5x"

POLICIES: Final[dict[str, PolicySpec]] = {
    spec.name: spec
    for spec in (
        _spec("none", "none", "no limits"),
        _spec("static-0.75", "static", "static 0.75x", factor=0.75),
        _spec("static-1.0", "static", "static 1.0x", factor=1.0),
        _spec("static-1.5", "static", "static 1.5x", factor=1.5),
        _spec("autopilot-1s", "autopilot", "Autopilot 1 s", _TUNED, window_periods=10),
        _spec(
            "autopilot-60s",
            "autopilot",
            "Autopilot 60 s",
            f"{_TUNED}; {_COMPRESSED}",
            window_periods=600 / TIME_COMPRESSION,
        ),
        _spec("vpa", "vpa", "VPA", _COMPRESSED_DAY, act_periods=600 / TIME_COMPRESSION),
        _spec("captain-0.02", "captain", "Captain 0.02", _CAPTAIN, target=0.02),
        _spec("captain-0.06", "captain", "Captain 0.06", _CAPTAIN, target=0.06),
        _spec("captain-0.1", "captain", "Captain 0.1", _CAPTAIN, target=0.1),
        _spec("captain-0.2", "captain", "Captain 0.2", _CAPTAIN, target=0.2),
        _spec("escra", "escra", "escra"),
        _spec("waterfill", "waterfill", "waterfill"),
    )
}


def parse(name: str) -> PolicySpec:
    """A policy or a variant of ours by its name.

    Raises:
        ValueError: there is no such policy or constant, or the value is no number; the message says what there is.
    """
    if name in POLICIES:
        return POLICIES[name]
    base, colon, rest = name.partition(":")
    if base not in POLICIES or not colon:
        raise ValueError(f"no policy {name!r}: there are {', '.join(POLICIES)}")
    if not POLICIES[base].ours:
        raise ValueError(f"{base} has no variants: only escra and waterfill have")
    constants: dict[str, float] = {}
    for part in rest.split(","):
        key, equals, value = part.partition("=")
        if not equals or not _is_constant(base, key):
            raise ValueError(f"{part!r} of {name!r}: there are {', '.join(constant_names(base))}")
        try:
            constants[key] = float(value)
        except ValueError:
            raise ValueError(f"{part!r} of {name!r}: {value!r} is no number") from None
    return PolicySpec(name, POLICIES[base].family, MappingProxyType(constants), name)


def modules_of(family: str) -> tuple[ModuleType, ...]:
    """Where the constants of a policy of ours are looked for, in this order."""
    policy = {"escra": policy_escra, "waterfill": policy_waterfill}[family]
    return (policy, dead_band, cpu_pipeline, memory, memory_pipeline)


def constant_names(family: str) -> list[str]:
    """Constants that a variant may set."""
    names = {
        name
        for module in modules_of(family)
        for name, value in vars(module).items()
        if name.isupper() and not name.startswith("_") and name not in _FIXED and isinstance(value, int | float)
    }
    return [*SPEC_PARAMETERS, *sorted(names)]


def module_of(family: str, constant: str) -> ModuleType | None:
    """The module that holds a constant; None: it is a parameter of the application."""
    return next((module for module in modules_of(family) if hasattr(module, constant)), None)


def _is_constant(family: str, name: str) -> bool:
    return name in constant_names(family)
