"""What was said, written and done in a soak, in one order of time: what a violation is explained by.

Orders and their replies, batches, registrations and leases are read off the wire; values of control files come from the
observer's samples, so a write stands up to 20 ms after it was made. A message that nobody could deliver is missing.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final, NamedTuple

from schemas.cfs import CfsBatch
from schemas.codec import CodecError, decode
from schemas.containers import NodeInfo
from schemas.leases import Members
from schemas.limits import LimitReply, LimitUpdate, RowStatus
from schemas.message import ColumnarMessage, Message
from schemas.permissions import INBOX
from schemas.streams import LEASES, NODES
from schemas.subjects import CFS, LIMIT_UPDATES
from services._runtime.bus.api import Bus
from services._runtime.bus.nats import NatsBus
from services._runtime.bus.nats_tap import tap
from tests.support.invariant_rules import container_of
from tests.support.limit_observer import Sample

BEFORE_S: Final = 5.0
AFTER_S: Final = 1.0
"""Around a violation; what led to it began with a change of owner before, mostly."""


class Moment(NamedTuple):
    """A line of the timeline."""

    time_s: float
    """Monotonic, as the observer's samples."""
    text: str


class Timeline:
    """Everything that happened, to be looked up afterwards."""

    def __init__(self) -> None:
        self._moments: list[Moment] = []
        self._limits: dict[str, tuple[int, int]] = {}

    def note(self, time_s: float, text: str) -> None:
        """Something happened."""
        self._moments.append(Moment(time_s, text))

    def sample(self, sample: Sample) -> None:
        """Values of control files, as far as they have changed."""
        time_s, apps = sample
        for app, groups in apps.items():
            changed = [
                f"{container_of(directory)} {reading.quota_us} us {reading.limit_bytes} bytes"
                for directory, reading in groups.items()
                if self._limits.get(directory) != reading.limits
            ]
            self._limits |= {directory: reading.limits for directory, reading in groups.items()}
            if changed:
                sum_us = sum(max(reading.quota_us, 0) for reading in groups.values())
                sum_bytes = sum(max(reading.limit_bytes, 0) for reading in groups.values())
                self.note(time_s, f"files of {app}: {', '.join(changed)}; sum {sum_us} us {sum_bytes} bytes")

    def message(self, subject: str, data: bytes) -> None:
        """A message on the wire; what is of no interest is left out."""
        try:
            text = _described(decode(data), subject)
        except CodecError:
            return
        if text is not None:
            self.note(time.monotonic(), text)

    async def follow(self, bus: Bus) -> AsyncIterator[None]:
        """Listen; once resumed, no longer."""
        assert isinstance(bus, NatsBus)
        buckets = [f"$KV.{bucket.bucket_name(bus.root)}.>" for bucket in (LEASES, NODES)]
        patterns = [CFS.pattern(bus.root).text, LIMIT_UPDATES.pattern(bus.root).text, f"{INBOX}.>", *buckets]
        subscriptions = [await tap(bus, pattern, self.message) for pattern in patterns]
        try:
            yield
        finally:
            for subscription in subscriptions:
                await subscription.stop()

    def around(self, begin_s: float, end_s: float) -> list[str]:
        """Lines from `BEFORE_S` before to `AFTER_S` after."""
        found = [moment for moment in self._moments if begin_s - BEFORE_S <= moment.time_s <= end_s + AFTER_S]
        return [f"{moment.time_s:.3f} {moment.text}" for moment in sorted(found)]

    def write(self, path: Path) -> None:
        """All of it."""
        path.write_text("\n".join(f"{moment.time_s:.3f} {moment.text}" for moment in sorted(self._moments)), "utf-8")


def _described(message: Message, subject: str) -> str | None:
    describe = _DESCRIBE.get(type(message))
    return None if describe is None else describe(message, subject)


def _rows(message: ColumnarMessage, *columns: str) -> str:
    return ", ".join(
        " ".join([str(row["container"]), *(f"{name}={row[name]}" for name in columns)]) for row in message.rows()
    )


def _order(update: Message, _subject: str) -> str:
    assert isinstance(update, LimitUpdate)
    head = f"order to {update.node} incarnation {update.incarnation} epoch {update.epoch} seq {update.seq}"
    apps = ", ".join(update.apps)
    return f"{head} of {apps}: {_rows(update, 'quota_us', 'limit_bytes') or 'no containers'}"


def _reply(reply: Message, _subject: str) -> str:
    assert isinstance(reply, LimitReply)
    head = f"reply of {reply.node} report {reply.report_seq} to epoch {reply.epoch} seq {reply.seq}"
    refused = f" REFUSED {reply.rejection}" if reply.rejection else ""
    stale = f" STALE {', '.join(reply.stale_apps)}" if reply.stale_apps else ""
    failed = [RowStatus(status).name for status in reply.column("status").tolist()]
    return f"{head}{refused}{stale}: {_rows(reply, 'quota_us', 'limit_bytes', 'limit_update_seq')} {' '.join(failed)}"


def _batch(batch: Message, _subject: str) -> str:
    assert isinstance(batch, CfsBatch)
    head = f"batch of {batch.node} incarnation {batch.incarnation} report {batch.report_seq} of {batch.app}"
    inventory = "" if batch.inventory_complete else " (inventory incomplete)"
    return f"{head}{inventory}: {_rows(batch, 'used_us', 'quota_us', 'memory_limit_bytes', 'limit_update_seq')}"


def _members(members: Message, _subject: str) -> str:
    assert isinstance(members, Members)
    unable = "".join(f", {app} not by {' '.join(names)}" for app, names in members.unable.items())
    return f"members epoch {members.epoch} after {members.previous}: {', '.join(members.replicas)}{unable}"


def _node(node: Message, _subject: str) -> str:
    assert isinstance(node, NodeInfo)
    pending = f", waits for {', '.join(node.sources_pending)}" if node.sources_pending else ""
    return f"registration of {node.node} incarnation {node.incarnation}: {node.container_count} containers{pending}"


_DESCRIBE: Final[dict[type[Message], Callable[[Message, str], str | None]]] = {
    LimitUpdate: _order,
    LimitReply: _reply,
    CfsBatch: _batch,
    Members: _members,
    NodeInfo: _node,
}
