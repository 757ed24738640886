"""A write to the kernel, as a value."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum

from services._host.netlink.objects import Action, Clsact, FdbEntry, Filter

Target = Clsact | Action | Filter | FdbEntry
OperationKey = tuple[str, int, str]


class OperationKind(StrEnum):
    """How an object is written."""

    ADD = "add"
    """NLM_F_CREATE | NLM_F_EXCL: no existing object is overwritten."""
    REPLACE = "replace"
    """In place, by handle or index (NLM_F_CREATE | NLM_F_REPLACE)."""
    DELETE = "delete"


class Phase(IntEnum):
    """Order of writes: a missing rule is slow but correct, a wrong one is a black hole, so wrong ones come first."""

    PREREQUISITES = 1
    """clsact, and static forwarding entries."""
    ACTIONS = 2
    WRONG = 3
    """Filters that lead to a wrong VTEP."""
    MISSING = 4
    STALE = 5
    UNUSED = 6
    """Managed actions without references."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One write. Its target holds all that the codec needs."""

    kind: OperationKind
    target: Target
    """The desired object; of a DELETE the existing one."""
    phase: Phase
    before: Target | None = None
    """The existing object."""
    reason: str = ""

    @property
    def key(self) -> OperationKey:
        """Identity of the object, whatever its content: (type, ifindex or index, MAC or similar)."""
        target = self.target
        if isinstance(target, Filter):
            return ("filter", target.ifindex, target.mac or f"{target.pref}/{target.handle:#x}")
        if isinstance(target, FdbEntry):
            return ("fdb", target.ifindex, f"{target.mac} {target.vlan}")
        if isinstance(target, Action):
            return ("action", target.index, target.kind)
        return ("clsact", target.ifindex, "")
