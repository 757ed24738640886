"""Training process: ``python -m services.advisor.training PARENT`` reads a training set, writes a model file.

Standard input: a line of JSON, then messages, each after four bytes of length (big endian). Standard output: the model
file. Exit codes: 0; 65 if the records are insufficient; 70 if the parent is gone; 1 with a traceback. The last
line of standard error is the reason. Runs at a low priority, and is killed when its parent dies. The parent's side is
`TrainingProcess`.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any, BinaryIO, Final

from schemas.codec import decode, encode
from schemas.jobs import JobRecord
from schemas.predictions import Objective
from schemas.runs import RunProfile
from services._runtime.child_process import die_with_parent
from services._runtime.exit_code import ExitCode
from services._runtime.service.interpreter import isolated_command
from services.advisor.core.trained_model import Algorithm
from services.advisor.model_file import Header, libraries, pack
from services.advisor.models.baselines.regressor_model import RegressorAlgorithm
from services.advisor.ports import TrainingFailedError, TrainingSet

_LENGTH_BYTES: Final = 4
_NICE: Final = 10
_ERROR_CHARACTERS: Final = 2_000


def _gp() -> Algorithm:
    from services.advisor.models.gp.algorithm import GpAlgorithm  # noqa: PLC0415 - libraries of the one used

    return GpAlgorithm()


def _boosting() -> Algorithm:
    from services.advisor.models.baselines.learned import Boosting  # noqa: PLC0415 - as above

    return RegressorAlgorithm(Boosting(Objective.TIME))


def _forest() -> Algorithm:
    from services.advisor.models.baselines.learned import Forest  # noqa: PLC0415 - as above

    return RegressorAlgorithm(Forest(Objective.TIME, name="forest"))


def _linear() -> Algorithm:
    from services.advisor.models.baselines.learned import Linear  # noqa: PLC0415 - as above

    return RegressorAlgorithm(Linear(Objective.TIME))


def _thesis() -> Algorithm:
    from services.advisor.models.thesis_bilstm.model import ThesisRegressor, Unit  # noqa: PLC0415 - as above

    return RegressorAlgorithm(ThesisRegressor(Objective.TIME, "thesis", unit=Unit.MATCHED), folds=2)


ALGORITHMS: Final[Mapping[str, Callable[[], Algorithm]]] = MappingProxyType(
    {"gp": _gp, "boosting": _boosting, "forest": _forest, "linear": _linear, "thesis": _thesis}
)
"""The algorithms of the setting `algorithm`, by name. Each imports its libraries only when it is used."""


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


class TrainingProcess:
    """`Trainer` with a child process for each training."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s

    async def train(self, training_set: TrainingSet) -> bytes:
        """Train; cancelling kills the process."""
        data = await asyncio.to_thread(_pack_training_set, training_set)
        try:
            process = await asyncio.create_subprocess_exec(
                *isolated_command(__name__, str(os.getpid())),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
        except OSError as error:
            raise TrainingFailedError(f"no process for the training can be started: {error.strerror}") from error
        try:
            async with asyncio.timeout(self._limit_s):
                model, stderr = await process.communicate(data)
        except TimeoutError as error:
            raise TrainingFailedError(f"the training took longer than {self._limit_s:g} s") from error
        finally:
            await _end(process)
        if process.returncode:
            lines = stderr.decode(errors="replace").strip()[-_ERROR_CHARACTERS:].splitlines()
            reason = lines[-1] if lines else f"it ended with {process.returncode} without output"
            raise TrainingFailedError(reason)
        return model


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill and reap the process, also while being cancelled."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.kill()
        await asyncio.shield(process.wait())


def _pack_training_set(training_set: TrainingSet) -> bytes:
    head = {"algorithm": training_set.algorithm, "seed": training_set.seed, "data_hash": training_set.data_hash}
    parts = [json.dumps(head).encode() + b"\n"]
    for message in (*training_set.records, *training_set.profiles):
        data = encode(message)
        parts += [len(data).to_bytes(_LENGTH_BYTES, "big"), data]
    return b"".join(parts)


def main() -> int:
    """Run as a process; returns the exit code."""
    if not die_with_parent(signal.SIGKILL, int(sys.argv[1])):
        return ExitCode.INTERNAL
    with suppress(OSError):
        os.nice(_NICE)
    training_set = read_training_set(sys.stdin.buffer)
    try:
        model = train(training_set, time.time_ns())
    except ValueError as error:
        print(str(error).replace("\n", " "), file=sys.stderr)  # noqa: T201 - the parent reads it
        return ExitCode.BAD_DATA
    sys.stdout.buffer.write(model)
    sys.stdout.buffer.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
