"""Which replica owns an application: one record of the members, and one value per replica with a pure step.

The record `schemas.leases.Members` names the replicas; the owner of every application follows from it by hashing. Each
round (a quarter of the time to live) a replica reads the record and the members' heartbeats directly from the store's
leader; the watch only makes the next read sooner. What keeps an application from two owners, and from none:

* A replica acts only under a record that names it, while both the newest read that showed this record and its newest
  stored heartbeat were *sent* less than the time to live ago. A heartbeat is sent only when a read was answered: who
  cannot read falls silent.
* A member is removed after a series of direct reads that spans the time to live, without a gap of more than half of it,
  in which its heartbeat has not changed. A gap (this process was frozen, the store was away) begins the series anew.
* A replica adds and removes itself; every change is a compare-and-set of the whole record under a higher epoch.
* Who becomes owner by a record acts under its epoch. For a moment the previous owner, which has not read it yet, may
  act too, under a lower epoch: agents refuse that as soon as they have heard the higher one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from math import inf
from typing import TypeVar

from schemas.leases import RENDEZVOUS_RULE, Members

ROUNDS_PER_TTL = 4
RETRY_UNABLE_S = 30.0
"""After this long a replica tries again to serve what it could not; sooner where nobody is left."""
MOST_UNABLE = 1_000
"""A replica that has failed to serve more applications than this is no member for `RETRY_UNABLE_S`. Of those that it
does not try, such as announcements that it cannot read, the record names what is left up to this number: who may
announce could otherwise turn all replicas out, or make the record larger than a message may be."""
WRITER_BITS = 10
"""The low bits of an epoch are its writer's own, so that two records have different epochs also where a store that lost
its newest writes lets both replace the same one."""
NO_RECORD = Members.model_construct()  # not validated: an import compiles no validators

ValueT = TypeVar("ValueT")


# -- what a replica observes ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; at least every eighth of the time to live."""


@dataclass(frozen=True, slots=True)
class RecordRead:
    """The record as a direct read showed it."""

    record: Members
    revision: int
    """0: there is none."""
    sent_s: float


@dataclass(frozen=True, slots=True)
class RecordWritten:
    """A write of the record succeeded."""

    record: Members
    revision: int
    sent_s: float


@dataclass(frozen=True, slots=True)
class WriteConflict:
    """Another replica has written the record since it was read."""


@dataclass(frozen=True, slots=True)
class HeartbeatsRead:
    """Revisions of the heartbeats of `View.peers_to_read`; without an entry: none is stored."""

    revisions: Mapping[str, int]
    sent_s: float
    """When the first of the reads was sent."""


@dataclass(frozen=True, slots=True)
class HeartbeatStored:
    """This replica's heartbeat was stored."""

    sent_s: float


@dataclass(frozen=True, slots=True)
class Failed:
    """An operation got no answer in time, or an error that says nothing of the record."""

    sent_s: float


@dataclass(frozen=True, slots=True)
class Watched:
    """The watch shows a revision of the record; it may be late."""

    revision: int


@dataclass(frozen=True, slots=True)
class Announced:
    """An application is announced, or (False) withdrawn."""

    app: str
    announced: bool = True


@dataclass(frozen=True, slots=True)
class Refused:
    """An agent knows a newer epoch of an application than this replica's."""

    app: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Unable:
    """This replica cannot serve an application now, or (`until_able`) until `Able`."""

    app: str
    until_able: bool = False


@dataclass(frozen=True, slots=True)
class Able:
    """What kept this replica from serving an application is gone."""

    app: str


@dataclass(frozen=True, slots=True)
class EarlierVersion:
    """A heartbeat, or a lease with its epoch, of a version that has one lease per application."""

    epoch: int = 0


@dataclass(frozen=True, slots=True)
class Stop:
    """This replica is to leave."""


Event = (
    Tick
    | RecordRead
    | RecordWritten
    | WriteConflict
    | HeartbeatsRead
    | HeartbeatStored
    | Failed
    | Watched
    | Announced
    | Refused
    | Unable
    | Able
    | EarlierVersion
    | Stop
)


# -- what it asks for ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReadRecord:
    """Read the record from the store's leader."""


@dataclass(frozen=True, slots=True)
class ReadHeartbeats:
    """Read the heartbeats of these replicas from the store's leader."""

    replicas: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StoreHeartbeat:
    """Store this replica's heartbeat."""


@dataclass(frozen=True, slots=True)
class WriteRecord:
    """Write a record over a revision (0: there is none)."""

    record: Members
    revision: int


@dataclass(frozen=True, slots=True)
class TryToServe:
    """Find out whether an application that could not be served can be served by now: `Able` or `Unable`."""

    app: str


