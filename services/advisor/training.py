"""Training process: ``python -m services.advisor.training PARENT`` reads a training set, writes a model file.

Standard input: a line of JSON, then messages, each after four bytes of length (big endian). Standard output: the model
file. Exit codes: 0; 65 if the records are insufficient; 70 if the parent is gone; 1 with a traceback. The last
line of standard error is the reason. Runs at a low priority, and is killed when its parent dies.
"""

from __future__ import annotations

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
from services._runtime.child_process import die_with_parent
from services.advisor.model_file import Header, libraries, pack
from services.advisor.models.algorithms import ALGORITHMS
from services.advisor.ports import TrainingSet

BAD_DATA: Final = 65
INTERNAL: Final = 70
_LENGTH_BYTES: Final = 4
_NICE: Final = 10


def read_training_set(stream: BinaryIO) -> TrainingSet:
    """Read the training set that the parent wrote."""
    head: dict[str, Any] = json.loads(stream.readline())
    messages = list(_messages(stream))
    return TrainingSet(
        tuple(one for one in messages if isinstance(one, JobRecord)),
        tuple(one for one in messages if isinstance(one, RunProfile)),
        str(head["algorithm"]),
        int(head["seed"]),
        str(head["data_hash"]),
    )


def _messages(stream: BinaryIO) -> Iterator[object]:
    while length := stream.read(_LENGTH_BYTES):
        yield decode(stream.read(int.from_bytes(length, "big")))


def train(training_set: TrainingSet, trained_ns: int) -> bytes:
    """Train in this process and return the model file.

    Raises:
        ValueError: the records are insufficient.
    """
    trained = ALGORITHMS[training_set.algorithm]().fit(
        training_set.records, {one.run: one for one in training_set.profiles}, seed=training_set.seed
    )
    header = Header(
        algorithm=training_set.algorithm,
        version=training_set.version,
        data_hash=training_set.data_hash,
        records=len(training_set.records),
        tasks=len({one.task.task for one in training_set.records}),
        trained_ns=trained_ns,
        seed=training_set.seed,
        libraries=libraries(),
    )
    return pack(header, trained)


def main() -> int:
    """Run as a process; returns the exit code."""
    if not die_with_parent(signal.SIGKILL, int(sys.argv[1])):
        return INTERNAL
    with suppress(OSError):
        os.nice(_NICE)
    training_set = read_training_set(sys.stdin.buffer)
    try:
        model = train(training_set, time.time_ns())
    except ValueError as error:
        print(str(error).replace("\n", " "), file=sys.stderr)  # noqa: T201 - the parent reads it
        return BAD_DATA
    sys.stdout.buffer.write(model)
    sys.stdout.buffer.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
