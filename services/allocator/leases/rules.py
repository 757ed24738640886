"""Which replica decides for which application: rendezvous hashing over live replicas, leases by compare-and-swap.

Pure: what was read from the store and when comes in, what to read and to swap goes out. A lease names an application's
owner and its epoch; the store changes it only over the revision that was read. Rules that make the owner the only one:

* A replica decides only while its own heartbeat was renewed within the time to live, counted from *sending* it.
* Others judge it dead when they have seen no new heartbeat for at least as long, by their own clock, and a direct read
  that was sent after that time, and after they had read the lease, has found the same. Then it has stopped already.
* Whoever was interrupted for longer swaps each of its leases for a newer revision of the same before it decides again:
  either that swap or the successor's succeeds, never both.

Clocks that run at different speeds, or a store that lost its contents, can break this; then the epoch, which agents
check and which rises with every owner, still fences the older one out.
It also covers an owner that goes on while the store answers nothing: cut off alone, it may decide beside its successor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b

FORGET_REPLICA_S = 60.0
"""A replica that has been dead for this long has its heartbeat deleted."""
FORGET_LEASE_S = 3_600.0
"""A free lease of an application that is no longer announced is deleted."""
EPOCH_JUMP_MS = 3_600_000
"""Agents may know a newer epoch although the lease is ours, where the store has forgotten it. Get past it: epochs begin
as wall-clock milliseconds, so this outdoes any that is less than an hour ahead."""


@dataclass(frozen=True, slots=True)
class StoredLease:
    """A lease as read from the store."""

    owner: str = ""
    """Empty: free."""
    epoch: int = 0
    revision: int = 0
    """0: there is none."""


NO_LEASE = StoredLease()


@dataclass(frozen=True, slots=True)
class Swap:
    """A compare-and-swap to carry out."""

    app: str
    lease: StoredLease
    """To be written over this revision; 0: to be created."""
    generation: int = 0


@dataclass(frozen=True, slots=True)
class Change:
    """The replica has come to own an application in an epoch, or (None) has ceased to."""

    app: str
    epoch: int | None
    lost: bool = False
    """Taken away by someone else, not handed over."""


@dataclass(slots=True)
class _Peer:
    """Another replica's heartbeat."""

    revision: int
    """0: there is none."""
    changed_s: float
    """When it was seen to change, or, after an interruption of our own, when it is expected at the latest."""
    checked_s: float = -math.inf
    """When the newest direct read that found no change was sent."""
    moves: bool = True
    """It was seen to change, not only to be there."""


@dataclass(slots=True)
class _Holding:
    epoch: int
    revision: int
    confirmed: bool
    refused: bool = False
    """An agent says that there is a newer epoch."""
    doubted: bool = False
    """A watch says that the lease is not ours any more."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long silence is tolerated, in seconds."""

    ttl_s: float
    """Of a lease without its owner's heartbeat; the same for all replicas."""
    excuse_s: float = 2.5
    """On top, after an interruption of our own: others need time to reconnect too."""
    store_away_s: float = 0.0
    """On top of the time to live, while the store answers nothing: then nobody can take a lease either."""


