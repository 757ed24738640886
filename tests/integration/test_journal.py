"""The journal: torn at any byte, full disk, killed writers, doubled records."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from services.collector.write_ahead_log import (
    FILE_NAME,
    Journal,
    JournalError,
    JournalFullError,
    JournalInUseError,
    UnsendableRecordError,
    read_journal,
    record_key,
)
from tests.support.job_records import job_record, run_profile


def test_what_was_appended_is_there_after_a_restart(tmp_path: Path) -> None:
    records = [job_record(1), run_profile(1), job_record(2)]
    with Journal(tmp_path / "new" / "place") as journal:
        assert [journal.append(record) for record in records] == [True, True, True]
        journal.mark_published([record_key(records[0])])

    with Journal(tmp_path / "new" / "place") as journal:
        assert list(read_journal(journal.directory)) == records
        assert list(journal.unpublished()) == records[1:]
        assert (len(journal), journal.waiting) == (3, 2)
        assert "run:run-1" in journal


def test_a_known_job_is_kept_as_it_was(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        assert journal.append(job_record(1))
        assert not journal.append(job_record(1, duration_s=5.0))
    assert [record.duration_s for record in read_journal(tmp_path)] == [101.0]


def test_a_job_and_a_run_may_share_a_name(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        assert journal.append(run_profile(1))
        assert journal.append(job_record(1, job="run-1"))
        assert len(journal) == 2


def test_torn_anywhere_the_whole_lines_before_it_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As kill -9, or a power cut, may leave it: each prefix of the file is a journal of its whole lines."""
    monkeypatch.setattr(
        "services.collector.write_ahead_log.os.fsync", lambda _file: None
    )  # thousands of them take a minute
    with Journal(tmp_path / "whole") as journal:
        for number in (1, 2):
            journal.append(job_record(number))
        journal.mark_published(["job:job-1"])
    data = (tmp_path / "whole" / FILE_NAME).read_bytes()
    ends = [at + 1 for at, byte in enumerate(data) if byte == ord("\n")]
    torn = tmp_path / "torn"
    torn.mkdir()

    for length in [*range(0, len(data), 3), *ends, *(end - 1 for end in ends)]:
        (torn / FILE_NAME).write_bytes(data[:length])
        with Journal(torn) as journal:
            whole = sum(end <= length for end in ends)
            assert (len(journal), journal.waiting) == [(0, 0), (1, 1), (2, 2), (2, 1)][whole]
        assert (torn / FILE_NAME).read_bytes() == data[: ([0, *ends])[whole]]


@pytest.mark.parametrize("garbage", [b"\x00" * 4096, b"\xff\xfe\n", b'{"record": ', b"[" * 100_000 + b"\n"])
def test_garbage_at_the_end_is_cut_and_the_journal_goes_on(tmp_path: Path, garbage: bytes) -> None:
    with Journal(tmp_path) as journal:
        journal.append(job_record(1))
    with (tmp_path / FILE_NAME).open("ab") as file:
        file.write(garbage)

    assert list(read_journal(tmp_path)) == [job_record(1)]
    with Journal(tmp_path) as journal:
        assert journal.append(job_record(2))
    assert list(read_journal(tmp_path)) == [job_record(1), job_record(2)]


@pytest.mark.parametrize("mine", [b"", b'{"published":"job:a"}\n'])
@pytest.mark.parametrize(
    "foreign", [b'{"id": 1, "name": "a"}\n', b'{"type": "turnbuckle.job.v9.JobRecord"}\n', b"{}\n"]
)
def test_a_file_of_someone_else_is_refused_and_left_alone(tmp_path: Path, mine: bytes, foreign: bytes) -> None:
    """Another program's records.jsonl, or a later version's: whole lines are not torn ones."""
    (tmp_path / FILE_NAME).write_bytes(mine + foreign)
    with pytest.raises(JournalError, match="no record that this version knows: name another directory"):
        Journal(tmp_path)
    assert (tmp_path / FILE_NAME).read_bytes() == mine + foreign


def test_a_file_that_holds_other_text_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text("my notes\nand more\n")
    with pytest.raises(JournalError, match="is no journal: name another directory"):
        Journal(tmp_path)
    assert (tmp_path / FILE_NAME).read_text() == "my notes\nand more\n"


def test_a_long_run_that_fits_a_message_is_read_again(tmp_path: Path) -> None:
    """As JSON its series take more than the bytes that a message may have; on the bus they do not."""
    run = run_profile(1, samples=15_000)
    with Journal(tmp_path) as journal:
        journal.append(run)
        assert list(journal.unpublished()) == [run]
    assert (tmp_path / FILE_NAME).stat().st_size > 1 << 20
    with Journal(tmp_path) as journal:
        assert len(journal) == 1
    assert list(read_journal(tmp_path)) == [run]


