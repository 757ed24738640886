"""The store by which workers find each other: at which addresses it answers."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from services.trainer.commands.elastic_workers import Store
from services.trainer.commands.starters import ProcessStarter
from services.trainer.core.worker_place import Form, Place


async def answers(host: str, port: int) -> bool:
    """Whether somebody accepts a connection there."""
    with suppress(ConnectionRefusedError):
        _, writer = await asyncio.open_connection(host, port)
        writer.close()
        await writer.wait_closed()
        return True
    return False


async def test_the_store_of_processes_is_reached_at_the_loopback_address_only() -> None:
    """It has no key: at all addresses, any host of the network could write what workers read."""
    store = await Store.start(ProcessStarter(), Place())
    try:
        host, _, port = store.address.rpartition(":")
        assert host == "127.0.0.1"
        # 127.0.0.2 is this machine as well, and stands for its other addresses.
        assert [await answers(each, int(port)) for each in (host, "127.0.0.2")] == [True, False]
    finally:
        await store.close()


async def test_the_store_in_a_network_of_its_own_is_reached_at_every_address_there() -> None:
    """A container's address is not known before it runs."""
    store = await Store.start(ProcessStarter(), Place(Form.SANDBOX))
    try:
        port = int(store.address.rpartition(":")[2])
        assert [await answers(each, port) for each in ("127.0.0.1", "127.0.0.2")] == [True, True]
    finally:
        await store.close()