Action = ReadRecord | ReadHeartbeats | StoreHeartbeat | WriteRecord | TryToServe


# -- what it knows -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Peer:
    """A member's heartbeat, as an unbroken series of direct reads has shown it."""

    revision: int
    since_s: float
    """When this revision was first handled in the series."""
    read_s: float
    """When the newest read that showed it was sent."""


@dataclass(frozen=True, slots=True)
class OlderRecord:
    """A read showed a record that is older than one seen: it came late, is stale, or the store lost its end.

    The next record is written over it: a conflict says that it was only the read, success mends the store.
    """

    revision: int
    record: Members


@dataclass(frozen=True, slots=True)
class View:
    """All that one replica knows. Times are its monotonic seconds; -inf: never."""

    replica_id: str
    ttl_s: float
    """Time to live of a member without a heartbeat; the same for all replicas."""
    store_outage_grace_s: float = 0.0
    """Seconds beyond the time to live that an owner goes on while the store answers nothing."""
    announced: frozenset[str] = frozenset()
    record: Members = NO_RECORD
    revision: int = -1
    """Of the record; -1: never read."""
    confirmed_s: float = -inf
    """When the newest read that showed this record was sent."""
    newer_s: float = -inf
    """When the watch last showed a newer revision."""
    epochs: Mapping[str, int] = field(default_factory=dict)
    """Of the announced applications that the record gives to this replica."""
    heartbeat_s: float = -inf
    """When the newest stored heartbeat was sent."""
    heartbeat_sent_s: float = -inf
    """When the newest heartbeat was sent."""
    answered_s: float = -inf
    """When the newest read or write of the record that was answered, by whatever record, was sent."""
    round_s: float = -inf
    writing_s: float = -inf
    """When a write of the record was sent that is not answered yet."""
    conflict_s: float = -inf
    """When a write last found another revision: the next one has to follow a read that was sent later."""
    failing_s: float = -inf
    """The newest failure of an unbroken series: the store is away."""
    peers: Mapping[str, Peer] = field(default_factory=dict)
    unable: Mapping[str, float] = field(default_factory=dict)
    """Applications that this replica cannot serve, and when it last tried; inf: not before `Able`."""
    refused: Mapping[str, int] = field(default_factory=dict)
    """Applications of which an agent knows a newer epoch: that epoch."""
    seen_epoch: int = 0
    """Highest epoch seen in a record, in a lease of an earlier version, or told by an agent."""
    older: OlderRecord | None = None
    earlier_version_s: float = -inf
    """When a heartbeat of an earlier version was last seen to change."""
    stopping: bool = False

    @property
    def is_member(self) -> bool:
        """Whether the record names this replica."""
        return self.replica_id in self.record.replicas

    @property
    def knows_rule(self) -> bool:
        """Whether this version knows how owners follow from the record."""
        return self.record.rule == RENDEZVOUS_RULE

    @property
    def peers_to_read(self) -> tuple[str, ...]:
        """Replicas whose heartbeats a round reads."""
        shown = self.older.record.replicas if self.older else ()
        return tuple(sorted({*self.record.replicas, *shown} - {self.replica_id}))

    def owner(self, app: str) -> str:
        """The replica that owns an application by the newest record; empty: none, or the rule is not known."""
        return self.record.owner(app)


def held(view: View) -> dict[str, int]:
    """Epochs of the applications that this replica owns and can act for, while `may_act`."""
    return _without(view.epochs, {*view.unable, *view.refused})


def waits_for_earlier_version(view: View, now_s: float) -> bool:
    """Whether a replica of an earlier version, which knows no record of members, may still act."""
    return now_s - view.earlier_version_s <= 2 * view.ttl_s


def may_act(view: View, now_s: float) -> bool:
    """Whether this replica may act for what it holds."""
    if waits_for_earlier_version(view, now_s):
        return False
    last_s = min(view.confirmed_s, view.heartbeat_s)
    if now_s - last_s <= view.ttl_s:
        return True
    # The store is away from everybody, as far as is known: nobody can take over.
    return (
        now_s - view.failing_s <= view.ttl_s
        and now_s - last_s <= view.ttl_s + view.store_outage_grace_s
        and view.newer_s <= view.confirmed_s
        and not view.refused
    )


# -- the step ------------------------------------------------------------------------------------------------------


