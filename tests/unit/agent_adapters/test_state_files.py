"""Files that outlive the agent: reserves, original values, reports, locks."""

from __future__ import annotations

import fcntl
import json
import os
import zlib
from pathlib import Path

import pytest

from services._runtime.file_lock import is_locked
from services._runtime.settings_error import UnusableSettingsError
from services.agent.cgroup.simulated import InMemoryReserveStore
from services.agent.host_lock import HostLock, exec_lock, prepare_state
from services.agent.memory.reserve_store import FileReserveStore
from services.agent.ports import Reserve, ReserveStore, WatchdogReport
from services.agent.state_files import FoundValues, StateDirectory, inode_of, read_holder, save_file
from services.agent.watchdog.process import WatchdogOptions, WatchdogProcess
from services.agent.watchdog.reports import append_reports, take_report_lines


@pytest.fixture(params=["file", "memory"])
def book(request, tmp_path: Path) -> ReserveStore:
    return FileReserveStore(tmp_path / "reserves.json") if request.param == "file" else InMemoryReserveStore()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "reserves.json"


@pytest.fixture
def state(tmp_path: Path) -> StateDirectory:
    return prepare_state(tmp_path, "turnbuckle")


def test_nothing_is_reserved_at_first(book):
    assert book.read() == {}
    assert book.spend("shop", 100) == 0


def test_a_reserve_is_given_and_spent(book):
    assert book.give("shop", 1000) == Reserve(1000, 0)
    assert book.spend("shop", 300) == 300
    assert book.spend("shop", 10_000) == 700
    assert book.spend("shop", 1) == 0
    assert book.read() == {"shop": Reserve(1000, 1000)}
    assert book.give("shop", 1500).left_bytes == 500


def test_given_never_falls_below_used(book):
    book.give("shop", 1000)
    book.spend("shop", 600)
    assert book.give("shop", 100) == Reserve(600, 600)


def test_a_refund_can_be_spent_again(book):
    book.give("shop", 1000)
    book.spend("shop", 600)
    book.refund("shop", 200)
    assert book.read()["shop"] == Reserve(1000, 400)


def test_void_leaves_nothing_to_spend(book):
    book.give("shop", 1000)
    book.give("other", 5)
    book.void("shop")
    assert book.read() == {"shop": Reserve(1000, 1000), "other": Reserve(5, 0)}


def test_another_process_sees_it_and_is_seen(file):
    agent, watchdog = FileReserveStore(file), FileReserveStore(file)
    agent.give("shop", 1000)
    assert watchdog.spend("shop", 400) == 400
    assert agent.read()["shop"].left_bytes == 600
    assert agent.spend("shop", 1000) == 600


def book_of(reserves: object, text_format: int = 1) -> bytes:
    """A book as it is written, in its first half."""
    text = json.dumps({"format": text_format, "serial": 2, "reserves": reserves}).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def test_a_book_is_what_it_is_taken_for(file):
    file.write_bytes(book_of({"shop": [1000, 4]}))
    assert FileReserveStore(file).read() == {"shop": Reserve(1000, 4)}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\x00\x01",
        bytes(1 << 17),
        book_of({"shop": [1000, 4]})[:40],
        book_of({"shop": [1000, 4]}).replace(b"1000", b"9000"),
        book_of({"shop": [1000, 0]}, text_format=2),
        book_of({"shop": [1000, -4]}),
        book_of({"shop": [1000]}),
        book_of({"shop": ["1000", True]}),
        book_of([3]),
    ],
)
def test_torn_or_foreign_content_is_an_empty_book_and_is_replaced(file, content):
    file.write_bytes(content)
    book = FileReserveStore(file)
    assert book.read() == {}
    assert book.spend("shop", 10) == 0
    assert book.give("shop", 50) == Reserve(50, 0)
    assert FileReserveStore(file).read() == {"shop": Reserve(50, 0)}


def test_who_is_killed_while_writing_leaves_what_was_there_before(file):
    book = FileReserveStore(file)
    book.give("shop", 1000)
    before = file.read_bytes()
    book.spend("shop", 400)
    after = bytearray(file.read_bytes())
    [half] = [at for at in (0, 1 << 16) if after[at : at + 200] != before[at : at + 200]]
    after[half + 30 : half + 40] = bytes(10)
    file.write_bytes(after)
    assert book.read() == {"shop": Reserve(1000, 0)}
    assert book.spend("shop", 400) == 400
    assert book.read() == {"shop": Reserve(1000, 400)}


def test_a_thousand_applications_fit(file):
    book = FileReserveStore(file)
    for number in range(1000):
        book.give(f"application-{number}", 1 << 36)
    assert len(book.read()) == 1000


