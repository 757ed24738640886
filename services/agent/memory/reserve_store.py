"""Reserve stores: in a file that the watchdog shares, and in memory for a simulated host."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

from services.agent.memory.reserve_file import Amounts, ReserveFile, take_out
from services.agent.ports import Reserve

_NOTHING = Reserve(0, 0)


class ReserveStoreBase(ABC):
    """`services.agent.ports.ReserveStore`, given where it is kept."""

    @abstractmethod
    def read(self) -> dict[str, Reserve]:
        """All of them."""

    @abstractmethod
    def _change(self, app: str, rule: Callable[[Amounts], Amounts]) -> tuple[Amounts, Amounts] | None:
        """Replace one reserve; (before, after), or None: it cannot be had now."""

    def give(self, app: str, given_bytes: int) -> Reserve:
        """Set what was given so far; never below what is used. Where the store is locked, an empty reserve."""
        changed = self._change(app, lambda amounts: (max(given_bytes, amounts[1]), amounts[1]))
        return _NOTHING if changed is None else Reserve(*changed[1])

    def spend(self, app: str, wanted_bytes: int) -> int:
        """Take up to so much out; returns how much, once that is written down."""
        changed = self._change(app, lambda amounts: take_out(amounts, wanted_bytes))
        return 0 if changed is None else changed[1][1] - changed[0][1]

    def refund(self, app: str, unspent_bytes: int) -> None:
        """Undo a `spend`. Where the store is locked the memory counts as used: lost, never granted twice."""
        self._change(app, lambda amounts: (amounts[0], max(amounts[1] - unspent_bytes, 0)))

    def void(self, app: str) -> None:
        """What is left is no longer held."""
        self._change(app, lambda amounts: (amounts[0], max(amounts)))


class FileReserveStore(ReserveStoreBase):
    """Shared with the watchdog, and kept when the agent dies.

    A file that is lost or unreadable is an empty store: given and used start again at nothing, so a caller that gives
    by absolute figures has to read the store first.
    """

    def __init__(self, path: Path) -> None:
        self._file = ReserveFile(path)

    def read_container_max(self) -> dict[str, int]:
        """Of the applications that have one, bytes."""
        return self._file.read_container_max()

    def set_container_max(self, app: str, most_bytes: int | None) -> bool:
        """None: there is none."""
        return self._file.set_container_max(app, most_bytes)

    def read(self) -> dict[str, Reserve]:
        """All of them."""
        return {app: Reserve(*amounts) for app, amounts in self._file.read().items()}

    def _change(self, app: str, rule: Callable[[Amounts], Amounts]) -> tuple[Amounts, Amounts] | None:
        return self._file.change(app, rule)