def step(view: View, event: Event, now_s: float, wall_ms: int) -> tuple[View, list[Action]]:
    """Take one observation.

    Args:
        view: what this replica knows.
        event: what it has observed.
        now_s: its monotonic clock.
        wall_ms: milliseconds since 1970, by its wall clock; only makes epochs rise beyond those of a lost store.

    Returns:
        What it knows now, and what to ask the store for.
    """
    match event:
        case RecordRead() | RecordWritten():
            view, actions = _take_record(view, event, now_s)
        case WriteConflict() | HeartbeatsRead() | HeartbeatStored() | Failed() | Watched():
            view, actions = _take_answer(view, event, now_s)
        case Tick():
            view, actions = _begin_round(view, now_s)
        case Refused():
            view, actions = _take_refusal(view, event)
        case _:
            view, actions = _take_local(view, event, now_s), []
    if (record := _next_record(view, now_s, wall_ms)) is not None:
        view = replace(view, writing_s=now_s)
        actions.append(WriteRecord(record, view.older.revision if view.older else view.revision))
    return view, actions


def _take_record(view: View, event: RecordRead | RecordWritten, now_s: float) -> tuple[View, list[Action]]:
    view = _adopt(view, event)
    view = replace(view, answered_s=max(view.answered_s, event.sent_s))
    if isinstance(event, RecordWritten):
        view = replace(view, writing_s=-inf)
    if not _heartbeat_due(view, now_s):
        return view, []
    return replace(view, heartbeat_sent_s=now_s), [StoreHeartbeat()]


def _take_answer(
    view: View, event: WriteConflict | HeartbeatsRead | HeartbeatStored | Failed | Watched, now_s: float
) -> tuple[View, list[Action]]:
    actions: list[Action] = []
    match event:
        case WriteConflict():
            view, actions = replace(view, writing_s=-inf, conflict_s=now_s, older=None), [ReadRecord()]
        case HeartbeatsRead():
            view = replace(view, peers=_follow_heartbeats(view, event, now_s))
        case HeartbeatStored():
            view = replace(view, heartbeat_s=max(view.heartbeat_s, event.sent_s))
        case Failed():
            unbroken = max(now_s - event.sent_s, now_s - max(view.failing_s, view.confirmed_s)) <= view.ttl_s
            view = replace(view, failing_s=now_s if unbroken else -inf)
        case Watched(revision):
            view = replace(view, newer_s=now_s) if revision > view.revision else view
            actions = [ReadRecord()] if revision != view.revision else []
    return view, actions


def _take_refusal(view: View, event: Refused) -> tuple[View, list[Action]]:
    if view.epochs.get(event.app, event.epoch) >= event.epoch:
        return view, []
    refused = {**view.refused, event.app: event.epoch}
    return replace(view, refused=refused, seen_epoch=max(view.seen_epoch, event.epoch)), [ReadRecord()]


def _begin_round(view: View, now_s: float) -> tuple[View, list[Action]]:
    if now_s - view.round_s < view.ttl_s / ROUNDS_PER_TTL - 1e-6:
        return view, []
    due = sorted(
        app
        for app, tried_s in view.unable.items()
        if now_s - tried_s >= (RETRY_UNABLE_S if view.owner(app) else view.ttl_s / 2)
    )
    view = replace(view, round_s=now_s, unable={**view.unable, **dict.fromkeys(due, now_s)} if due else view.unable)
    return view, [ReadHeartbeats(view.peers_to_read), ReadRecord(), *map(TryToServe, due)]


def _take_local(view: View, event: Event, now_s: float) -> View:
    """What says nothing of the record."""
    match event:
        case Announced(app, announced=True):
            view = replace(view, announced=view.announced | {app})
            if view.owner(app) == view.replica_id and app not in view.epochs:
                view = replace(view, epochs={**view.epochs, app: view.record.epoch})
        case Announced(app):
            epochs, refused = _without(view.epochs, {app}), _without(view.refused, {app})
            view = replace(view, announced=view.announced - {app}, epochs=epochs, refused=refused)
        case Unable(app, until_able):
            tried_s = inf if until_able or view.unable.get(app) == inf else now_s
            view = replace(view, unable={**view.unable, app: tried_s})
        case Able(app):
            view = replace(view, unable=_without(view.unable, {app}))
        case EarlierVersion(epoch=0):
            view = replace(view, earlier_version_s=now_s)
        case EarlierVersion(epoch):
            view = replace(view, seen_epoch=max(view.seen_epoch, epoch))
        case Stop():
            view = replace(view, stopping=True)
    return view


def _heartbeat_due(view: View, now_s: float) -> bool:
    """A heartbeat says: the record was just read."""
    if view.stopping:
        return False
    return now_s - view.heartbeat_sent_s >= view.ttl_s / (ROUNDS_PER_TTL + 1) and now_s - view.answered_s <= view.ttl_s