def test_while_the_other_process_holds_the_book_a_reserve_counts_as_empty(file):
    book = FileReserveStore(file)
    book.give("shop", 1000)
    with file.open("r+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert book.spend("shop", 100) == 0
        assert book.give("shop", 2000) == Reserve(0, 0)
        book.refund("shop", 1)
        assert book.read() == {"shop": Reserve(1000, 0)}
    assert book.spend("shop", 100) == 100


def test_a_directory_that_has_gone_is_an_empty_book(tmp_path):
    book = FileReserveStore(tmp_path / "gone" / "reserves.json")
    assert (book.read(), book.give("shop", 100), book.spend("shop", 1)) == ({}, Reserve(0, 0), 0)


def found(directory: Path, key: str = "web-0123456789ab") -> FoundValues:
    inode = inode_of(str(directory))
    assert inode is not None
    return FoundValues(key, "shop", "0123456789ab", 2, {"cpu": "/c", "memory": str(directory)}, inode)


def test_values_found_first_are_kept(state, tmp_path):
    group = tmp_path / "group"
    group.mkdir()
    noted = found(group)
    noted.guarded = True
    noted.values["memory.max"] = "67108864"
    state.save(noted)
    assert state.load(noted.key) == noted
    assert state.load_all() == [noted]
    assert noted.exists()
    group.rmdir()
    assert not noted.exists()
    state.forget(noted.key)
    state.forget(noted.key)
    assert (state.load(noted.key), state.load_all()) == (None, [])


def test_values_of_another_boot_or_of_something_else_are_none_and_are_swept(state, tmp_path):
    noted = found(tmp_path)
    state.save(noted)
    directory = state.path / "originals"
    note = json.loads((directory / f"{noted.key}.json").read_text())
    (directory / "old.json").write_text(json.dumps(note | {"boot": "an earlier one"}))
    (directory / "torn.json").write_text(json.dumps(note)[:40])
    (directory / "odd.json").write_text(json.dumps(note | {"surprise": 1}))
    (directory / "odd2.json").write_text(json.dumps(note | {"directories": []}))
    (state.path / ".reserves.json.4194305").write_text("left by a killed writer")
    assert state.load_all() == [noted]
    state.sweep()
    assert [path.name for path in directory.iterdir()] == [f"{noted.key}.json"]
    assert not (state.path / ".reserves.json.4194305").exists()


REPORT = WatchdogReport(
    "web-0123456789ab", "shop", 5, granted=True, usage_bytes=1, limit_before_bytes=2, limit_after_bytes=3, paused_us=4
)


def test_reports_are_taken_once(state, tmp_path):
    watchdog = WatchdogProcess(state, WatchdogOptions(tmp_path / "lock", 2.0, 0.5))
    assert watchdog.take_reports() == []
    append_reports(state.reports, [REPORT._asdict()])
    append_reports(state.reports, [REPORT._replace(granted=False)._asdict()])
    assert watchdog.take_reports() == [REPORT, REPORT._replace(granted=False)]
    assert watchdog.take_reports() == []


def test_what_an_agent_took_but_did_not_store_is_taken_again_by_the_next_one(state, tmp_path):
    options = WatchdogOptions(tmp_path / "lock", 2.0, 0.5)
    append_reports(state.reports, [REPORT._asdict()])
    assert WatchdogProcess(state, options).take_reports() == [REPORT]  # and is killed
    later = REPORT._replace(granted=False)
    append_reports(state.reports, [later._asdict()])
    agent = WatchdogProcess(state, options)
    assert agent.take_reports() == [REPORT, later]
    assert agent.take_reports() == []
    agent.forget_reports()
    agent.forget_reports()
    assert WatchdogProcess(state, options).take_reports() == []


def test_reports_that_are_torn_or_foreign_are_left_out(state, tmp_path):
    append_reports(state.reports, [{"what": "ever"}])
    append_reports(state.reports, [REPORT._asdict()])
    append_reports(state.reports, [REPORT._asdict() | {"time_ns": "late"}])
    with state.reports.open("a") as file:
        file.write('{"key": "web-01')
    assert WatchdogProcess(state, WatchdogOptions(tmp_path / "lock", 2.0, 0.5)).take_reports() == [REPORT]
    state.reports.write_bytes(b"\xff\xfe")
    assert take_report_lines(state.reports, state.taken_reports) == []


def lock(path: Path, node: str = "n1") -> HostLock:
    return HostLock(path, node=node, what="the containers of Docker", remedy="do something else")


def test_a_second_agent_is_told_who_holds_the_lock_and_what_to_do(tmp_path):
    path = exec_lock(tmp_path, "turnbuckle")
    first = lock(path)
    holder = read_holder(path)
    assert (holder.pid, holder.node) == (os.getpid(), "n1")
    with pytest.raises(UnusableSettingsError) as refusal:
        lock(path, "n2")
    for word in ("the containers of Docker", "'n1'", f"pid {os.getpid()}", holder.started, str(path), "do something"):
        assert word in str(refusal.value)
    assert read_holder(path) == holder
    first.release()
    first.release()
    lock(path, "n2").release()


def test_a_lock_ends_with_its_process_and_a_new_one_replaces_the_holder(tmp_path):
    path = tmp_path / "exec-x.lock"
    save_file(path, {"pid": 1, "node": "dead", "started": "long ago"})
    assert not is_locked(path)
    held = lock(path)
    assert is_locked(path)
    assert read_holder(path).node == "n1"
    held.release()
    assert not is_locked(path)
    assert read_holder(path) is None


def test_an_illegible_holder_is_still_a_holder(tmp_path):
    path = tmp_path / "exec-x.lock"
    with path.open("w") as file:
        file.write("?")
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(UnusableSettingsError, match="another process"):
            lock(path)


def test_no_lock_file_is_not_locked(tmp_path):
    assert not is_locked(tmp_path / "none.lock")


def test_a_state_directory_that_cannot_be_made_names_the_setting(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UnusableSettingsError, match="TURNBUCKLE_AGENT__STATE_DIRECTORY"):
        prepare_state(tmp_path / "file" / "state", "turnbuckle")
    with pytest.raises(UnusableSettingsError, match="TURNBUCKLE_AGENT__STATE_DIRECTORY"):
        lock(tmp_path / "file" / "exec.lock")
