"""The node's reserve of memory: what of it is given and used, and how much of it each container may take.

Accounting: the stored amounts, which outlive the agent, and what was last reported of them. The allocator frees what a
lower `left` sets free, so a report may only say what is also true of the limits beside it: what the watchdog spent
while no agent ran counts as used only once the limits that it raised have been read again.

Fair shares (decision 116): what is free is granted to who asks. Of several that ask at once those below their share,
which the allocator sends, come first: one above is not granted what they ask for up to their shares.

    asked   = what a container lacks, or will within a moment at its present growth (`ContainerMemory.asked_bytes`)
    kept    = sum of min(asked, share - limit), of each other container of the application on this node
    granted <= max(reserve - kept, share - limit)

Bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from services.agent.containers.container_set import ContainerSet
from services.agent.memory.policy import ContainerMemory, by_urgency
from services.agent.ports import Reserve, ReserveStore

CONFIRM_POLLS: Final = 10
"""A difference made by another process counts after so many polls (one per sample): the watchdog may be at work."""
NO_MAXIMUM: Final = 1 << 62


UNKNOWN_SHARE: Final = 0
"""Then nothing is kept for other containers."""


class Asking(NamedTuple):
    """One container that asks for memory."""

    asked_bytes: int
    """Beyond its limit."""
    limit_bytes: int


def is_above(share_bytes: int, limit_bytes: int) -> bool:
    """Whether a container has its share, or more."""
    return 0 < share_bytes <= limit_bytes


def grantable_bytes(share_bytes: int, limit_bytes: int, reserve_bytes: int, others: Iterable[Asking]) -> int:
    """The most that a container with this limit may be granted out of a reserve."""
    if share_bytes == UNKNOWN_SHARE:
        return reserve_bytes
    kept_bytes = sum(max(min(other.asked_bytes, share_bytes - other.limit_bytes), 0) for other in others)
    return min(max(reserve_bytes - kept_bytes, share_bytes - limit_bytes, 0), reserve_bytes)


@dataclass(frozen=True, slots=True)
class ReserveUpdate:
    """What an application's reserve on this node shall be."""

    app: str
    given_bytes: int
    container_max_bytes: int
    share_bytes: int = UNKNOWN_SHARE
    """Of each container."""


class ReserveReport(NamedTuple):
    """As batches and replies carry it."""

    given_bytes: int
    used_bytes: int


@dataclass(slots=True)
class _Account:
    """What was last reported."""

    given_bytes: int = 0
    used_bytes: int = 0
    container_max_bytes: int = NO_MAXIMUM
    """As updated, also of a previous agent."""
    share_bytes: int = UNKNOWN_SHARE
    """Until the first update."""
    unreconciled: Reserve | None = None
    polls: int = 0
    """So many polls in a row have seen `unreconciled`."""