def test_damage_before_the_end_is_named_and_nothing_is_removed(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        for number in (1, 2, 3):
            journal.append(job_record(number))
    path = tmp_path / FILE_NAME
    lines = path.read_bytes().splitlines(keepends=True)
    damaged = lines[0] + b"x" * len(lines[1][:-1]) + b"\n" + lines[2]
    path.write_bytes(damaged)

    with pytest.raises(JournalError, match=r"records\.jsonl:2: damaged line"):
        Journal(tmp_path)
    assert path.read_bytes() == damaged
    path.write_bytes(lines[0] + lines[2])
    with Journal(tmp_path) as journal:
        assert len(journal) == 2


def test_a_directory_has_one_writer(tmp_path: Path) -> None:
    with Journal(tmp_path), pytest.raises(JournalInUseError, match="another part"):
        Journal(tmp_path)
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(tmp_path)], stdout=subprocess.PIPE, stdin=subprocess.PIPE
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(JournalInUseError, match="another process"):
            Journal(tmp_path)
    finally:
        holder.kill()
        holder.communicate()
    with Journal(tmp_path) as journal:
        assert len(journal) == 1, "kill -9 lets go of the directory, and keeps what was written"


_HOLD = """
import sys
from pathlib import Path
from services.collector.write_ahead_log import Journal
from tests.support.job_records import job_record
journal = Journal(Path(sys.argv[1]))
journal.append(job_record(1))
print("held", flush=True)
sys.stdin.read()
"""


def test_a_forked_child_does_not_keep_the_directory(tmp_path: Path) -> None:
    """Training workers are forked; one that outlives us must not lock us out."""
    holder = subprocess.Popen(
        [sys.executable, "-c", _FORK, str(tmp_path)], stdout=subprocess.PIPE, stdin=subprocess.PIPE
    )
    assert holder.stdout is not None
    child = int(holder.stdout.readline())
    try:
        holder.kill()
        holder.wait(60)
        os.kill(child, 0)
        Journal(tmp_path).close()
    finally:
        os.kill(child, signal.SIGKILL)
        holder.communicate()


_FORK = """
import os, signal, sys
from pathlib import Path
from services.collector.write_ahead_log import Journal
journal = Journal(Path(sys.argv[1]))
child = os.fork()
if child:
    print(child, flush=True)
    sys.stdin.read()
else:
    signal.pause()
"""


def test_full_disk_is_said_and_leaves_the_journal_whole(tmp_path: Path) -> None:
    """With a file size limit as the disk: the kernel writes what fits, then refuses, as it does on a full one."""
    done = subprocess.run(
        [sys.executable, "-c", _FULL, str(tmp_path)], capture_output=True, text=True, check=True, timeout=50
    )
    first = json.loads(done.stdout)

    assert first["error"].startswith("JournalError"), "EFBIG is no ENOSPC, but as clear"
    assert first["records"] == first["on_disk"] >= 1
    with Journal(tmp_path) as journal:
        assert len(journal) == first["records"]
        assert journal.append(job_record(1_000)), "with room again it goes on"


_FULL = f"""
import json, resource, signal, sys
from pathlib import Path
from services.collector.write_ahead_log import Journal, JournalError, read_journal
from tests.support.job_records import job_record
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, {resource.RLIM_INFINITY}))
journal = Journal(Path(sys.argv[1]))
written, error = 0, ""
for number in range(1, 100):
    try:
        written += journal.append(job_record(number))
    except JournalError as raised:
        error = f"{{type(raised).__name__}}: {{raised}}"
        break
print(json.dumps({{"error": error, "records": written, "on_disk": len(list(read_journal(Path(sys.argv[1]))))}}))
"""


@pytest.mark.parametrize("call", ["pwrite", "fsync"])
def test_no_space_is_said_and_a_later_try_succeeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    with Journal(tmp_path) as journal:
        journal.append(job_record(1))

        def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with monkeypatch.context() as patch:
            patch.setattr(f"services.collector.write_ahead_log.os.{call}", full)
            with pytest.raises(JournalFullError, match=r"no space left for .*make room"):
                journal.append(job_record(2))
        assert "job:job-2" not in journal
        assert list(read_journal(tmp_path)) == [job_record(1)], "what was said not to be written is not there"
        assert journal.append(job_record(2))
    assert len(list(read_journal(tmp_path))) == 2


def test_a_record_that_no_message_could_carry_is_refused_at_once(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        with pytest.raises(UnsendableRecordError, match="can never be published"):
            journal.append(job_record(1, job="ü" * 150))
        with pytest.raises(UnsendableRecordError, match="oversized"):
            journal.append(run_profile(1, samples=40_000))
        assert len(journal) == 0


@pytest.mark.root
def test_a_file_system_that_is_full(tmp_path: Path) -> None:
    """A real one: a tmpfs of 64 KiB."""
    place = tmp_path / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)], check=True)
    try:
        journal = Journal(place / "journal")
        with pytest.raises(JournalFullError):  # noqa: PT012 - which of them fails is the file system's business
            for number in range(1, 1_000):
                journal.append(job_record(number))
        kept = len(journal)
        journal.close()
        assert kept > 10
        assert len(list(read_journal(place / "journal"))) == kept
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_a_directory_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalError, match="file"):
        Journal(tmp_path / "file")
    with pytest.raises(JournalError, match="No such file"):
        list(read_journal(tmp_path / "nothing"))