@dataclass(slots=True)
class Ownership:
    """One replica's view of all replicas and leases. Times are its own monotonic seconds."""

    me: str
    patience: Patience
    announced: set[str] = field(default_factory=set)
    """Applications that need an owner."""
    leases: dict[str, StoredLease] = field(default_factory=dict)
    taken: int = 0
    """Applications taken over, from others or free."""
    lost: int = 0
    """Applications that another replica has taken away."""
    _peers: dict[str, _Peer] = field(default_factory=dict)
    _held: dict[str, _Holding] = field(default_factory=dict)
    _read_s: dict[str, float] = field(default_factory=dict)
    """When the newest direct read of a lease was sent."""
    _unsure: set[str] = field(default_factory=set)
    """Applications whose lease is to be read again."""
    _free_since_s: dict[str, float] = field(default_factory=dict)
    _changes: list[Change] = field(default_factory=list)
    _renewed_s: float = -math.inf
    """When the newest successful heartbeat was sent."""
    _epoch: int = 0
    """Of the newest take: whatever is taken later shares it if it can, since an order to a node is of one epoch."""
    _seen_epoch: dict[str, int] = field(default_factory=dict)
    """Highest epoch seen per application, also where its lease has become unreadable."""
    _interrupted: bool = False
    _away_s: float = -math.inf  # when the store was last found to answer nothing
    _generation: int = 0
    """Counts interruptions beyond the time to live: what was swapped before must be confirmed again."""

    # -- what is so ----------------------------------------------------------------------------------------------

    def renewed_lately(self, now_s: float) -> bool:
        """Whether others can know that this replica lives."""
        return now_s - self._renewed_s <= self.patience.ttl_s

    def may_decide(self, now_s: float) -> bool:
        """Whether this replica may act as the owner of what it holds."""
        if not all(holding.confirmed for holding in self._held.values()):
            return False
        return self.renewed_lately(now_s) or self._is_excused(now_s)

    def _is_excused(self, now_s: float) -> bool:
        """Whether the store is away, for all we know, and nobody has told of a successor."""
        patience = self.patience
        if now_s - self._away_s > patience.ttl_s or now_s - self._renewed_s > patience.ttl_s + patience.store_away_s:
            return False
        return not any(holding.refused or holding.doubted for holding in self._held.values())

    @property
    def held(self) -> dict[str, int]:
        """Epochs of the applications that this replica owns, so far as it knows."""
        return {app: holding.epoch for app, holding in self._held.items()}

    def acquainted(self, now_s: float) -> bool:
        """Whether we know of all heartbeats if they move: who joins before would leave its share to the dead."""
        return all(peer.moves or not self._lives(peer, now_s) for peer in self._peers.values())

    def owner(self, app: str) -> str:
        """Who owns an application, so far as is known; empty: nobody."""
        return self.me if app in self._held else self.leases.get(app, NO_LEASE).owner

    def live(self, now_s: float) -> tuple[str, ...]:
        """Replicas that live, so far as is known; sorted."""
        peers = [name for name, peer in self._peers.items() if self._lives(peer, now_s)]
        return tuple(sorted([self.me, *peers] if self.renewed_lately(now_s) else peers))

    def take_changes(self) -> list[Change]:
        """What has changed hands since the last call."""
        changes, self._changes = self._changes, []
        return changes

    # -- what was observed ---------------------------------------------------------------------------------------

    def saw_heartbeat(self, replica: str, revision: int, now_s: float) -> None:
        """A heartbeat's revision, from anywhere; 0: it is gone."""
        if replica == self.me:
            return
        peer = self._peers.get(replica)
        if peer is None or peer.revision != revision:
            self._peers[replica] = _Peer(revision, now_s, moves=peer is not None)

    def checked_heartbeat(self, replica: str, revision: int, sent_s: float, now_s: float) -> None:
        """The answer to a direct read."""
        self.saw_heartbeat(replica, revision, now_s)
        if (peer := self._peers.get(replica)) is not None and peer.revision == revision:
            peer.checked_s = max(peer.checked_s, sent_s)

    def saw_lease(self, app: str, lease: StoredLease, now_s: float) -> None:
        """A watch tells of a lease. It may be late, so what it says of ours is only a reason to look."""
        holding = self._held.get(app)
        if holding is None:
            self._note(app, lease, now_s)
        elif (lease.owner, lease.epoch) != (self.me, holding.epoch):
            holding.doubted = True

    def read_lease(self, app: str, lease: StoredLease, sent_s: float) -> None:
        """The answer to a direct read."""
        self._read_s[app] = sent_s
        if lease.revision < self.leases.get(app, NO_LEASE).revision:
            self._unsure.add(app)  # the answer was overtaken by the watch, or the store lost its contents
        else:
            self._unsure.discard(app)
        self._note(app, lease, sent_s)
        holding = self._held.get(app)
        if holding is None:
            return
        if (lease.owner, lease.epoch) == (self.me, holding.epoch):
            holding.revision, holding.doubted = lease.revision, False
        else:
            self._lose(app)

    def refused(self, app: str) -> None:
        """An agent says that the application belongs to a newer epoch."""
        if app in self._held:
            self._held[app].refused = True

    def renewed(self, sent_s: float, now_s: float) -> None:
        """Our heartbeat was stored."""
        before_s, self._renewed_s = self._renewed_s, max(self._renewed_s, sent_s)
        self._away_s = -math.inf
        if now_s - before_s > self.patience.ttl_s:
            self._generation += 1
            for holding in self._held.values():
                holding.confirmed = False
        elif not self._interrupted:
            return
        self._interrupted = False
        if before_s == -math.inf:
            return  # the first one: nothing was interrupted
        for peer in self._peers.values():  # those that lived when we could last know may have met the same
            if peer.revision and peer.changed_s >= before_s - self.patience.ttl_s:
                peer.changed_s = max(peer.changed_s, now_s + self.patience.excuse_s)

    def store_is_away(self, sent_s: float, now_s: float) -> None:
        """Nobody answered a heartbeat. If that was noticed late, it is we who stood still: no excuse."""
        self._interrupted = True
        if now_s - sent_s <= self.patience.ttl_s:
            self._away_s = now_s

    def interrupted(self) -> None:
        """The connection broke: we could not see others either."""
        self._interrupted = True

    # -- what to do ----------------------------------------------------------------------------------------------

    def suspects(self, now_s: float) -> list[str]:
        """Replicas whose heartbeat should be read directly: a watch can be silent while they live."""
        due_s = now_s - self.patience.ttl_s / 4
        peers = self._peers.items()
        return [
            name for name, peer in peers if peer.revision and peer.checked_s <= due_s and not self._lives(peer, now_s)
        ]

    def unsettled(self, now_s: float) -> list[str]:
        """Applications whose lease should be read directly, and then perhaps swapped."""
        if not self.renewed_lately(now_s):
            return []
        mine = {app for app, lease in self.leases.items() if lease.owner == self.me}
        live = self.live(now_s)
        return sorted(app for app in self.announced | mine | self._held.keys() if self._wants_a_look(app, live, now_s))

    def swap(self, app: str, now_s: float, wall_ms: int) -> Swap | None:
        """What to swap now that the lease, and its owner's heartbeat, were read directly; None: nothing.

        Giving up takes effect at once, whether or not the swap succeeds.
        """
        if not self.renewed_lately(now_s):
            return None
        lease, holding = self.leases.get(app, NO_LEASE), self._held.get(app)
        mine = self._is_mine(app, self.live(now_s))
        if holding is not None and mine:
            return self._confirm(app, holding, wall_ms)
        if holding is not None:
            self._give_up(app)
        if lease.owner == self.me and not mine:
            return Swap(app, StoredLease("", lease.epoch, lease.revision))
        if mine and (lease.owner in {"", self.me} or self._is_dead(lease.owner, self._read_s.get(app, math.inf))):
            self._epoch = max(self._epoch or wall_ms, lease.epoch + 1, self._seen_epoch.get(app, 0) + 1)
            return Swap(app, StoredLease(self.me, self._epoch, lease.revision), self._generation)
        return None

    def swapped(self, swap: Swap, revision: int, now_s: float) -> None:
        """It was stored."""
        app, lease = swap.app, StoredLease(swap.lease.owner, swap.lease.epoch, revision)
        self._note(app, lease, now_s)
        if lease.owner != self.me:
            return
        confirmed = swap.generation == self._generation
        before = self._held.get(app)
        if before is not None and before.epoch == lease.epoch:  # what was said of this epoch meanwhile still counts
            before.revision, before.confirmed = revision, confirmed
            return
        self._held[app] = _Holding(lease.epoch, revision, confirmed)
        self.taken += 1
        self._changes.append(Change(app, lease.epoch))

    def conflicted(self, swap: Swap) -> None:
        """Someone else was quicker: the lease is to be read again."""
        if swap.app in self._held:
            self._lose(swap.app)

    def abandon(self, app: str) -> None:
        """We cannot decide for it; the lease is released, or taken anew, in the next round."""
        if app in self._held:
            self._give_up(app)

    def leave(self) -> list[Swap]:
        """We stop: give up everything."""
        swaps = [
            Swap(app, StoredLease("", holding.epoch, holding.revision)) for app, holding in sorted(self._held.items())
        ]
        for swap in swaps:
            self._give_up(swap.app)
        self._renewed_s = -math.inf
        return swaps

    def dead_for_long(self, now_s: float) -> list[str]:
        """Replicas whose heartbeat may be deleted; those without one are forgotten here."""
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

    # -- parts ---------------------------------------------------------------------------------------------------

    def _lives(self, peer: _Peer, now_s: float) -> bool:
        return peer.revision > 0 and now_s - peer.changed_s < self.patience.ttl_s

    def _is_dead(self, replica: str, since_s: float) -> bool:
        """Silent for the time to live, as a direct read has found that was sent after both this and ``since_s``."""
        peer = self._peers.get(replica)
        return peer is not None and peer.checked_s >= max(since_s, peer.changed_s + self.patience.ttl_s)

    def _is_mine(self, app: str, live: tuple[str, ...]) -> bool:
        return app in self.announced and rightful_owner(app, live) == self.me

    def _wants_a_look(self, app: str, live: tuple[str, ...], now_s: float) -> bool:
        holding, mine = self._held.get(app), self._is_mine(app, live)
        if holding is not None:
            return not mine or not holding.confirmed or holding.doubted or holding.refused
        owner = self.leases.get(app, NO_LEASE).owner
        if owner == self.me or (mine and not owner) or app in self._unsure:
            return True
        peer = self._peers.get(owner)
        return mine and (peer is None or now_s - peer.changed_s >= self.patience.ttl_s)

    def _confirm(self, app: str, holding: _Holding, wall_ms: int) -> Swap | None:
        if holding.refused:
            epoch = self._epoch = max(self._epoch, wall_ms) + EPOCH_JUMP_MS
        elif not holding.confirmed:
            epoch = holding.epoch
        else:
            return None
        return Swap(app, StoredLease(self.me, epoch, holding.revision), self._generation)

    def _note(self, app: str, lease: StoredLease, now_s: float) -> None:
        if lease.revision == 0:
            self.leases.pop(app, None)
        else:
            self.leases[app] = lease
            self._seen_epoch[app] = max(lease.epoch, self._seen_epoch.get(app, 0))
        if app not in self.leases and app not in self.announced:
            self._seen_epoch.pop(app, None)
        if lease.revision and not lease.owner:
            self._free_since_s.setdefault(app, now_s)
        else:
            self._free_since_s.pop(app, None)

    def _give_up(self, app: str) -> None:
        del self._held[app]
        self._changes.append(Change(app, None))

    def _lose(self, app: str) -> None:
        del self._held[app]
        self.lost += 1
        self._changes.append(Change(app, None, lost=True))


@lru_cache(maxsize=1 << 16)
def rightful_owner(app: str, live: tuple[str, ...]) -> str | None:
    """Who should own an application: the replica with the highest score for it, so that few move when one comes."""
    return max(live, key=lambda replica: (_score(app, replica), replica), default=None)


def _score(app: str, replica: str) -> bytes:
    return blake2b(f"{len(app)}:{app}{replica}".encode(), digest_size=8).digest()
