"""Generations of an elastic training: its members, who holds which part of the state, and what is whole. Pure.

A generation is a process group. Its members take what the members of the one before hold, each its own part; where a
part is missing or was being changed, all go back to the last checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Generation:
    """As the coordinator has ordered it."""

    number: int
    """From 1."""
    members: tuple[str, ...]
    """By rank: those that stay, in their order, then those that join."""

    def to_json(self) -> str:
        """One line, in which the coordinator orders it."""
        return json.dumps({"generation": self.number, "members": self.members})

    @classmethod
    def from_json(cls, line: str | bytes) -> Generation:
        """What `to_json` gave."""
        given = json.loads(line)
        return cls(given["generation"], tuple(given["members"]))


@dataclass(frozen=True, slots=True)
class Layout:
    """Who holds which part of each layer's vector."""

    members: tuple[str, ...]
    shares: tuple[float, ...]

    def among(self, members: Sequence[str]) -> tuple[float, ...] | None:
        """Shares of other members in their order; None: one that holds anything is not there, or at another place."""
        held = dict(zip(self.members, self.shares, strict=True))
        holders = [name for name in self.members if held[name]]
        if [name for name in members if held.get(name)] != holders:
            return None
        return tuple(held.get(name, 0.0) for name in members)


@dataclass(frozen=True, slots=True)
class Held:
    """What one member brings along."""

    layout: Layout
    step: int
    """Steps that are done."""
    samples: int
    """That they had."""
    saved_step: int
    """Of the last checkpoint that its members have taken part in."""
    is_whole: bool
    """Nothing of it was being changed when its generation broke."""


def even_layout(members: Sequence[str]) -> Layout:
    """The same for each."""
    return Layout(tuple(members), (1 / len(members),) * len(members))


def common(held: Sequence[Held | None], members: Sequence[str]) -> Held | None:
    """What the members can go on with; None: a part is missing, is not whole, or is of another step.

    Args:
        held: by rank; None: it has just joined.
        members: by rank.
    """
    first = next((one for one in held if one is not None), None)
    if first is None or (shares := first.layout.among(members)) is None:
        return None
    parts = [one for one, share in zip(held, shares, strict=True) if share]
    return first if first.is_whole and all(one == first for one in parts) else None
