"""How a training ends, as an exit code and a sentence: the cause, not what it did to the other ranks."""

from __future__ import annotations

from typing import Any

import pytest

from services._runtime.exit_code import ExitCode
from services.trainer.commands.outcome import Ended, TrainingFailedError, result_of
from services.trainer.commands.torchrun_report import TorchrunReport

RESULT = {"event": "result", "step": 8, "loss": 0.5, "stopped": False}


BAD_DATA, UNAVAILABLE, RESUMABLE = ExitCode.BAD_DATA, ExitCode.UNAVAILABLE, ExitCode.RESUMABLE
TORCHRUN = """\
W1126 13:20:01.100000 300 torch/distributed/run.py:803] Setting OMP_NUM_THREADS
  rank      : 3 (of a user's own code)
W1126 13:20:11.100000 300 torch/distributed/elastic/multiprocessing/api.py:1029] Sending process 301 closing signal
E1126 13:20:11.300000 300 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: -9) local_rank: 1
Traceback (most recent call last):
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
Failures:
[1]:
  rank      : 0 (local_rank: 0)
  exitcode  : 75 (pid: 301)
Root Cause (first observed failure):
[0]:
  time      : 2026-11-26_13:20:11
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 302)
"""


def error(rank: int, code: ExitCode, message: str = "why") -> dict[str, Any]:
    return {"event": "error", "rank": rank, "exit_code": int(code), "message": message}


def ended(code: int = 1, result: dict[str, Any] | None = None, *errors: dict[str, Any], **more: Any) -> Ended:
    return Ended(code, result, errors, **{"rank_codes": {}, "is_killed": False, "checkpoint": "saved"} | more)


def test_done_or_stopped_is_no_failure() -> None:
    assert result_of(ended(0, RESULT)) == RESULT


@pytest.mark.parametrize(
    ("how", "code", "words"),
    [
        (ended(1, None, error(1, RESUMABLE), error(0, BAD_DATA)), BAD_DATA, "rank 0: why"),
        (ended(1, None, error(2, UNAVAILABLE), error(1, UNAVAILABLE)), UNAVAILABLE, "rank 1: why"),
        (ended(1, None, error(1, RESUMABLE)), RESUMABLE, "the same command goes on at the last checkpoint in saved"),
        (ended(rank_codes={0: 75, 1: -9}), RESUMABLE, r"rank 1 was killed \(SIGKILL\): by the kernel where memory"),
        (ended(rank_codes={0: -15, 1: -11}), RESUMABLE, "rank 1 was ended by signal 11"),
        (ended(rank_codes={0: 1, 1: 75}), RESUMABLE, "rank 0 has ended with exit code 1, and its output above"),
        (ended(-9, RESULT, checkpoint=""), RESUMABLE, "nothing was saved"),
        (ended(-9, is_killed=True), ExitCode.INTERRUPTED, "second interrupt"),
        (ended(0), ExitCode.INTERNAL, "no result"),
    ],
)
def test_why_it_failed(how: Ended, code: ExitCode, words: str) -> None:
    with pytest.raises(TrainingFailedError, match=words) as failed:
        result_of(how)

    assert failed.value.exit_code == code


def test_torchruns_report_begins_as_it_ends_the_other_ranks_and_has_their_codes() -> None:
    report = TorchrunReport()

    assert [report.take(line) for line in TORCHRUN.splitlines()] == [False, False, *[True] * 13]
    assert report.exit_codes == {0: 75, 1: -9}
