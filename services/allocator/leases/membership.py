"""This replica among its peers: heartbeats, leases, hand-over. The rules are in `services.allocator.leases.rules`.

Keys of the bucket `leases`: ``replica.<id>`` is a heartbeat, ``app.<name>`` says who owns an application. A watch makes
news arrive soon, but it may stay silent for long after a restart of the server: nobody is judged dead, and nothing is
swapped, without a direct read.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from schemas.leases import Lease
from schemas.streams import LEASES
from services._runtime.bus.api import BusError, Entry, RevisionConflictError
from services._runtime.cancelling import cancel_all
from services._runtime.service.app import Runtime
from services.allocator.leases.rules import NO_LEASE, Ownership, Patience, StoredLease, Swap
from services.allocator.settings import AllocatorSettings

REPLICA: Final = "replica."
APP: Final = "app."
BEATS_PER_TTL: Final = 4
ROUNDS_PER_TTL: Final = 8
TIDY_EVERY_S: Final = 30.0
_AT_ONCE: Final = 32
"""Keys that are read and swapped at the same time."""
_FAREWELL_S: Final = 1.5


@dataclass(frozen=True, slots=True)
class Callbacks:
    """What changes hands; `own` may be called again for the same application with a newer epoch."""

    own: Callable[[str, int], Awaitable[None]]
    disown: Callable[[str], None]
    """Takes effect at once."""


class Replicas:
    """Owns applications on behalf of this process."""

    def __init__(
        self, runtime: Runtime[AllocatorSettings], callbacks: Callbacks, replica_id: str | None = None
    ) -> None:
        self.id = replica_id or f"{socket.gethostname()[:40]}-{secrets.token_hex(3)}"
        """Another one after each start: what an earlier process left is not ours."""
        self.failed_renewals = 0
        self._runtime = runtime
        self._bucket = runtime.bus.bucket(LEASES)
        self._clock = runtime.clock
        self._log = runtime.log.bind(replica=self.id)
        self._callbacks = callbacks
        self._ttl_s = runtime.settings.lease_ttl_s
        self._core = Ownership(self.id, Patience(self._ttl_s, store_away_s=runtime.settings.lease_store_outage_grace_s))
        self._tasks: list[asyncio.Task[None]] = []
        self._listed = asyncio.Event()
        self._wake = asyncio.Event()
        self._busy: dict[str, asyncio.Task[None]] = {}
        """What is being read or swapped, by key."""
        self._crowded = False
        self._answer_s = self._ttl_s / 2
        self._readable = False
        self._tidied_s = self._clock.monotonic()

    async def start(self) -> None:
        """Begin to live; applications come with `Callbacks.own`."""
        self._runtime.bus.on_reconnect(self._core.interrupted)
        works = {"heartbeat": self._beat, "leases": self._watch_and_settle, "rounds": self._tick}
        self._tasks = [self._runtime.spawn(work(), name=name) for name, work in works.items()]

    async def stop(self) -> None:
        """Give everything up and say so, so that others take over at once."""
        tasks, self._tasks = [*self._tasks, *self._busy.values()], []
        await cancel_all(tasks)
        swaps = self._core.leave()
        await self._tell_changes()
        try:
            async with asyncio.timeout(_FAREWELL_S):
                await self._bucket.delete(REPLICA + self.id)  # first: a lease is only taken by who should own it then
                await asyncio.gather(*(self._try(self._carry_out, swap) for swap in swaps))
        except (BusError, TimeoutError) as error:
            self._log.warning(
                "lease_release_failed", error=str(error), consequence=f"the leases expire after {self._ttl_s:g} s"
            )

    # -- what is so ----------------------------------------------------------------------------------------------

    def may_decide(self) -> bool:
        """Whether this replica may act as the owner of what it holds: it has renewed its heartbeat lately."""
        return self._core.may_decide(self._clock.monotonic())

    def not_ready(self) -> str | None:
        """Why nothing can be owned, or None."""
        if not self._core.renewed_lately(self._clock.monotonic()):
            consequence = "nothing is taken over" if self.may_decide() else "nothing is decided"
            return f"the heartbeat in the bucket {LEASES.name} was not renewed for {self._ttl_s:g} s: {consequence}"
        return None if self._readable else f"the bucket {LEASES.name} cannot be read"

    @property
    def held(self) -> dict[str, int]:
        """Applications that this replica owns, with their epochs."""
        return self._core.held

    @property
    def takeovers(self) -> int:
        """Applications taken over so far."""
        return self._core.taken

    @property
    def lost_leases(self) -> int:
        """Applications that others have taken away so far."""
        return self._core.lost

    def owner(self, app: str) -> str:
        """Who owns an application, so far as is known; empty: nobody."""
        return self._core.owner(app)

    # -- what the service tells ----------------------------------------------------------------------------------

    def announce(self, app: str, *, announced: bool) -> None:
        """An application needs an owner, or (False) no longer."""
        if announced:
            self._core.announced.add(app)
        else:
            self._core.announced.discard(app)
        self._wake.set()

    def refused(self, app: str) -> None:
        """An agent says that the application belongs to a newer epoch than ours."""
        self._core.refused(app)
        self._wake.set()

    # -- heartbeats and news -------------------------------------------------------------------------------------

    async def _beat(self) -> None:
        interval_s = self._ttl_s / BEATS_PER_TTL
        failing = False
        await self._listed.wait()
        while not self._core.acquainted(now_s := self._clock.monotonic()):
            await self._clock.sleep_until(now_s + self._ttl_s / ROUNDS_PER_TTL)
        while True:
            sent_s = self._clock.monotonic()
            try:
                async with asyncio.timeout(self._answer_s):
                    await self._bucket.put(REPLICA + self.id, self._lease(StoredLease(self.id)))
            except (BusError, TimeoutError) as error:
                self.failed_renewals += 1
                self._core.store_is_away(sent_s, self._clock.monotonic())
                if not failing:
                    self._log.warning("heartbeat_failed", error=str(error) or "no answer")
                failing = True
            else:
                self._core.renewed(sent_s, self._clock.monotonic())
                self._wake.set()
                failing = False
            await self._clock.sleep_until(sent_s + interval_s)

    async def _tick(self) -> None:
        while True:
            await self._clock.sleep_until(self._clock.monotonic() + self._ttl_s / ROUNDS_PER_TTL)
            self._wake.set()

    def _take_entry(self, key: str, entry: Entry | None) -> None:
        now_s = self._clock.monotonic()
        if key.startswith(REPLICA):
            self._core.saw_heartbeat(key.removeprefix(REPLICA), entry.revision if entry else 0, now_s)
        elif key.startswith(APP):
            self._core.saw_lease(key.removeprefix(APP), _stored(entry), now_s)
            self._wake.set()
        if entry is None:
            self._wake.set()

    # -- rounds --------------------------------------------------------------------------------------------------

    async def _watch_and_settle(self) -> None:
        async with self._bucket.watch(self._take_entry):
            self._listed.set()
            while True:
                await self._wake.wait()
                self._wake.clear()
                now_s = self._clock.monotonic()
                suspects = self._core.suspects(now_s)
                self._begin_each(REPLICA, suspects if self._readable else [self.id, *suspects], self._check)
                self._begin_each(APP, self._core.unsettled(now_s), self._settle)
                self._tidy(now_s)

    def _begin_each(self, kind: str, names: list[str], work: Callable[[str], Coroutine[Any, Any, None]]) -> None:
        """Each in a task of its own, unless it is at work already: one that has to wait delays no other."""
        for name in names:
            key = kind + name
            if key in self._busy:
                continue
            if len(self._busy) >= _AT_ONCE:
                self._crowded = True
                return
            task = self._runtime.spawn(self._try(work, name), name=f"settle {key}")
            self._busy[key] = task
            task.add_done_callback(partial(self._end, key))

    def _end(self, key: str, _task: asyncio.Task[None]) -> None:
        del self._busy[key]
        if self._crowded:
            self._crowded = False
            self._wake.set()

    async def _try(self, work: Callable[[Any], Coroutine[Any, Any, None]], item: object) -> None:
        """What the bus could not do is tried again in a later round."""
        try:
            await work(item)
        except TimeoutError:
            self._log.info("lease_operation_timed_out", work=work.__name__, item=str(item))
        except BusError as error:
            self._log.debug("lease_operation_failed", work=work.__name__, item=str(item), error=str(error))

    async def _settle(self, app: str) -> None:
        """Read the lease, then its owner's heartbeat, then swap: in this order, see the rules."""
        sent_s = self._clock.monotonic()
        lease = _stored(await self._read(APP + app))
        self._core.read_lease(app, lease, sent_s)
        await self._tell_changes()
        if lease.owner not in {"", self.id}:
            await self._check(lease.owner)
        swap = self._core.swap(app, self._clock.monotonic(), self._clock.time_ns() // 1_000_000)
        await self._tell_changes()
        if swap is not None:
            await self._carry_out(swap)

    async def _carry_out(self, swap: Swap) -> None:
        key, message = APP + swap.app, self._lease(swap.lease)
        try:
            async with asyncio.timeout(self._answer_s):
                if swap.lease.revision:
                    revision = await self._bucket.update(key, message, swap.lease.revision)
                else:
                    revision = await self._bucket.create(key, message)
        except RevisionConflictError:
            self._core.conflicted(swap)
            self._wake.set()
        else:
            self._core.swapped(swap, revision, self._clock.monotonic())
        await self._tell_changes()

    async def _check(self, replica: str) -> None:
        """Read a heartbeat directly."""
        sent_s = self._clock.monotonic()
        entry = await self._read(REPLICA + replica)
        self._core.checked_heartbeat(replica, entry.revision if entry else 0, sent_s, self._clock.monotonic())

    def _tidy(self, now_s: float) -> None:
        if now_s - self._tidied_s < TIDY_EVERY_S:
            return
        self._tidied_s = now_s
        self._begin_each("old " + REPLICA, self._core.dead_for_long(now_s), self._delete_replica)
        self._begin_each("old " + APP, self._core.unused_leases(now_s), self._delete_lease)

    async def _delete_replica(self, replica: str) -> None:
        async with asyncio.timeout(self._answer_s):
            await self._bucket.delete(REPLICA + replica)

    async def _delete_lease(self, app: str) -> None:
        async with asyncio.timeout(self._answer_s):
            await self._bucket.delete(APP + app)

    async def _read(self, key: str) -> Entry | None:
        try:
            async with asyncio.timeout(self._answer_s):
                entry = await self._bucket.get(key)
        except (BusError, TimeoutError):
            self._readable = False
            raise
        self._readable = True
        return entry

    async def _tell_changes(self) -> None:
        for change in self._core.take_changes():
            if change.epoch is not None:
                self._log.info("lease_acquired", app=change.app, epoch=change.epoch)
                await self._begin(change.app, change.epoch)
            else:
                event = "lease_lost" if change.lost else "lease_released"
                self._log.info(event, app=change.app)
                self._callbacks.disown(change.app)

    async def _begin(self, app: str, epoch: int) -> None:
        try:
            await self._callbacks.own(app, epoch)
        except BusError as error:
            self._log.warning("app_subscribe_failed", app=app, error=str(error))
            self._core.abandon(app)
            await self._tell_changes()

    def _lease(self, lease: StoredLease) -> Lease:
        return Lease(owner=lease.owner, epoch=lease.epoch, time_ns=self._clock.time_ns())


def _stored(entry: Entry | None) -> StoredLease:
    """What cannot be read is as good as free."""
    if entry is None:
        return NO_LEASE
    lease = entry.message
    return (
        StoredLease(lease.owner, lease.epoch, entry.revision)
        if isinstance(lease, Lease)
        else StoredLease(revision=entry.revision)
    )
