"""Slurm's commands as child processes: without our environment, with a deadline, each kind of failure distinguished."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

KEPT: Final = ("PATH", "HOME", "USER", "LOGNAME", "SLURM_CONF")
"""All that Slurm's commands get of our environment: the key to the bus is in none of them."""
INHERITED: Final = (*KEPT, "LANG", "LD_LIBRARY_PATH", "VIRTUAL_ENV")
"""All that a job gets of it."""
_AWAY: Final = (
    "unable to contact slurm controller",
    *("connection refused", "connection reset", "broken pipe", "socket timed out", "zero bytes"),
    "munge",
)
"""Parts of what Slurm's commands say where slurmctld, or the way to it, is down."""
_MOST_CHARACTERS: Final = 400


class SlurmError(Exception):
    """A command of Slurm failed; the text says why."""


class SlurmUnavailableError(SlurmError):
    """It does not answer: nothing is known of what the command did."""


async def run(
    command: Sequence[str], timeout_s: float, descriptors: Sequence[int] = (), extra: Mapping[str, str] | None = None
) -> str:
    """Run a command to its end; what it wrote.

    Args:
        command: program and arguments.
        timeout_s: it is killed after this time.
        descriptors: that it inherits under the same numbers.
        extra: variables in addition to `KEPT`.

    Raises:
        SlurmUnavailableError: Slurm does not answer, or not in time.
        SlurmError: it refused, or is not installed.
    """
    environment = {name: os.environ[name] for name in KEPT if name in os.environ} | {"LC_ALL": "C"}
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**environment, **(extra or {})},
            pass_fds=descriptors,
            start_new_session=True,
        )
    except OSError as error:
        raise SlurmError(f"{command[0]} cannot be started: {error.strerror}") from error
    try:
        async with asyncio.timeout(timeout_s):
            out, errors = await process.communicate()
    except TimeoutError:
        raise SlurmUnavailableError(f"{command[0]} did not answer within {timeout_s:g} s") from None
    finally:
        with suppress(ProcessLookupError):
            if process.returncode is None:
                process.kill()
    if process.returncode == 0:
        return out.decode(errors="replace")
    said = " ".join(errors.decode(errors="replace").split())[:_MOST_CHARACTERS]
    kind = SlurmUnavailableError if any(part in said.lower() for part in _AWAY) else SlurmError
    raise kind(f"{' '.join(command[:2])}: {said or f'exit code {process.returncode}'}")


def environment_descriptor(environment: Mapping[str, str]) -> int:
    """A descriptor from which ``sbatch --export-file`` reads a job's environment: no other process can."""
    descriptor = os.memfd_create("environment", os.MFD_CLOEXEC)
    content = b"".join(f"{name}={value}".encode() + b"\0" for name, value in environment.items())
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
