"""Records of a worker: whole or not at all, with space reserved, for their owner only."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from services.runner.worker_files import Claim, End, IllegibleRecordError, StopRequest, WorkerFiles
from services.runner.worker_log import read_log


@pytest.fixture
def files(tmp_path: Path) -> WorkerFiles:
    return WorkerFiles(tmp_path)


def test_a_record_comes_back(files: WorkerFiles) -> None:
    end = End(5, exit_code=-9, asked="order", killed=True, ran_s=1.5)
    files.write(end)

    assert files.read(End) == end
    assert files.read(Claim) is None
    assert (files.directory / "exit.json").stat().st_mode & 0o777 == 0o600


def test_reserved_space_is_used(files: WorkerFiles) -> None:
    files.reserve()
    reserved = files.directory / ".exit.json.reserved"
    node = reserved.stat().st_ino
    files.write(End(5, error="x" * 100))

    assert (files.directory / "exit.json").stat().st_ino == node
    assert (files.directory / "exit.json").stat().st_size == 4096
    assert not reserved.exists()


@pytest.mark.parametrize(
    "content", [b"", b"\x00\xff", b"[]", b"{}", b'{"grace_s": "long"}', b'{"grace_s": 1, "more": 2}', b"\xff" * 9_000]
)
def test_what_was_not_written_here_is_no_record(files: WorkerFiles, content: bytes) -> None:
    (files.directory / "stop.json").write_bytes(content)

    with pytest.raises(IllegibleRecordError, match=r"stop\.json is not legible"):
        files.read(StopRequest)


def test_a_whole_number_is_a_number_of_seconds(files: WorkerFiles) -> None:
    (files.directory / "stop.json").write_text(json.dumps({"grace_s": 0}))

    assert files.read(StopRequest) == StopRequest(0)


def test_a_character_is_not_cut(tmp_path: Path) -> None:
    """ä has two bytes, the euro sign three, the clef four."""
    log = tmp_path / "log"
    text = "ä€\U0001d11e" * 3
    log.write_text(text, encoding="utf-8")
    for most in range(4, 12):
        offset, parts = 0, []
        while offset < log.stat().st_size:
            part = read_log(log, offset, 0, most)
            assert part.next_offset > offset
            parts.append(part.text)
            offset = part.next_offset

        assert "".join(parts) == text


def test_last_lines(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("one\ntwo\nthree")

    assert read_log(log, -1, 2, 100).text == "two\nthree"
    assert read_log(log, -1, 0, 100).text == ""
    assert read_log(log, -1, 9, 8).text == "three", "of the first of these bytes, a line may be missing the beginning"
