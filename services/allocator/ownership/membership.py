"""Membership of this replica: reads and writes of the store for the rules in `ownership.members`.

Keys of KV `leases`: ``members`` is the record, ``replica.<id>`` a heartbeat. A watch makes changes arrive soon but may
stall for long after a server restart: it only causes direct reads.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from schemas.leases import MEMBERS_KEY, Heartbeat, Lease, Members
from schemas.streams import LEASES
from services._runtime.bus.api import BusError, Entry, RevisionConflictError
from services._runtime.service.app import Runtime
from services._runtime.task_cancellation import cancel_all
from services.allocator.ownership import members as rules
from services.allocator.ownership.members import Action, Event, View
from services.allocator.settings import AllocatorSettings

REPLICA: Final = "replica."
APP: Final = "app."
"""Keys of versions that had a lease for each application."""
TICKS_PER_TTL: Final = 8
COLLECT_EVERY_S: Final = 30.0
FORGET_S: Final = 60.0
"""A heartbeat of no member that has not changed for so long is deleted, and so are the leases of earlier versions."""
MOST_EPOCHS_AHEAD_MS: Final = 24 * 3_600_000
"""Epochs begin as milliseconds of a wall clock. An agent that tells one further ahead is not believed that far: a
hostile one could exhaust them."""
_MAX_CONCURRENT: Final = 32
_LEAVE_TIMEOUT_S: Final = 1.5


@dataclass(frozen=True, slots=True)
class Callbacks:
    """Changes of what this replica owns; both take effect at once, before the first await."""

    acquired: Callable[[str, int], Awaitable[None]]
    """An application in an epoch; again where the epoch changes. It raises `BusError` where it cannot be served."""
    released: Callable[[str], None]
    try_to_serve: Callable[[str], Awaitable[None]]
    """Find out whether an application can be served, without serving it. It raises `BusError` where it cannot."""


class Membership:
    """This process as one of the replicas that share the applications."""

    def __init__(
        self, runtime: Runtime[AllocatorSettings], callbacks: Callbacks, replica_id: str | None = None
    ) -> None:
        self.id = replica_id or f"{socket.gethostname()[:40]}-{secrets.token_hex(3)}"
        """New after each start: an earlier process may still be a member."""
        self.acquired = self.lost = self.failed_renewals = 0
        """Applications acquired; lost because others had removed this replica; heartbeats that were not stored."""
        self._runtime = runtime
        self._bucket = runtime.bus.bucket(LEASES)
        self._clock = runtime.clock
        self._log = runtime.log.bind(replica=self.id)
        self._callbacks = callbacks
        self._timeout_s = runtime.settings.lease_ttl_s / 2
        self.view = View(self.id, runtime.settings.lease_ttl_s, runtime.settings.lease_store_outage_grace_s)
        """What is known; only `_observe` changes it."""
        self.held: dict[str, int] = {}
        """Epochs of the applications that this replica owns: it may act for them while `may_act`."""
        self._pending: dict[str, None] = {}
        """Acquired applications whose callback has not been called yet, oldest first."""
        self._tasks: list[asyncio.Task[None]] = []
        self._wake = asyncio.Event()
        self._record_changed = asyncio.Event()
        self._failing = False
        self._seen: dict[str, tuple[bool, float]] = {}
        """Heartbeats and leases in the bucket: whether of an earlier version, and when last seen to change."""
        self._earlier_logged_s = self._collected_s = self._clock.monotonic()

    async def start(self) -> None:
        """Join the members; applications come through `Callbacks.acquired`."""
        works = {"rounds": self._tick, "watch": self._watch, "acquisitions": self._acquire_pending}
        self._tasks = [self._runtime.spawn(work(), name=f"membership {name}") for name, work in works.items()]

    async def stop(self) -> None:
        """Leave the members, so that others take over at once, and release everything."""
        self._observe(rules.Stop())
        try:
            async with asyncio.timeout(_LEAVE_TIMEOUT_S):
                while self.view.is_member:
                    self._record_changed.clear()
                    await self._record_changed.wait()
                await self._bucket.delete(REPLICA + self.id)
        except (BusError, TimeoutError) as error:
            consequence = f"others take over after {self.view.ttl_s:g} s" if self.view.is_member else "none"
            self._log.warning("leave_failed", error=str(error) or "no answer", consequence=consequence)
        tasks, self._tasks = self._tasks, []
        await cancel_all(tasks)
        for app in list(self.held):
            self._release(app)

    # -- queries -------------------------------------------------------------------------------------------------

    def may_act(self) -> bool:
        """Whether this replica may act for what it owns."""
        return rules.may_act(self.view, self._clock.monotonic())

    def owner(self, app: str) -> str:
        """The replica that owns an application by the newest record; empty: none, or it is not known."""
        return self.view.owner(app)

    def ownerless(self) -> int:
        """How many announced applications no member can serve."""
        return sum(not self.view.owner(app) for app in self.view.announced)

    def not_ready(self) -> str | None:
        """Why nothing can be acquired, or None."""
        now_s, view = self._clock.monotonic(), self.view
        if rules.waits_for_earlier_version(view, now_s):
            return None  # it takes over when that version stops, which a rollout does only once this one is ready
        if not view.knows_rule:
            return f"the members' record in the bucket {LEASES.name} follows another version's rule: {view.record.rule}"
        if now_s - view.confirmed_s > view.ttl_s:
            return f"the members' record in the bucket {LEASES.name} cannot be read: {self._consequence()}"
        if now_s - view.heartbeat_s > view.ttl_s:
            lately = f"was not stored for {view.ttl_s:g} s"
            return f"the heartbeat in the bucket {LEASES.name} {lately}: {self._consequence()}"
        return None

    def _consequence(self) -> str:
        return "nothing is taken over" if self.may_act() else "nothing is decided"

    # -- called by the service -----------------------------------------------------------------------------------

    def set_announced(self, app: str, *, announced: bool) -> None:
        """An application needs an owner, or (False) no longer."""
        self._observe(rules.Announced(app, announced))

    def set_able(self, app: str, *, able: bool) -> None:
        """This replica can serve an application, or (False) not before it is set able again."""
        if not able:
            self._observe(rules.Unable(app, until_able=True))
        elif app in self.view.unable:
            self._observe(rules.Able(app))

    def report_newer_epoch(self, app: str, epoch: int) -> None:
        """Record that an agent knows a newer epoch of an application than it was ordered in."""
        most = self._wall_ms() + MOST_EPOCHS_AHEAD_MS
        self._observe(rules.Refused(app, max(min(epoch, most), self.held.get(app, 0) + 1)))

    # -- the step --------------------------------------------------------------------------------------------------

    def _observe(self, event: Event) -> None:
        """Take one observation, log what it changed, and ask the store for what it needs."""
        before = self.view
        self.view, actions = rules.step(before, event, self._clock.monotonic(), self._wall_ms())
        view = self.view
        if view.record is not before.record:
            self._log_record(before.record)
        if (view.epochs, view.unable, view.refused) != (before.epochs, before.unable, before.refused):
            self._apply(removed=before.is_member and not view.is_member and not view.stopping)
        for action in actions:
            self._runtime.spawn(self._carry_out(action), name=f"membership {type(action).__name__}")

    def _log_record(self, before: Members) -> None:
        self._record_changed.set()
        record = self.view.record
        if not self.view.knows_rule:
            self._log.error("members_rule_unknown", rule=record.rule, remedy="run one version of the allocator")
        joined, left = set(record.replicas) - set(before.replicas), set(before.replicas) - set(record.replicas)
        unable = {app: names for app, names in record.unable.items() if before.unable.get(app) != names}
        self._log.info(
            "members_changed",
            epoch=record.epoch,
            members=len(record.replicas),
            joined=sorted(joined),
            left=sorted(left),
            unable=dict(islice(unable.items(), 10)),
        )

    def _apply(self, *, removed: bool) -> None:
        """Release at once, acquire one after another."""
        held = rules.held(self.view)
        for app in [app for app in self.held if app not in held]:
            self.lost += removed
            self._release(app)
        for app, epoch in held.items():
            if self.held.get(app) != epoch:
                self.acquired += app not in self.held
                self.held[app] = epoch
                self._pending[app] = None
        if self._pending:
            self._wake.set()

    def _release(self, app: str) -> None:
        self._log.info("application_released", app=app, epoch=self.held.pop(app))
        self._pending.pop(app, None)
        self._callbacks.released(app)

    async def _acquire_pending(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._pending:
                apps = list(islice(self._pending, _MAX_CONCURRENT))
                await asyncio.gather(*(self._acquire(app) for app in apps))

    async def _acquire(self, app: str) -> None:
        self._pending.pop(app, None)
        if (epoch := self.held.get(app)) is None:
            return
        self._log.info("application_acquired", app=app, epoch=epoch)
        try:
            await self._callbacks.acquired(app, epoch)
        except BusError as error:
            self._log.warning("app_subscribe_failed", app=app, error=str(error))
            self._observe(rules.Unable(app))

    # -- the store -------------------------------------------------------------------------------------------------

    async def _tick(self) -> None:
        while True:
            self._observe(rules.Tick())
            self._log_earlier_version()
            self._collect_garbage()
            await self._clock.sleep_until(self._clock.monotonic() + self.view.ttl_s / TICKS_PER_TTL)

    async def _watch(self) -> None:
        async with self._bucket.watch(self._take_entry):
            await asyncio.Event().wait()

    async def _carry_out(self, action: Action) -> None:
        sent_s = self._clock.monotonic()
        try:
            async with asyncio.timeout(self._timeout_s):
                event = await self._ask(action, sent_s)
        except RevisionConflictError:
            event = rules.WriteConflict()
        except (BusError, TimeoutError) as error:
            event = rules.Unable(action.app) if isinstance(action, rules.TryToServe) else rules.Failed(sent_s)
            self._log_failure(action, str(error) or "no answer")
        else:
            if isinstance(action, rules.StoreHeartbeat):
                self._failing = False
        self._observe(event)

    async def _ask(self, action: Action, sent_s: float) -> Event:
        match action:
            case rules.ReadRecord():
                entry = await self._bucket.get(MEMBERS_KEY)
                return rules.RecordRead(_record(entry), entry.revision if entry else 0, sent_s)
            case rules.ReadHeartbeats(replicas):
                entries = await asyncio.gather(*(self._bucket.get(REPLICA + name) for name in replicas))
                found = {name: entry.revision for name, entry in zip(replicas, entries, strict=True) if entry}
                return rules.HeartbeatsRead(found, sent_s)
            case rules.StoreHeartbeat():
                message = Heartbeat(replica=self.id, epoch=self.view.record.epoch, time_ns=self._clock.time_ns())
                await self._bucket.put(REPLICA + self.id, message)
                return rules.HeartbeatStored(sent_s)
            case rules.TryToServe(app):
                await self._callbacks.try_to_serve(app)
                return rules.Able(app)
            case rules.WriteRecord(record, 0):
                return rules.RecordWritten(record, await self._bucket.create(MEMBERS_KEY, record), sent_s)
            case rules.WriteRecord(record, revision):
                return rules.RecordWritten(record, await self._bucket.update(MEMBERS_KEY, record, revision), sent_s)

    def _log_failure(self, action: Action, error: str) -> None:
        if not isinstance(action, rules.StoreHeartbeat):
            self._log.debug("members_operation_failed", operation=type(action).__name__, error=error)
            return
        self.failed_renewals += 1
        if not self._failing:
            self._log.warning("heartbeat_failed", error=error)
        self._failing = True

    # -- what the watch shows --------------------------------------------------------------------------------------

    def _take_entry(self, key: str, entry: Entry | None) -> None:
        if key == MEMBERS_KEY:
            self._observe(rules.Watched(entry.revision if entry else 0))
        elif entry is None:
            self._seen.pop(key, None)
        elif key.startswith((REPLICA, APP)):
            is_earlier = isinstance(entry.message, Lease)
            self._seen[key] = (is_earlier, self._clock.monotonic())
            if is_earlier and isinstance(entry.message, Lease):
                epoch = entry.message.epoch if key.startswith(APP) else 0
                self._observe(rules.EarlierVersion(epoch))

    def _earlier_replicas(self) -> list[str]:
        """Replicas of an earlier version that have been seen to live within the last minute."""
        since_s = self._clock.monotonic() - FORGET_S
        return sorted(
            key.removeprefix(REPLICA)
            for key, (is_earlier, changed_s) in self._seen.items()
            if is_earlier and key.startswith(REPLICA) and changed_s >= since_s
        )

    def _log_earlier_version(self) -> None:
        now_s = self._clock.monotonic()
        if now_s < self._earlier_logged_s or not rules.waits_for_earlier_version(self.view, now_s):
            return
        self._earlier_logged_s = now_s + FORGET_S
        self._log.warning(
            "earlier_version_runs",
            replicas=self._earlier_replicas(),
            consequence="this replica owns nothing while they live: both would decide for the same applications",
            remedy="stop the allocators of the earlier version",
        )

    def _collect_garbage(self) -> None:
        """Delete heartbeats of the dead and leases of earlier versions, as a member."""
        now_s = self._clock.monotonic()
        if now_s - self._collected_s < COLLECT_EVERY_S or not self.view.is_member:
            return
        self._collected_s = now_s
        for key in islice(self._garbage(now_s), _MAX_CONCURRENT):
            self._runtime.spawn(self._delete(key), name=f"delete {key}")

    def _garbage(self, now_s: float) -> Iterator[str]:
        members = {REPLICA + name for name in (*self.view.record.replicas, self.id)}
        earlier_lives = bool(self._earlier_replicas())
        for key, (_, changed_s) in self._seen.items():
            if now_s - changed_s > FORGET_S and key not in members and not (key.startswith(APP) and earlier_lives):
                yield key

    async def _delete(self, key: str) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._bucket.delete(key)
        except (BusError, TimeoutError) as error:
            self._log.debug("members_operation_failed", operation="delete", key=key, error=str(error) or "no answer")

    def _wall_ms(self) -> int:
        return self._clock.time_ns() // 1_000_000


def _record(entry: Entry | None) -> Members:
    """The stored record; an unreadable one counts as none, and is written over."""
    return entry.message if entry is not None and isinstance(entry.message, Members) else rules.NO_RECORD
