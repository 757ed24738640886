"""Where the pages of one slab are, as a fold over what happens to it. Pure.

The local disk has every page of the swap device at all times; remote memory is a second copy, which answers reads.
Whatever becomes of a daemon, the network or the mapper, a slab can fall back to its disk. Every mapping of a slab is an
attempt with a number of its own and an export of its own, which takes one connection and ends with it: an event of an
earlier attempt changes nothing, and contents of an ended attempt are never read again.

    unmapped --Chosen--> mapping --Synchronized--> remote --Evicted--> draining --Switched--> disk --Chosen--> mapping
                         mapping, remote --Lost--> draining;  mapping --Evicted, Restarted--> draining
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

_LABEL_DIGITS: Final = 16


def export_label(name: str) -> str:
    """What an export is called where others may read: a digest of its name, which is a secret."""
    return hashlib.sha256(name.encode()).hexdigest()[:_LABEL_DIGITS]


class State(Enum):
    """Where reads of a slab go, and what is under way."""

    UNMAPPED = "unmapped"
    """Disk only, as from the beginning."""
    MAPPING = "mapping"
    """Disk; a daemon was chosen, the mirror is being built and copies the disk to it."""
    REMOTE = "remote"
    """Remote memory; writes go to both."""
    DRAINING = "draining"
    """The mirror is being taken apart; once it is, only the disk is used."""
    DISK = "disk"
    """Disk only, after a mapping."""


class Step(Enum):
    """What has to be carried out for a slab in its present state; each can be repeated."""

    NOTHING = "nothing"
    BUILD = "build"
    """Take a slab at the daemon, connect, make the mirror and wait until it is synchronized."""
    TAKE_APART = "take apart"
    """Use the disk alone, then disconnect."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """A daemon was chosen: the next attempt begins."""

    daemon: str
    label: str = ""
    """Of its export, see `export_label`."""
    host: str = ""
    """The daemon's, by its name on the bus."""


@dataclass(frozen=True, slots=True)
class Synchronized:
    """The mirror has all pages of the disk."""

    attempt: int


@dataclass(frozen=True, slots=True)
class Evicted:
    """The daemon wants its memory back."""

    attempt: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Lost:
    """The daemon cannot be reached or refuses, or its connection has ended: the kernel reads from the disk already."""

    attempt: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Switched:
    """The device uses the disk alone, and the connection is closed."""

    attempt: int


@dataclass(frozen=True, slots=True)
class Restarted:
    """The mapper begins anew, with the slab as it was written last: a half-built mirror is taken apart."""


Event = Chosen | Synchronized | Evicted | Lost | Switched | Restarted


@dataclass(frozen=True, slots=True)
class Slab:
    """One slab of a swap device."""

    number: int
    state: State = State.UNMAPPED
    attempt: int = 0
    """Mappings that were begun."""
    daemon: str = ""
    """Of the present attempt; empty where there is none."""
    label: str = ""
    """Of the present attempt's export."""
    reason: str = ""
    """Why the last mapping has ended, or is ending."""
    host: str = ""
    """That has given the memory of the present attempt, by its name on the bus."""

    @property
    def step(self) -> Step:
        """What has to be carried out now."""
        if self.state is State.MAPPING:
            return Step.BUILD
        return Step.TAKE_APART if self.state is State.DRAINING else Step.NOTHING


_NEXT: Final[dict[tuple[State, type[Event]], State]] = {
    (State.UNMAPPED, Chosen): State.MAPPING,
    (State.DISK, Chosen): State.MAPPING,
    (State.MAPPING, Synchronized): State.REMOTE,
    (State.MAPPING, Evicted): State.DRAINING,
    (State.MAPPING, Lost): State.DRAINING,
    (State.MAPPING, Restarted): State.DRAINING,
    (State.REMOTE, Evicted): State.DRAINING,
    (State.REMOTE, Lost): State.DRAINING,
    (State.DRAINING, Switched): State.DISK,
}
"""Every transition; any other event changes nothing."""


def apply(slab: Slab, event: Event) -> Slab:
    """The slab after an event; the same one where the event is late, doubled or of another attempt."""
    following = _NEXT.get((slab.state, type(event)))
    if following is None:
        return slab
    if isinstance(event, Chosen):
        attempt = slab.attempt + 1
        chosen = replace(slab, daemon=event.daemon, label=event.label, host=event.host)
        return replace(chosen, state=following, attempt=attempt, reason="")
    if not isinstance(event, Restarted) and event.attempt != slab.attempt:
        return slab
    if following is State.DISK:
        return replace(slab, state=following, daemon="", label="", host="")
    if isinstance(event, Evicted | Lost):
        return replace(slab, state=following, reason=event.reason)
    return replace(slab, state=following, reason="the mapper was started anew" if isinstance(event, Restarted) else "")
