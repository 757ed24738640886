"""What a watch makes of a listing after another."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace

from schemas.leases import Lease
from schemas.streams import LEASES
from services._runtime.bus.api import Entry
from services._runtime.bus.dispatch import Dispatch
from services._runtime.bus.nats_kv import Listing, NatsWatch


def entry(revision: int) -> Entry:
    return Entry("app.shop", Lease(owner=f"r{revision}", epoch=revision, time_ns=0), revision)


class Bucket:
    """Lists what it holds."""

    def __init__(self, created: datetime) -> None:
        self.spec = LEASES
        self.bus = SimpleNamespace(dispatch=Dispatch())
        self.created = created
        self.listed: Entry = entry(10)
        self.watch: NatsWatch | None = None
        self.lacking = False
        self.reconnects = False

    async def listing(self) -> Listing:
        if self.reconnects:
            self.watch.synchronise_soon()
        return Listing(self.created, self.listed.revision, {} if self.lacking else {self.listed.key: self.listed})


async def watching(bucket: Bucket, monkeypatch) -> list[int]:
    seen: list[int] = []
    bucket.watch = NatsWatch(bucket, lambda _key, each: seen.append(each.revision if each else 0))

    async def subscribed() -> None:
        return

    monkeypatch.setattr(bucket.watch, "_subscribe", subscribed)
    await bucket.watch.synchronise()
    return seen


async def test_a_bucket_that_was_made_anew_is_told_again_with_its_small_revisions(monkeypatch):
    bucket = Bucket(datetime(2026, 1, 1, tzinfo=UTC))
    seen = await watching(bucket, monkeypatch)
    bucket.created, bucket.listed = datetime(2026, 1, 2, tzinfo=UTC), entry(3)

    await bucket.watch.synchronise()

    assert seen == [10, 3]


async def test_what_one_listing_lacked_and_the_next_names_is_there_again(monkeypatch):
    """An application would have stayed withdrawn for ever in the one replica that should own it."""
    bucket = Bucket(datetime.now(UTC))
    seen = await watching(bucket, monkeypatch)
    bucket.lacking = True
    await bucket.watch.synchronise()
    bucket.lacking = False

    await bucket.watch.synchronise()

    assert seen == [10, 0, 10]


async def test_a_bucket_is_listed_again_where_the_connection_broke_during_a_listing(monkeypatch):
    """What was listed may be of the server before: following its revisions would pass over the new ones."""
    bucket = Bucket(datetime.now(UTC))
    bucket.reconnects = True
    await watching(bucket, monkeypatch)
    assert not await bucket.watch._follow()

    bucket.reconnects = False
    await bucket.watch.synchronise()
    assert bucket.watch._next == 11
