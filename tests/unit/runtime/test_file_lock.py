"""Lock files: one holder at a time, named in the file; children keep a flock, and no lock of their parent's process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from services._runtime import file_lock
from services._runtime.file_lock import (
    FileLock,
    LockHeldError,
    lock_present_file,
    open_lock_file,
    try_flock,
    try_process_lock,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "x.lock"


@pytest.fixture
def child() -> Iterator[list[int]]:
    """Pids of forked children, killed at the end."""
    started: list[int] = []
    yield started
    for pid in started:
        os.kill(pid, 9)
        os.waitpid(pid, 0)


def fork_and_wait(started: list[int]) -> None:
    if (pid := os.fork()) == 0:
        while True:
            os.read(os.pipe()[0], 1)
    started.append(pid)


def test_the_second_one_learns_who_holds_it(path: Path) -> None:
    first = FileLock(path, b"the first")
    with pytest.raises(LockHeldError) as refused:
        FileLock(path, b"the second", attempts=2)
    assert refused.value.holder == b"the first"

    first.release()
    first.release()
    assert path.read_bytes() == b"", "a file without a holder names none"
    second = FileLock(path, b"2")
    assert path.read_bytes() == b"2"
    second.release()


def test_what_an_earlier_holder_left_is_not_kept(path: Path) -> None:
    path.write_bytes(b"a much longer text")
    lock = FileLock(path, b"short")
    assert path.read_bytes() == b"short"
    lock.release()


def test_a_detached_lock_lasts_until_its_descriptor_is_closed(path: Path) -> None:
    lock = FileLock(path, b"1")
    descriptor = lock.detach()
    lock.release()
    with pytest.raises(LockHeldError):
        FileLock(path, b"2")

    os.close(descriptor)
    FileLock(path, b"2").release()


def test_a_child_keeps_a_flock(path: Path, child: list[int]) -> None:
    lock = FileLock(path, b"1")
    fork_and_wait(child)
    os.close(lock.detach())

    with pytest.raises(LockHeldError):
        FileLock(path, b"2")


def test_a_child_does_not_keep_a_process_lock(path: Path, child: list[int]) -> None:
    descriptor = open_lock_file(path)
    assert try_process_lock(descriptor)
    fork_and_wait(child)
    os.close(descriptor)

    answer, told = os.pipe()
    if (other := os.fork()) == 0:
        os.write(told, b"1" if try_process_lock(open_lock_file(path)) else b"0")
        os._exit(0)
    os.waitpid(other, 0)
    assert os.read(answer, 1) == b"1"


def test_another_process_holds_a_process_lock(path: Path) -> None:
    descriptor = open_lock_file(path)
    assert try_process_lock(descriptor)
    answer, told = os.pipe()
    if (other := os.fork()) == 0:
        os.write(told, b"1" if try_process_lock(open_lock_file(path)) else b"0")
        os._exit(0)
    os.waitpid(other, 0)
    assert os.read(answer, 1) == b"0"
    os.close(descriptor)


def test_one_process_may_not_hold_two_open_files(path: Path) -> None:
    first, second = open_lock_file(path), open_lock_file(path)
    assert try_flock(first)
    assert not try_flock(second)
    os.close(first)
    assert try_flock(second)
    os.close(second)


def test_a_file_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        FileLock(tmp_path / "absent" / "x.lock", b"1")


def test_a_file_that_is_held_is_not_locked_again_and_one_that_was_removed_is_made_anew(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its holder removes it between our opening and locking of it: that lock would exclude nobody."""
    first = lock_present_file(path)
    assert first is not None
    assert lock_present_file(path) is None

    opened: list[int] = []

    def open_and_lose(path: Path) -> int:
        opened.append(open_lock_file(path))
        if len(opened) == 1:
            path.unlink()
            os.close(first)
        return opened[-1]

    monkeypatch.setattr(file_lock, "open_lock_file", open_and_lose)
    second = lock_present_file(path)
    assert second == opened[-1]
    assert len(opened) == 2
    assert os.path.samestat(os.fstat(second), path.stat())
    os.close(second)
