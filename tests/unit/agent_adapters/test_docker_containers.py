"""The end of a run of containers, without an engine."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, cast

import pytest

from services._host.docker_containers import Containers


class Engine:
    """Takes its time to list containers, of which there are none."""

    def __init__(self) -> None:
        self.is_listing, self.may_go_on = threading.Event(), threading.Event()
        self.removed: list[str] = []

    def containers(self, **_: object) -> list[Any]:
        self.is_listing.set()
        self.may_go_on.wait(60)
        return []

    def remove_network(self, name: str) -> None:
        self.removed.append(name)

    def close(self) -> None:
        """Nothing is open."""


class Lifetimes:
    """Of no container."""

    def __init__(self) -> None:
        self.is_stopped = False

    def stop(self) -> None:
        self.is_stopped = True


async def test_the_thread_that_follows_the_engine_ends_also_where_the_end_is_cancelled() -> None:
    run, engine, lifetimes = Containers("test"), Engine(), Lifetimes()
    run._client, run.lifetimes = cast("Any", engine), cast("Any", lifetimes)
    ending = asyncio.ensure_future(run.__aexit__(None, None, None))
    await asyncio.to_thread(engine.is_listing.wait, 60)
    ending.cancel()
    await asyncio.sleep(0)
    engine.may_go_on.set()

    with pytest.raises(asyncio.CancelledError):
        await ending
    assert engine.removed == [run.name]
    assert lifetimes.is_stopped
