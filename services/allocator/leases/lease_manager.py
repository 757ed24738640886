"""Lease manager: rendezvous hashing over live replicas, leases by compare-and-swap.

Pure: takes what was read from the store and when, returns what to read and to swap. A lease names an application's
owner and its epoch; the store changes it only over the revision that was read. Rules that keep the owner unique:

* A replica decides only while its heartbeat was renewed within the time to live, counted from *sending* it.
* Others consider it dead when they have observed no new heartbeat for at least as long, by their own clock, and a
  direct read, sent after that time and after they had read the lease, has found the same. By then it has stopped.
* A replica interrupted for longer swaps each of its leases for a newer revision of the same before it decides again:
  either that swap or the successor's succeeds, never both.

Clocks of different speed, or a store that lost its contents, can break this; then the epoch, which agents check and
which rises with every owner, still fences the previous owner out. The same holds for an owner that continues during a
store outage: if only that owner is cut off, it may decide beside its successor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b

FORGET_REPLICA_S = 60.0
"""The heartbeat of a replica that has been dead for this long is deleted."""
FORGET_LEASE_S = 3_600.0
"""A free lease of an unannounced application is deleted after this long."""
READ_DUE_S = 1.0
"""The lease of an application that should be this replica's, and is not, is read again after this long."""
EPOCH_JUMP_MS = 3_600_000
"""Agents may know a newer epoch although this replica holds the lease, if the store lost its contents. Epochs begin as
wall-clock milliseconds, so this exceeds any that is less than an hour ahead."""


@dataclass(frozen=True, slots=True)
class StoredLease:
    """A lease as stored."""

    owner: str = ""
    """Empty: free."""
    epoch: int = 0
    revision: int = 0
    """0: none."""


NO_LEASE = StoredLease()


@dataclass(frozen=True, slots=True)
class Swap:
    """A compare-and-swap of one lease."""

    app: str
    lease: StoredLease
    """Written over this revision; 0: created."""
    generation: int = 0


@dataclass(frozen=True, slots=True)
class LeaseChange:
    """An application acquired in an epoch, or (None) released."""

    app: str
    epoch: int | None
    lost: bool = False
    """Taken by another replica, not handed over."""


@dataclass(slots=True)
class _Peer:
    """Heartbeat of another replica."""

    revision: int
    """0: none."""
    changed_s: float
    """When it last changed, or, after an interruption of this replica, when it is due at the latest."""
    checked_s: float = -math.inf
    """When the newest direct read that found no change was sent."""
    seen_to_change: bool = True
    """It has changed while observed."""


@dataclass(slots=True)
class _HeldLease:
    epoch: int
    revision: int
    confirmed: bool
    stale_epoch: bool = False
    """An agent has reported a newer epoch."""
    contested: bool = False
    """The watch has shown another owner or epoch."""


@dataclass(frozen=True, slots=True)
class LeaseTimeouts:
    """Timeouts in seconds."""

    ttl_s: float
    """Time to live of a lease without a heartbeat of its owner; the same for all replicas."""
    reconnect_grace_s: float = 2.5
    """Added after an interruption of this replica: peers need time to reconnect too."""
    store_outage_grace_s: float = 0.0
    """Added during a store outage, in which no replica can take a lease."""


