"""What ends the rest between two polls of the runner."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from services._host.moved_files import MovedFiles
from services.runner.wakeups import WakeUps

pytestmark = pytest.mark.virtual_time


@pytest.fixture
def wakeups() -> Iterator[WakeUps]:
    made = WakeUps()
    yield made
    made.close()


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    made = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    yield made
    for each in made:
        each.close()


async def waited_s(wakeups: WakeUps, most_s: float) -> float:
    began_s = time.monotonic()
    await wakeups.wait(most_s)
    return time.monotonic() - began_s


async def test_it_is_waited_for_no_longer_than_asked(wakeups: WakeUps) -> None:
    assert await waited_s(wakeups, 100.0) == pytest.approx(100.0, abs=1.0)


async def test_what_can_be_read_ends_the_wait_also_if_it_comes_later(
    wakeups: WakeUps, pair: tuple[socket.socket, socket.socket]
) -> None:
    near, far = pair
    wakeups.add(near.fileno())
    far.send(b"before")
    assert await waited_s(wakeups, 1_000.0) < 10.0
    near.recv(10)
    asyncio.get_running_loop().call_later(100.0, far.send, b"later")
    assert await waited_s(wakeups, 1_000.0) == pytest.approx(100.0, abs=10.0)


async def test_what_is_left_unread_wakes_nobody_until_the_next_wait(
    wakeups: WakeUps, pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that reports without a pause costs no more wake-ups than there are polls."""
    near, far = pair
    wakeups.add(near.fileno())
    far.send(b"unread")
    await wakeups.wait(1_000.0)
    loop = asyncio.get_running_loop()
    rounds = 0
    run_once = loop._run_once  # type: ignore[attr-defined]

    def count() -> None:
        nonlocal rounds
        rounds += 1
        run_once()

    monkeypatch.setattr(loop, "_run_once", count)
    await asyncio.sleep(100.0)
    assert rounds <= 10
    assert await waited_s(wakeups, 1_000.0) < 10.0


async def test_what_was_removed_is_not_waited_for(wakeups: WakeUps, pair: tuple[socket.socket, socket.socket]) -> None:
    near, far = pair
    wakeups.add(near.fileno())
    far.send(b"unread")
    wakeups.remove(near.fileno())
    wakeups.remove(far.fileno())
    assert await waited_s(wakeups, 100.0) == pytest.approx(100.0, abs=1.0)


async def test_a_file_that_is_moved_into_a_watched_directory_ends_the_wait(wakeups: WakeUps, tmp_path: Path) -> None:
    """As a record comes; one that is only written, or overwritten, does not."""
    moved = MovedFiles()
    wakeups.add(moved.fileno())
    watched = tmp_path / "watched"
    watched.mkdir()
    watch = moved.watch(str(watched))
    try:
        (watched / "draft").write_text("a record")
        (watched / "draft").write_text("another")
        assert await waited_s(wakeups, 100.0) == pytest.approx(100.0, abs=1.0)
        assert not moved.drain()
        (watched / "draft").rename(watched / "record")
        assert await waited_s(wakeups, 1_000.0) < 10.0
        assert moved.drain()
        assert not moved.drain()
        moved.forget(watch)
        moved.drain()  # the kernel says that it is forgotten
        (watched / "record").rename(watched / "again")
        assert await waited_s(wakeups, 100.0) == pytest.approx(100.0, abs=1.0)
    finally:
        wakeups.remove(moved.fileno())
        moved.close()
        moved.close()


async def test_a_directory_that_is_not_there_cannot_be_watched(tmp_path: Path) -> None:
    moved = MovedFiles()
    try:
        with pytest.raises(FileNotFoundError):
            moved.watch(str(tmp_path / "missing"))
        (tmp_path / "file").touch()
        with pytest.raises(NotADirectoryError):
            moved.watch(str(tmp_path / "file"))
    finally:
        moved.close()
