"""Object stores: whole or not there, newest by revision, damage noticed, pieces of abandoned puts swept up."""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from typing import Any

import pytest

from schemas.streams import MODELS, ObjectStoreSpec
from services._runtime.bus.api import BusError, BusUnavailableError, CorruptObjectError, ObjectStoreFullError
from services._runtime.bus.embedded_server import EmbeddedNats
from services._runtime.bus.nats import NatsBus
from services._runtime.bus.nats_objects import NatsObjects
from services._runtime.bus.options import BusOptions
from tests.support.bus_lab import BusLab, Damage, NatsLab
from tests.support.deadline import until

LARGE = bytes(range(256)) * 1_600  # 409,600 bytes: four pieces of 128 KiB
SMALL_STORE = ObjectStoreSpec("small", "for tests", max_bytes=400 << 10)


async def test_put_and_get(lab: BusLab) -> None:
    """Any size and any text as a name; attributes and digest come back; a missing object is None."""
    writer, reader = (await lab.bus()).objects(MODELS), (await lab.bus()).objects(MODELS)
    name = "v1/ä model.*>"

    put = await writer.put(name, LARGE, {"algorithm": "ours"})
    found = await reader.get(name)

    assert found is not None
    assert found.data == LARGE
    assert found.info == put
    assert (put.name, put.size_bytes, put.sha256) == (name, 409_600, hashlib.sha256(LARGE).hexdigest())
    assert put.attributes == {"algorithm": "ours"}
    assert await reader.get("nothing") is None


async def test_an_empty_object(lab: BusLab) -> None:
    """Has no pieces and is there."""
    store = (await lab.bus()).objects(MODELS)

    await store.put("empty", b"")
    found = await store.get("empty")

    assert found is not None
    assert found.data == b""


async def test_names_that_cannot_be(lab: BusLab) -> None:
    """Not a crash deep inside."""
    store = (await lab.bus()).objects(MODELS)

    for name in ("", "\ud800"):
        with pytest.raises(BusError):
            await store.put(name, b"x")
        with pytest.raises(BusError):
            await store.get(name)


async def test_newer_replaces_older(lab: BusLab) -> None:
    """Revisions rise over the whole store, so the greatest is the newest object."""
    store = (await lab.bus()).objects(MODELS)

    first = await store.put("a", b"one")
    second = await store.put("b", b"two")
    third = await store.put("a", LARGE)
    names = await store.names()
    found = await store.get("a")

    assert first.revision < second.revision < third.revision
    assert names == {"a": third, "b": second}
    assert found is not None
    assert found.data == LARGE


async def test_delete(lab: BusLab) -> None:
    """Gone for everyone; twice is fine; the name can be used again."""
    store, other = (await lab.bus()).objects(MODELS), (await lab.bus()).objects(MODELS)
    await store.put("a", LARGE)

    await store.delete("a")
    await store.delete("a")

    assert await other.get("a") is None
    assert await other.names() == {}
    await other.put("a", b"again")
    assert set(await store.names()) == {"a"}


@pytest.mark.parametrize("how", ["missing", "changed"])
async def test_damage_is_noticed(lab: BusLab, how: Damage) -> None:
    """A spoiled object is an error with its name, never other bytes and never a wait; others can still be read."""
    store = (await lab.bus()).objects(MODELS)
    await store.put("spoiled", LARGE)
    await store.put("fine", b"x")

    await lab.spoil_object(MODELS, "spoiled", how)

    async with asyncio.timeout(60):
        with pytest.raises(CorruptObjectError, match="spoiled"):
            await store.get("spoiled")
    assert (await store.get("fine")) is not None
    assert "fine" in await store.names()
    await store.delete("spoiled")
    assert set(await store.names()) == {"fine"}
    await store.put("spoiled", b"whole again")