def _adopt(view: View, event: RecordRead | RecordWritten) -> View:
    """Believe a record that was read or written directly, unless a newer one has been seen."""
    record = event.record
    if record == view.record and view.revision >= 0:
        confirmed_s = max(view.confirmed_s, event.sent_s)
        view = replace(view, revision=event.revision, confirmed_s=confirmed_s, failing_s=-inf, older=None)
    elif record.epoch < view.seen_epoch or (record.epoch == view.record.epoch and view.revision >= 0):
        return replace(view, older=OlderRecord(event.revision, record))
    else:
        # Who has missed a record may have been no owner in between: it takes the newest epoch for everything.
        kept = view.epochs if record.previous == view.record.epoch else {}
        view = replace(
            view,
            record=record,
            revision=event.revision,
            confirmed_s=event.sent_s,
            failing_s=-inf,
            older=None,
            seen_epoch=max(view.seen_epoch, record.epoch),
            peers={name: peer for name, peer in view.peers.items() if name in record.replicas},
        )
        mine = [app for app in sorted(view.announced) if view.owner(app) == view.replica_id]
        view = replace(view, epochs={app: kept.get(app, record.epoch) for app in mine})
    return _settle_refusals(view)


def _settle_refusals(view: View) -> View:
    """What agents know a newer epoch of is taken again under that of a record which is newer still."""
    settled = {app for app, epoch in view.refused.items() if app not in view.epochs or view.record.epoch > epoch}
    if not settled:
        return view
    epochs = {app: view.record.epoch if app in settled else epoch for app, epoch in view.epochs.items()}
    return replace(view, epochs=epochs, refused=_without(view.refused, settled))


def _follow_heartbeats(view: View, event: HeartbeatsRead, now_s: float) -> dict[str, Peer]:
    """Since when each heartbeat has not changed, in a series of reads without a gap."""
    peers = dict(view.peers)
    for name in view.peers_to_read:
        revision, known = event.revisions.get(name, 0), peers.get(name)
        if known is None or event.sent_s - known.read_s > view.ttl_s / 2:
            peers[name] = Peer(revision, now_s, event.sent_s)
        elif revision == known.revision:
            peers[name] = replace(known, read_s=max(known.read_s, event.sent_s))
        elif event.sent_s > known.since_s:  # else an answer that came late
            peers[name] = Peer(revision, now_s, event.sent_s)
    return peers


def _next_record(view: View, now_s: float, wall_ms: int) -> Members | None:
    """The record that this replica wants instead, or None.

    Itself in or out, without the silent, and what it cannot serve.
    """
    if (
        (view.revision < 0 and not view.older)
        or now_s - view.writing_s < view.ttl_s / 2
        or now_s - min(view.answered_s, view.heartbeat_s) > view.ttl_s
        or view.answered_s < view.conflict_s
        or waits_for_earlier_version(view, now_s)
    ):
        return None
    current = view.older.record if view.older else view.record
    silent = {name for name, peer in view.peers.items() if peer.read_s - peer.since_s >= view.ttl_s}
    others = set(current.replicas) - silent - {view.replica_id}
    is_known = current.rule == RENDEZVOUS_RULE
    if others and not is_known:
        return None  # members of another version live, and know how owners follow
    failed = {app for app, tried_s in view.unable.items() if tried_s < inf}
    leaves = view.stopping or len(failed) > MOST_UNABLE
    names = others if leaves else others | {view.replica_id}
    unable = {app: {name for name in those if name in others} for app, those in current.unable.items()}
    for app in () if leaves else [*failed, *sorted(view.unable.keys() - failed)[: MOST_UNABLE - len(failed)]]:
        unable.setdefault(app, set()).add(view.replica_id)
    replicas, now_unable = tuple(sorted(names)), {app: tuple(sorted(those)) for app, those in unable.items() if those}
    is_same = (replicas, now_unable) == (current.replicas, current.unable) and is_known
    if is_same and current.epoch >= view.seen_epoch and not view.older:
        return None
    return Members(
        epoch=next_epoch(view.replica_id, max(current.epoch, view.seen_epoch), wall_ms),
        previous=current.epoch,
        replicas=replicas,
        unable=now_unable,
        time_ns=wall_ms * 1_000_000,
    )


def next_epoch(replica_id: str, above: int, wall_ms: int) -> int:
    """The smallest epoch above ``above`` and from ``wall_ms`` on whose low bits are the replica's own."""
    lowest, size = max(above + 1, wall_ms), 1 << WRITER_BITS
    own = int.from_bytes(blake2b(replica_id.encode(), digest_size=2).digest()) % size
    return lowest + (own - lowest) % size


def _without(values: Mapping[str, ValueT], names: Collection[str]) -> dict[str, ValueT]:
    return {name: value for name, value in values.items() if name not in names}
