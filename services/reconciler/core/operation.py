"""One write to the kernel, as a value."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum

from services._host.netlink.objects import Action, Clsact, FdbEntry, Filter

Target = Clsact | Action | Filter | FdbEntry
OperationKey = tuple[str, int, str]


class OperationKind(StrEnum):
    """How it is written."""

    ADD = "add"
    """NLM_F_CREATE | NLM_F_EXCL: nobody else's is overwritten."""
    REPLACE = "replace"
    """In place, by handle or index (NLM_F_CREATE | NLM_F_REPLACE)."""
    DELETE = "delete"


class Phase(IntEnum):
    """Order of writes: a missing rule is slow but right, a wrong one is a black hole, so wrong ones come first."""

    GROUND = 1
    """clsact, and static forwarding entries."""
    ACTIONS = 2
    WRONG = 3
    """Filters that lead elsewhere than they should."""
    MISSING = 4
    STALE = 5
    UNUSED = 6
    """Actions of ours that nothing refers to."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One write. Its target says all that the codec needs."""

    kind: OperationKind
    target: Target
    """What should be; of a DELETE what is."""
    phase: Phase
    before: Target | None = None
    """What is there now."""
    reason: str = ""

    @property
    def key(self) -> OperationKey:
        """Same object, same key, whatever its content: (what, ifindex or index, MAC or the like)."""
        target = self.target
        if isinstance(target, Filter):
            return ("filter", target.ifindex, target.mac or f"{target.pref}/{target.handle:#x}")
        if isinstance(target, FdbEntry):
            return ("fdb", target.ifindex, f"{target.mac} {target.vlan}")
        if isinstance(target, Action):
            return ("action", target.index, target.kind)
        return ("clsact", target.ifindex, "")