class Reserves:
    """One node's reserves by application."""

    def __init__(self, store: ReserveStore) -> None:
        self._store = store
        self._accounts: dict[str, _Account] = {}
        self.grantable_bytes: Callable[[], int | None] = lambda: None
        """The most that may be granted now, whatever is left; None: no bound."""
        self._load(store.read())
        for app, most_bytes in store.read_container_max().items():
            self._accounts.setdefault(app, _Account()).container_max_bytes = most_bytes

    @property
    def apps(self) -> list[str]:
        """Applications that anything is known of."""
        return list(self._accounts)

    @property
    def left_bytes(self) -> int:
        """What all of them hold."""
        return sum(self.left_of(app) for app in self._accounts)

    def report(self, app: str) -> ReserveReport:
        """What to report to the allocator."""
        account = self._accounts.get(app)
        return ReserveReport(account.given_bytes, account.used_bytes) if account else ReserveReport(0, 0)

    def left_of(self, app: str) -> int:
        """What can still be granted, as reported."""
        given_bytes, used_bytes = self.report(app)
        return given_bytes - used_bytes

    def bounds_of(self, app: str) -> tuple[int, int]:
        """Greatest limit of a container, and what can still be granted, bytes."""
        account = self._accounts.get(app)
        return (account.container_max_bytes if account else NO_MAXIMUM), self.left_of(app)

    def share_of(self, app: str) -> int:
        """Fair share of each of an application's containers."""
        account = self._accounts.get(app)
        return account.share_bytes if account else UNKNOWN_SHARE

    def apply(self, apply: ReserveUpdate) -> None:
        """Apply an update; what could not be stored is not reported either."""
        account = self._accounts.setdefault(apply.app, _Account())
        account.container_max_bytes = apply.container_max_bytes or NO_MAXIMUM
        account.share_bytes = apply.share_bytes
        self._store.set_container_max(apply.app, apply.container_max_bytes or None)
        self._give(apply.app, account, max(apply.given_bytes, account.used_bytes))

    def _give(self, app: str, account: _Account, given_bytes: int) -> None:
        now = self._store.give(app, given_bytes)
        if now.given_bytes < given_bytes:
            return
        if now.used_bytes < account.used_bytes:  # the file was lost meanwhile: what was spent must not be spent again
            self._store.spend(app, account.used_bytes - now.used_bytes)
        account.given_bytes = now.given_bytes

    def spend(self, app: str, wanted_bytes: int) -> int:
        """Take up to so much out; returns how much."""
        account = self._accounts.get(app)
        wanted_bytes = min(wanted_bytes, self.left_of(app))
        if account is None or wanted_bytes <= 0:
            return 0
        if (most_bytes := self.grantable_bytes()) is not None:
            wanted_bytes = min(wanted_bytes, most_bytes)
        got = self._store.spend(app, wanted_bytes)
        account.used_bytes += got
        return got

    def refund(self, app: str, unspent_bytes: int) -> None:
        """The kernel refused the grant."""
        if unspent_bytes:
            self._store.refund(app, unspent_bytes)
            self._accounts[app].used_bytes -= unspent_bytes

    def void(self, app: str) -> None:
        """No container of it is here any more, or its update came too late."""
        account = self._accounts.get(app)
        if account is not None:
            self._store.void(app)
            account.used_bytes = account.given_bytes

    def void_orphans(self, apps_here: Collection[str]) -> list[str]:
        """Void the reserves of applications without a container here; returns them."""
        orphans = [app for app in self._accounts if app not in apps_here and self.left_of(app)]
        for app in orphans:
            self.void(app)
        return orphans

    def is_unreconciled(self, app: str) -> bool:
        """Whether the watchdog may have granted something that is not reported yet."""
        account = self._accounts.get(app)
        return (
            account is not None
            and account.unreconciled is not None
            and account.unreconciled.used_bytes > account.used_bytes
        )

    def poll(self) -> list[str]:
        """Compare with the store, once per sample; returns applications to `reconcile` once limits are read again."""
        seen = self._store.read()
        self._load({app: reserve for app, reserve in seen.items() if app not in self._accounts})
        due = []
        for app, account in self._accounts.items():
            reserve = seen.get(app, Reserve(0, 0))
            if reserve == (account.given_bytes, account.used_bytes) or not (account.given_bytes or reserve.given_bytes):
                account.unreconciled, account.polls = None, 0
                continue
            account.polls = account.polls + 1 if reserve == account.unreconciled else 1
            account.unreconciled = reserve
            if account.polls >= CONFIRM_POLLS:
                due.append(app)
        return due

    def reconcile(self, app: str) -> None:
        """The limits have been read again: what the watchdog spent is reported; a file that was lost is repaired."""
        account = self._accounts[app]
        if account.unreconciled is None:
            return
        if account.unreconciled.used_bytes > account.used_bytes:
            account.used_bytes = min(account.unreconciled.used_bytes, account.given_bytes)
        account.unreconciled, account.polls = None, 0
        self._give(app, account, account.given_bytes)

    def _load(self, reserves: dict[str, Reserve]) -> None:
        for app, reserve in reserves.items():
            self._accounts[app] = _Account(reserve.given_bytes, min(reserve.used_bytes, reserve.given_bytes))


class FairShares:
    """Grants by fair share, of all applications."""

    def __init__(self, containers: ContainerSet, reserves: Reserves) -> None:
        self._containers = containers
        self._reserves = reserves

    def spend(self, app: str, limit_bytes: int, wanted_bytes: int, others: Iterable[Asking]) -> int:
        """Take up to so much out of the reserve for a container with this limit; returns how much, bytes.

        Args:
            app: its application.
            limit_bytes: of the container.
            wanted_bytes: on top of it.
            others: of its application that ask at the same time; not looked at where it stays within its share.
        """
        share_bytes = self._reserves.share_of(app)
        if limit_bytes + wanted_bytes > share_bytes:
            most_bytes = grantable_bytes(share_bytes, limit_bytes, self._reserves.left_of(app), others)
            wanted_bytes = min(wanted_bytes, most_bytes)
        return self._reserves.spend(app, wanted_bytes)

    def short_of(self, app: str, container: Iterable[ContainerMemory]) -> list[ContainerMemory]:
        """Containers that lack memory: urgent ones first, of them those below their shares, then who waits longest."""
        waiting = [one for one in container if one.app == app and one.short_since_ns is not None]
        return sorted(by_urgency(waiting), key=lambda one: (not one.is_urgent, self._is_above(one)))

    @staticmethod
    def by_size(waiting: list[ContainerMemory]) -> list[ContainerMemory]:
        """Whose wait a refusal ends first: the largest, as the kernel would choose were all of them in one group."""
        return sorted(waiting, key=lambda one: (-(one.state.usage_bytes if one.state else 0), one.key))

    def _is_above(self, container: ContainerMemory) -> bool:
        """Whether it has its share, or more."""
        limit_bytes = self._containers.limits[container.key].limit_bytes
        return is_above(self._reserves.share_of(container.app), limit_bytes)
