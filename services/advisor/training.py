"""One training as a process: ``python -m services.advisor.training PARENT`` reads a lesson, writes a model file.

Standard input: a line of JSON, then messages, each after four bytes of length (big endian). Standard output: the model
file. Exit codes: 0; 65 where the records teach nothing; 70 where the parent is gone; 1 with a traceback. The last
line of standard error is the reason. It works at a low priority, and dies with its parent however that dies.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, BinaryIO, Final

from schemas.codec import decode
from schemas.jobs import JobRecord
from schemas.runs import RunProfile
from services.advisor.model_file import Header, libraries, pack
from services.advisor.models.algorithms import ALGORITHMS
from services.advisor.ports import Lesson

BAD_DATA: Final = 65
INTERNAL: Final = 70
_LENGTH_BYTES: Final = 4
_PDEATHSIG: Final = 1
_NICE: Final = 10


def unpack_lesson(stream: BinaryIO) -> Lesson:
    """Read what the parent wrote."""
    head: dict[str, Any] = json.loads(stream.readline())
    messages = list(_messages(stream))
    return Lesson(
        tuple(one for one in messages if isinstance(one, JobRecord)),
        tuple(one for one in messages if isinstance(one, RunProfile)),
        str(head["algorithm"]), int(head["seed"]), str(head["data_hash"]),
    )  # fmt: skip


def _messages(stream: BinaryIO) -> Iterator[object]:
    while length := stream.read(_LENGTH_BYTES):
        yield decode(stream.read(int.from_bytes(length, "big")))


def learn(lesson: Lesson, trained_ns: int) -> bytes:
    """Train here and now.

    Raises:
        ValueError: the records teach nothing.
    """
    adviser = ALGORITHMS[lesson.algorithm]().fit(
        lesson.records, {one.run: one for one in lesson.profiles}, seed=lesson.seed
    )
    header = Header(
        algorithm=lesson.algorithm, version=lesson.version, data_hash=lesson.data_hash, records=len(lesson.records),
        tasks=len({one.task.task for one in lesson.records}), trained_ns=trained_ns, seed=lesson.seed,
        libraries=libraries(),
    )  # fmt: skip
    return pack(header, adviser)


def _die_with(parent: int) -> None:
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it has died before we asked
        os._exit(INTERNAL)


def main() -> int:
    """Train as a process; returns the exit code."""
    _die_with(int(sys.argv[1]))
    with suppress(OSError):
        os.nice(_NICE)
    lesson = unpack_lesson(sys.stdin.buffer)
    try:
        model = learn(lesson, time.time_ns())
    except ValueError as error:
        print(str(error).replace("\n", " "), file=sys.stderr)  # noqa: T201 - the parent reads it
        return BAD_DATA
    sys.stdout.buffer.write(model)
    sys.stdout.buffer.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