@dataclass(slots=True)
class LeaseManager:
    """All replicas and leases as one replica knows them. Times are its monotonic seconds."""

    replica_id: str
    timeouts: LeaseTimeouts
    announced: set[str] = field(default_factory=set)
    """Applications announced in KV, which need an owner."""
    leases: dict[str, StoredLease] = field(default_factory=dict)
    acquired: int = 0
    """Leases acquired so far."""
    lost: int = 0
    """Leases lost to other replicas so far."""
    _peers: dict[str, _Peer] = field(default_factory=dict)
    _held: dict[str, _HeldLease] = field(default_factory=dict)
    _read_s: dict[str, float] = field(default_factory=dict)
    """When the newest direct read of a lease was sent."""
    _needs_reread: set[str] = field(default_factory=set)
    """Applications whose lease needs another direct read."""
    _free_since_s: dict[str, float] = field(default_factory=dict)
    _changes: list[LeaseChange] = field(default_factory=list)
    _renewed_s: float = -math.inf
    """When the newest successful heartbeat was sent."""
    _epoch: int = 0
    """Epoch of the newest acquisition. Later ones reuse it where they can: a limit update to a node has one epoch."""
    _seen_epoch: dict[str, int] = field(default_factory=dict)
    """Highest epoch observed per application, also where its lease has become unreadable."""
    _forgotten_epoch: int = 0
    """Highest epoch of an application whose lease was deleted: agents may still know it, another owner may have given
    it, and the application may be announced again."""
    _interrupted: bool = False
    _store_unreachable_s: float = -math.inf  # when a heartbeat last failed without an answer
    _generation: int = 0
    """Counts interruptions beyond the time to live: leases swapped before one must be confirmed again."""

    # -- queries -------------------------------------------------------------------------------------------------

    def renewed_lately(self, now_s: float) -> bool:
        """Whether the heartbeat was renewed within the time to live."""
        return now_s - self._renewed_s <= self.timeouts.ttl_s

    def may_decide(self, now_s: float) -> bool:
        """Whether this replica may decide for the applications that it holds."""
        if not all(holding.confirmed for holding in self._held.values()):
            return False
        return self.renewed_lately(now_s) or self._tolerates_store_outage(now_s)

    def _tolerates_store_outage(self, now_s: float) -> bool:
        """Whether the store is unreachable within the tolerated outage, and no sign of a successor was observed."""
        timeouts = self.timeouts
        if (
            now_s - self._store_unreachable_s > timeouts.ttl_s
            or now_s - self._renewed_s > timeouts.ttl_s + timeouts.store_outage_grace_s
        ):
            return False
        return not any(holding.stale_epoch or holding.contested for holding in self._held.values())

    @property
    def held(self) -> dict[str, int]:
        """Epochs of the applications that this replica holds."""
        return {app: holding.epoch for app, holding in self._held.items()}

    def membership_known(self, now_s: float) -> bool:
        """Whether every live peer's heartbeat was observed to change; before that a dead peer would get a share."""
        return all(peer.seen_to_change or not self._is_live(peer, now_s) for peer in self._peers.values())

    def owner(self, app: str) -> str:
        """Replica that owns an application, as far as known; empty: none."""
        return self.replica_id if app in self._held else self.leases.get(app, NO_LEASE).owner

    def live(self, now_s: float) -> tuple[str, ...]:
        """Live replicas, sorted, including this one."""
        peers = [name for name, peer in self._peers.items() if self._is_live(peer, now_s)]
        return tuple(sorted([self.replica_id, *peers] if self.renewed_lately(now_s) else peers))

    def take_changes(self) -> list[LeaseChange]:
        """Leases acquired and released since the last call."""
        changes, self._changes = self._changes, []
        return changes

    # -- observations --------------------------------------------------------------------------------------------

    def observe_heartbeat(self, replica: str, revision: int, now_s: float) -> None:
        """Record the revision of a heartbeat from a watch or a read; 0: deleted."""
        if replica == self.replica_id:
            return
        peer = self._peers.get(replica)
        if peer is None or peer.revision != revision:
            self._peers[replica] = _Peer(revision, now_s, seen_to_change=peer is not None)

    def heartbeat_read(self, replica: str, revision: int, sent_s: float, now_s: float) -> None:
        """Record a direct read of a heartbeat."""
        self.observe_heartbeat(replica, revision, now_s)
        if (peer := self._peers.get(replica)) is not None and peer.revision == revision:
            peer.checked_s = max(peer.checked_s, sent_s)

    def observe_lease(self, app: str, lease: StoredLease, now_s: float) -> None:
        """Record a lease from the watch. It may be late, so for a held lease it only causes a direct read."""
        self._record(app, lease, now_s)
        holding = self._held.get(app)
        if holding is not None and (lease.owner, lease.epoch) != (self.replica_id, holding.epoch):
            holding.contested = True

    def lease_read(self, app: str, lease: StoredLease, sent_s: float) -> None:
        """Record a direct read of a lease."""
        self._read_s[app] = sent_s
        if lease.revision < self.leases.get(app, NO_LEASE).revision:
            self._needs_reread.add(app)  # older than the watch, or the store lost its contents
        else:
            self._needs_reread.discard(app)
        self._record(app, lease, sent_s)
        holding = self._held.get(app)
        if holding is None:
            return
        if (lease.owner, lease.epoch) == (self.replica_id, holding.epoch):
            holding.revision, holding.contested = lease.revision, False
        else:
            self._lose(app)

    def report_stale_epoch(self, app: str) -> None:
        """Record that an agent knows a newer epoch of the application."""
        if app in self._held:
            self._held[app].stale_epoch = True

    def renewed(self, sent_s: float, now_s: float) -> None:
        """Record that this replica's heartbeat was stored."""
        before_s, self._renewed_s = self._renewed_s, max(self._renewed_s, sent_s)
        self._store_unreachable_s = -math.inf
        if now_s - before_s > self.timeouts.ttl_s:
            self._generation += 1
            for holding in self._held.values():
                holding.confirmed = False
        elif not self._interrupted:
            return
        self._interrupted = False
        if before_s == -math.inf:
            return  # the first one: no interruption
        for peer in self._peers.values():  # peers alive at the last observation may have been interrupted too
            if peer.revision and peer.changed_s >= before_s - self.timeouts.ttl_s:
                peer.changed_s = max(peer.changed_s, now_s + self.timeouts.reconnect_grace_s)

    def store_unreachable(self, sent_s: float, now_s: float) -> None:
        """Record that a heartbeat got no answer. A late timeout means that this process was stopped: no outage."""
        self._interrupted = True
        if now_s - sent_s <= self.timeouts.ttl_s:
            self._store_unreachable_s = now_s

    def interrupted(self) -> None:
        """Record that the connection broke: heartbeats of others were not observed meanwhile."""
        self._interrupted = True

    # -- actions -------------------------------------------------------------------------------------------------

    def suspects(self, now_s: float) -> list[str]:
        """Replicas whose heartbeat should be read directly: a watch can stall while they are alive."""
        due_s = now_s - self.timeouts.ttl_s / 4
        peers = self._peers.items()
        return [
            name for name, peer in peers if peer.revision and peer.checked_s <= due_s and not self._is_live(peer, now_s)
        ]

    def leases_to_read(self, now_s: float) -> list[str]:
        """Applications whose lease should be read directly, then possibly swapped."""
        if not self.renewed_lately(now_s):
            return []
        mine = {app for app, lease in self.leases.items() if lease.owner == self.replica_id}
        live = self.live(now_s)
        return sorted(app for app in self.announced | mine | self._held.keys() if self._needs_read(app, live, now_s))

    def swap(self, app: str, now_s: float, wall_ms: int) -> Swap | None:
        """The swap to make after direct reads of the lease and of its owner's heartbeat; None: none.

        Releasing takes effect at once, whether or not the swap succeeds.
        """
        if not self.renewed_lately(now_s):
            return None
        lease, holding = self.leases.get(app, NO_LEASE), self._held.get(app)
        mine = self._is_mine(app, self.live(now_s))
        if holding is not None and mine:
            return self._confirm(app, holding, wall_ms)
        if holding is not None:
            self._release(app)
        if lease.owner == self.replica_id and not mine:
            return Swap(app, StoredLease("", lease.epoch, lease.revision))
        if mine and (
            lease.owner in {"", self.replica_id} or self._is_dead(lease.owner, self._read_s.get(app, math.inf))
        ):
            seen = self._seen_epoch.get(app, self._forgotten_epoch)
            self._epoch = max(self._epoch or wall_ms, lease.epoch + 1, seen + 1)
            return Swap(app, StoredLease(self.replica_id, self._epoch, lease.revision), self._generation)
        return None

    def swap_stored(self, swap: Swap, revision: int, now_s: float) -> None:
        """Record that a swap was stored."""
        app, lease = swap.app, StoredLease(swap.lease.owner, swap.lease.epoch, revision)
        overtaken = revision < self.leases.get(app, NO_LEASE).revision  # swapped again before this answer came
        if not overtaken:
            self._record(app, lease, now_s)
        if lease.owner != self.replica_id:
            return
        confirmed = swap.generation == self._generation
        before = self._held.get(app)
        if before is not None and before.epoch == lease.epoch:  # reports about this epoch still count
            before.revision, before.confirmed = revision, confirmed
            before.contested |= overtaken
            return
        self._held[app] = _HeldLease(lease.epoch, revision, confirmed, contested=overtaken)
        self.acquired += 1
        self._changes.append(LeaseChange(app, lease.epoch))

    def swap_conflicted(self, swap: Swap) -> None:
        """Record a revision conflict: the lease needs another read."""
        if swap.app in self._held:
            self._lose(swap.app)

    def abandon(self, app: str) -> None:
        """Release an application that cannot be served; the next round frees the lease or acquires it again."""
        if app in self._held:
            self._release(app)

    def release_all(self) -> list[Swap]:
        """Release everything: this replica stops."""
        swaps = [
            Swap(app, StoredLease("", holding.epoch, holding.revision)) for app, holding in sorted(self._held.items())
        ]
        for swap in swaps:
            self._release(swap.app)
        self._renewed_s = -math.inf
        return swaps

    def expired_replicas(self, now_s: float) -> list[str]:
        """Dead replicas whose heartbeat may be deleted; those without one are removed here."""
        owners = {lease.owner for lease in self.leases.values()}
        old = [name for name, peer in self._peers.items() if now_s - peer.changed_s > FORGET_REPLICA_S]
        for name in old:
            if not self._peers[name].revision and name not in owners:
                del self._peers[name]
        return [name for name in old if name in self._peers and self._is_dead(name, now_s - FORGET_REPLICA_S)]

    def unused_leases(self, now_s: float) -> list[str]:
        """Applications whose lease may be deleted."""
        return [
            app
            for app, since_s in self._free_since_s.items()
            if app not in self.announced and now_s - since_s > FORGET_LEASE_S
        ]

    # -- internals -----------------------------------------------------------------------------------------------

    def _is_live(self, peer: _Peer, now_s: float) -> bool:
        return peer.revision > 0 and now_s - peer.changed_s < self.timeouts.ttl_s

    def _is_dead(self, replica: str, since_s: float) -> bool:
        """Whether a direct read after this time and after ``since_s`` found no heartbeat for the time to live."""
        peer = self._peers.get(replica)
        return peer is not None and peer.checked_s >= max(since_s, peer.changed_s + self.timeouts.ttl_s)

    def _is_mine(self, app: str, live: tuple[str, ...]) -> bool:
        return app in self.announced and preferred_owner(app, live) == self.replica_id

    def _needs_read(self, app: str, live: tuple[str, ...], now_s: float) -> bool:
        holding, mine = self._held.get(app), self._is_mine(app, live)
        if holding is not None:
            return not mine or not holding.confirmed or holding.contested or holding.stale_epoch
        owner = self.leases.get(app, NO_LEASE).owner
        if owner == self.replica_id or (mine and not owner) or app in self._needs_reread:
            return True
        peer = self._peers.get(owner)
        # The second: whoever is believed to own it. An answer that came late may have named a replica that has released
        # it since, and a watch reports each revision once.
        return mine and (
            peer is None
            or now_s - peer.changed_s >= self.timeouts.ttl_s
            or now_s - self._read_s.get(app, -math.inf) >= READ_DUE_S
        )

    def _confirm(self, app: str, holding: _HeldLease, wall_ms: int) -> Swap | None:
        if holding.stale_epoch:
            epoch = self._epoch = max(self._epoch, wall_ms) + EPOCH_JUMP_MS
        elif not holding.confirmed:
            epoch = holding.epoch
        else:
            return None
        return Swap(app, StoredLease(self.replica_id, epoch, holding.revision), self._generation)

    def _record(self, app: str, lease: StoredLease, now_s: float) -> None:
        if lease.revision == 0:
            self.leases.pop(app, None)
        else:
            self.leases[app] = lease
            self._seen_epoch[app] = max(lease.epoch, self._seen_epoch.get(app, 0))
        if app not in self.leases and app not in self.announced:
            self._forgotten_epoch = max(self._forgotten_epoch, self._seen_epoch.pop(app, 0))
        if lease.revision and not lease.owner:
            self._free_since_s.setdefault(app, now_s)
        else:
            self._free_since_s.pop(app, None)

    def _release(self, app: str) -> None:
        del self._held[app]
        self._changes.append(LeaseChange(app, None))

    def _lose(self, app: str) -> None:
        del self._held[app]
        self.lost += 1
        self._changes.append(LeaseChange(app, None, lost=True))


@lru_cache(maxsize=1 << 16)
def preferred_owner(app: str, live: tuple[str, ...]) -> str | None:
    """Replica that should own an application: highest rendezvous score, so that few leases move when one joins."""
    return max(live, key=lambda replica: (_score(app, replica), replica), default=None)


def _score(app: str, replica: str) -> bytes:
    return blake2b(f"{len(app)}:{app}{replica}".encode(), digest_size=8).digest()