async def test_readers_during_puts_see_one_or_the_other(lab: BusLab) -> None:
    """An object that is replaced again and again is always whole."""
    writer, reader = (await lab.bus()).objects(MODELS), (await lab.bus()).objects(MODELS)
    versions = [bytes([number]) * 200_000 for number in range(8)]
    await writer.put("model", versions[0])
    seen: list[bytes] = []

    async def read() -> None:
        while len(seen) < 10:
            found = await reader.get("model")
            assert found is not None
            seen.append(found.data)
            await asyncio.sleep(0)

    reading = asyncio.create_task(read())
    for version in versions[1:]:
        await writer.put("model", version)
        await asyncio.sleep(0)
    await reading

    assert all(data in versions for data in seen)


async def test_without_a_server(lab: BusLab) -> None:
    """An error that says so; what was stored is there when it is back."""
    bus = await lab.bus()
    store = bus.objects(MODELS)
    await store.put("a", b"kept")
    await lab.stop_server()
    await until(lambda: not bus.connected)

    with pytest.raises(BusUnavailableError):
        await store.put("b", b"x")
    with pytest.raises(BusUnavailableError):
        await store.get("a")

    await lab.start_server()
    await until(lambda: bus.connected)
    found = await store.get("a")
    assert found is not None
    assert found.data == b"kept"


async def test_a_full_store_refuses(nats_server: EmbeddedNats) -> None:
    """And keeps nothing of what it refused, so that a smaller one still fits."""
    bus = await _small_bus(nats_server)
    store = bus.objects(SMALL_STORE)

    with pytest.raises(ObjectStoreFullError):
        await store.put("large", LARGE + LARGE)
    assert await store.names() == {}
    await store.put("small", LARGE[:100_000])
    await store.put("small too", LARGE[:100_000])

    assert set(await store.names()) == {"small", "small too"}
    await bus.close(2.0)


async def test_what_a_killed_put_left_is_swept_up(nats_server: EmbeddedNats, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces without a description, once they are old; a put that goes on at the same time keeps its own."""
    monkeypatch.setattr("services._runtime.bus.nats_objects._ORPHAN_AGE_S", -1.0)
    lab = NatsLab(nats_server)
    store = (await lab.bus()).objects(MODELS)
    raw = (await lab.raw()).jetstream()
    bucket = MODELS.bucket_name(lab.root)
    await raw.publish(f"$O.{bucket}.C.abandoned", b"x" * 1000)
    await store.put("kept", LARGE)

    info = await raw.stream_info(f"OBJ_{bucket}", subjects_filter=f"$O.{bucket}.C.>")

    assert len(info.state.subjects or {}) == 1
    assert "abandoned" not in str(info.state.subjects)
    assert (await store.get("kept")) is not None
    await lab.close()


async def _small_bus(server: EmbeddedNats) -> NatsBus:
    root = f"t{uuid.uuid4().hex[:10]}"
    return await NatsBus.connect(
        BusOptions(
            servers=(server.url,),
            root=root,
            streams=(),
            buckets=(),
            object_stores=(SMALL_STORE,),
            connect_deadline_s=60.0,
        )
    )


async def test_a_put_whose_end_is_not_known_leaves_one_or_the_other(
    nats_server: EmbeddedNats, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server stores the description, and its answer gets lost: the pieces must not be taken away then."""
    lab = NatsLab(nats_server)
    bus = await lab.bus()
    assert isinstance(bus, NatsBus)
    store, publish = bus.objects(MODELS), bus.jetstream.publish

    async def answer_lost(subject: str, *arguments: Any, **options: Any) -> Any:
        stored = await publish(subject, *arguments, **options)
        if ".M." in subject:
            raise TimeoutError
        return stored

    monkeypatch.setattr(bus.jetstream, "publish", answer_lost)
    with pytest.raises(BusUnavailableError):
        await store.put("a", LARGE)

    found = await (await lab.bus()).objects(MODELS).get("a")
    assert found is not None
    assert found.data == LARGE
    await lab.close()


async def test_what_is_stored_is_no_failure_because_of_the_sweep(
    nats_server: EmbeddedNats, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sweeping is for others; the next put does it."""
    lab = NatsLab(nats_server)
    store = (await lab.bus()).objects(MODELS)

    async def unlisted(_: NatsObjects) -> list[object]:
        raise BusUnavailableError("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(NatsObjects, "_entries", unlisted)
        put = await store.put("a", b"x")

    assert (await store.names()) == {"a": put}
    await lab.close()
