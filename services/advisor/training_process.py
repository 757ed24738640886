"""Runs each training in a child process: see `services.advisor.training`."""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import suppress
from typing import Final

from schemas.codec import encode
from services._runtime.service.interpreter import isolated_command
from services.advisor.ports import TrainingFailedError, TrainingSet

_WORKER: Final = "services.advisor.training"
_LENGTH_BYTES: Final = 4
_ERROR_CHARACTERS: Final = 2_000


class TrainingProcess:
    """`Trainer` with a child process for each training."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s

    async def train(self, training_set: TrainingSet) -> bytes:
        """Train; cancelling kills the process."""
        data = await asyncio.to_thread(_pack_training_set, training_set)
        try:
            process = await asyncio.create_subprocess_exec(
                *isolated_command(_WORKER, str(os.getpid())),
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
