"""Membership of this replica: heartbeats, leases, hand-over. The rules stand in `leases.lease_manager`.

Keys of KV `leases`: ``replica.<id>`` is a heartbeat, ``app.<name>`` the lease of an application. A watch makes changes
arrive soon but may stall for long after a server restart: no replica is considered dead, and no lease is swapped,
without a direct read.
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
from services._runtime.service.app import Runtime
from services._runtime.task_cancellation import cancel_all
from services.allocator.leases.lease_manager import NO_LEASE, LeaseManager, LeaseTimeouts, StoredLease, Swap
from services.allocator.settings import AllocatorSettings

REPLICA: Final = "replica."
APP: Final = "app."
HEARTBEATS_PER_TTL: Final = 4
ROUNDS_PER_TTL: Final = 8
GC_INTERVAL_S: Final = 30.0
_MAX_CONCURRENT: Final = 32
"""Concurrent reads and swaps."""
_RELEASE_TIMEOUT_S: Final = 1.5


@dataclass(frozen=True, slots=True)
class Callbacks:
    """Lease changes; `acquired` may be called again for an application with a newer epoch."""

    acquired: Callable[[str, int], Awaitable[None]]
    released: Callable[[str], None]
    """Takes effect at once."""


class Membership:
    """Holds leases on behalf of this process."""

    def __init__(
        self, runtime: Runtime[AllocatorSettings], callbacks: Callbacks, replica_id: str | None = None
    ) -> None:
        self.id = replica_id or f"{socket.gethostname()[:40]}-{secrets.token_hex(3)}"
        """New after each start: leases of an earlier process are not its own."""
        self.failed_renewals = 0
        self._runtime = runtime
        self._bucket = runtime.bus.bucket(LEASES)
        self._clock = runtime.clock
        self._log = runtime.log.bind(replica=self.id)
        self._callbacks = callbacks
        self._ttl_s = runtime.settings.lease_ttl_s
        self.leases = LeaseManager(
            self.id, LeaseTimeouts(self._ttl_s, store_outage_grace_s=runtime.settings.lease_store_outage_grace_s)
        )
        """What is owned; only this object changes it."""
        self._tasks: list[asyncio.Task[None]] = []
        self._listed = asyncio.Event()
        self._wake = asyncio.Event()
        self._in_progress: dict[str, asyncio.Task[None]] = {}
        """Reads and swaps in progress, by key."""
        self._saturated = False
        self._timeout_s = self._ttl_s / 2
        self._readable = False
        self._collected_s = self._clock.monotonic()

    async def start(self) -> None:
        """Start heartbeats and rounds; leases come through `Callbacks.acquired`."""
        self._runtime.bus.on_reconnect(self.leases.interrupted)
        works = {"heartbeat": self._heartbeat, "leases": self._watch_and_acquire, "rounds": self._wake_periodically}
        self._tasks = [self._runtime.spawn(work(), name=name) for name, work in works.items()]

    async def stop(self) -> None:
        """Release all leases, so that others take over at once."""
        tasks, self._tasks = [*self._tasks, *self._in_progress.values()], []
        await cancel_all(tasks)
        swaps = self.leases.release_all()
        await self._notify_changes()
        try:
            async with asyncio.timeout(_RELEASE_TIMEOUT_S):
                await self._bucket.delete(REPLICA + self.id)  # first: only a preferred owner takes a lease
                await asyncio.gather(*(self._try(self._carry_out, swap) for swap in swaps))
        except (BusError, TimeoutError) as error:
            self._log.warning(
                "lease_release_failed", error=str(error), consequence=f"the leases expire after {self._ttl_s:g} s"
            )

    # -- queries -------------------------------------------------------------------------------------------------

    def not_ready(self) -> str | None:
        """Why no lease can be acquired, or None."""
        if not self.leases.renewed_lately(now_s := self._clock.monotonic()):
            consequence = "nothing is taken over" if self.leases.may_decide(now_s) else "nothing is decided"
            return f"the heartbeat in the bucket {LEASES.name} was not renewed for {self._ttl_s:g} s: {consequence}"
        return None if self._readable else f"the bucket {LEASES.name} cannot be read"

    # -- called by the service -----------------------------------------------------------------------------------

    def set_announced(self, app: str, *, announced: bool) -> None:
        """An application needs an owner, or (False) no longer."""
        if announced:
            self.leases.announced.add(app)
        else:
            self.leases.announced.discard(app)
        self._wake.set()

    def report_stale_epoch(self, app: str) -> None:
        """Record that an agent knows a newer epoch of the application."""
        self.leases.report_stale_epoch(app)
        self._wake.set()

    # -- heartbeats and watch ---------------------------------------------------------------------------------------

    async def _heartbeat(self) -> None:
        interval_s = self._ttl_s / HEARTBEATS_PER_TTL
        failing = False
        await self._listed.wait()
        while not self.leases.membership_known(now_s := self._clock.monotonic()):
            await self._clock.sleep_until(now_s + self._ttl_s / ROUNDS_PER_TTL)
        while True:
            sent_s = self._clock.monotonic()
            try:
                async with asyncio.timeout(self._timeout_s):
                    await self._bucket.put(REPLICA + self.id, self._lease(StoredLease(self.id)))
            except (BusError, TimeoutError) as error:
                self.failed_renewals += 1
                self.leases.store_unreachable(sent_s, self._clock.monotonic())
                if not failing:
                    self._log.warning("heartbeat_failed", error=str(error) or "no answer")
                failing = True
            else:
                self.leases.renewed(sent_s, self._clock.monotonic())
                self._wake.set()
                failing = False
            await self._clock.sleep_until(sent_s + interval_s)

    async def _wake_periodically(self) -> None:
        while True:
            await self._clock.sleep_until(self._clock.monotonic() + self._ttl_s / ROUNDS_PER_TTL)
            self._wake.set()

    def _take_entry(self, key: str, entry: Entry | None) -> None:
        now_s = self._clock.monotonic()
        if key.startswith(REPLICA):
            self.leases.observe_heartbeat(key.removeprefix(REPLICA), entry.revision if entry else 0, now_s)
        elif key.startswith(APP):
            self.leases.observe_lease(key.removeprefix(APP), _stored(entry), now_s)
            self._wake.set()
        if entry is None:
            self._wake.set()

    # -- rounds --------------------------------------------------------------------------------------------------

    async def _watch_and_acquire(self) -> None:
        async with self._bucket.watch(self._take_entry):
            self._listed.set()
            while True:
                await self._wake.wait()
                self._wake.clear()
                now_s = self._clock.monotonic()
                suspects = self.leases.suspects(now_s)
                self._start_each(REPLICA, suspects if self._readable else [self.id, *suspects], self._check)
                self._start_each(APP, self.leases.leases_to_read(now_s), self._acquire)
                self._collect_garbage(now_s)

    def _start_each(self, kind: str, names: list[str], work: Callable[[str], Coroutine[Any, Any, None]]) -> None:
        """Start a task per name, unless one is in progress: one that waits delays no other."""
        for name in names:
            key = kind + name
            if key in self._in_progress:
                continue
            if len(self._in_progress) >= _MAX_CONCURRENT:
                self._saturated = True
                return
            task = self._runtime.spawn(self._try(work, name), name=f"settle {key}")
            self._in_progress[key] = task
            task.add_done_callback(partial(self._end, key))

    def _end(self, key: str, _task: asyncio.Task[None]) -> None:
        del self._in_progress[key]
        if self._saturated:
            self._saturated = False
            self._wake.set()

    async def _try(self, work: Callable[[Any], Coroutine[Any, Any, None]], item: object) -> None:
        """Run one read or swap; a bus error is retried in a later round."""
        try:
            await work(item)
        except TimeoutError:
            self._log.info("lease_operation_timed_out", work=work.__name__, item=str(item))
        except BusError as error:
            self._log.debug("lease_operation_failed", work=work.__name__, item=str(item), error=str(error))

    async def _acquire(self, app: str) -> None:
        """Read the lease, then its owner's heartbeat, then swap: in this order, see the rules."""
        sent_s = self._clock.monotonic()
        lease = _stored(await self._read(APP + app))
        self.leases.lease_read(app, lease, sent_s)
        await self._notify_changes()
        if lease.owner not in {"", self.id}:
            await self._check(lease.owner)
        swap = self.leases.swap(app, self._clock.monotonic(), self._clock.time_ns() // 1_000_000)
        await self._notify_changes()
        if swap is not None:
            await self._carry_out(swap)

    async def _carry_out(self, swap: Swap) -> None:
        key, message = APP + swap.app, self._lease(swap.lease)
        try:
            async with asyncio.timeout(self._timeout_s):
                if swap.lease.revision:
                    revision = await self._bucket.update(key, message, swap.lease.revision)
                else:
                    revision = await self._bucket.create(key, message)
        except RevisionConflictError:
            self.leases.swap_conflicted(swap)
            self._wake.set()
        else:
            self.leases.swap_stored(swap, revision, self._clock.monotonic())
        await self._notify_changes()

    async def _check(self, replica: str) -> None:
        """Read a heartbeat directly."""
        sent_s = self._clock.monotonic()
        entry = await self._read(REPLICA + replica)
        self.leases.heartbeat_read(replica, entry.revision if entry else 0, sent_s, self._clock.monotonic())

    def _collect_garbage(self, now_s: float) -> None:
        if now_s - self._collected_s < GC_INTERVAL_S:
            return
        self._collected_s = now_s
        self._start_each("old " + REPLICA, self.leases.expired_replicas(now_s), self._delete_replica)
        self._start_each("old " + APP, self.leases.unused_leases(now_s), self._delete_lease)

    async def _delete_replica(self, replica: str) -> None:
        async with asyncio.timeout(self._timeout_s):
            await self._bucket.delete(REPLICA + replica)

    async def _delete_lease(self, app: str) -> None:
        async with asyncio.timeout(self._timeout_s):
            await self._bucket.delete(APP + app)

    async def _read(self, key: str) -> Entry | None:
        try:
            async with asyncio.timeout(self._timeout_s):
                entry = await self._bucket.get(key)
        except (BusError, TimeoutError):
            self._readable = False
            raise
        self._readable = True
        return entry

    async def _notify_changes(self) -> None:
        for change in self.leases.take_changes():
            if change.epoch is not None:
                self._log.info("lease_acquired", app=change.app, epoch=change.epoch)
                await self._begin(change.app, change.epoch)
            else:
                event = "lease_lost" if change.lost else "lease_released"
                self._log.info(event, app=change.app)
                self._callbacks.released(change.app)

    async def _begin(self, app: str, epoch: int) -> None:
        try:
            await self._callbacks.acquired(app, epoch)
        except BusError as error:
            self._log.warning("app_subscribe_failed", app=app, error=str(error))
            self.leases.abandon(app)
            await self._notify_changes()

    def _lease(self, lease: StoredLease) -> Lease:
        return Lease(owner=lease.owner, epoch=lease.epoch, time_ns=self._clock.time_ns())


def _stored(entry: Entry | None) -> StoredLease:
    """The stored lease; an unreadable one counts as free."""
    if entry is None:
        return NO_LEASE
    lease = entry.message
    return (
        StoredLease(lease.owner, lease.epoch, entry.revision)
        if isinstance(lease, Lease)
        else StoredLease(revision=entry.revision)
    )
