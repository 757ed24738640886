"""How a training has ended: what its ranks said as they ended, and torchrun's exit code, as one sentence."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from schemas.measured_runs import MeasuredRun
from services._runtime.command.errors import CommandError
from services._runtime.exit_code import ExitCode


@dataclass(frozen=True, slots=True)
class Ended:
    """What is known once all processes have ended."""

    code: int
    """torchrun's; negative: of a signal."""
    result: Mapping[str, Any] | None
    """Event of rank 0."""
    errors: Sequence[Mapping[str, Any]]
    """Events of ranks that ended by a known error."""
    rank_codes: Mapping[int, int]
    """Exit codes of ranks that failed, as torchrun reports them; negative: of a signal."""
    is_killed: bool
    """At once, by a second request to stop."""
    checkpoint: str
    """The directory; empty: none."""
    run: MeasuredRun | str = ""
    """What this start's steps took beside the plan, or why later plans learn nothing from it."""


class TrainingFailedError(CommandError):
    """It has ended before its last step, or cannot begin."""

    def __init__(self, message: str, exit_code: ExitCode) -> None:
        super().__init__(message)
        self.exit_code: ExitCode = exit_code


def result_of(ended: Ended) -> Mapping[str, Any]:
    """Event of rank 0 where the training is done, or has stopped where it was asked to.

    A rank that fails ends the others with 75: what another code says is the cause.

    Raises:
        TrainingFailedError: why it did not work.
    """
    if ended.is_killed:
        raise TrainingFailedError(f"killed by the second interrupt; {_goes_on(ended)}", ExitCode.INTERRUPTED)
    causes = [error for error in ended.errors if error["exit_code"] != ExitCode.RESUMABLE]
    if causes:
        first = min(causes, key=lambda error: int(error["rank"]))
        raise TrainingFailedError(f"rank {first['rank']}: {first['message']}", ExitCode(first["exit_code"]))
    if ended.code:
        raise TrainingFailedError(f"{_failed(ended)}; {_goes_on(ended)}", ExitCode.RESUMABLE)
    if ended.result is None:
        raise TrainingFailedError("torchrun has ended with 0, but rank 0 reported no result", ExitCode.INTERNAL)
    return ended.result


def exit_of(ended: Ended) -> tuple[int, str]:
    """The command's exit code, and why."""
    try:
        result = result_of(ended)
    except TrainingFailedError as error:
        return error.exit_code, str(error)
    return ExitCode.OK, f"{'stopped' if result['stopped'] else 'done'} after step {result['step']}"


def _failed(ended: Ended) -> str:
    """The rank that failed by itself: the others end with 75, or by torchrun's SIGTERM."""
    of_others = {ExitCode.RESUMABLE, -signal.SIGTERM}
    for rank, code in sorted(ended.rank_codes.items()):
        if code == -signal.SIGKILL:
            return f"rank {rank} was killed (SIGKILL): by the kernel where memory ran out, or by another process"
        if code < 0 and code not in of_others:
            return f"rank {rank} was ended by signal {-code}"
        if code not in of_others:
            return f"rank {rank} has ended with exit code {code}, and its output above says why"
    return "a rank has failed, and its output above says why"


def _goes_on(ended: Ended) -> str:
    if ended.checkpoint:
        return f"the same command goes on at the last checkpoint in {ended.checkpoint}"
    return "the same command begins anew: nothing was saved without --checkpoint"
