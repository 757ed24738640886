"""Where this job's ranges are aggregated, asked of `turnbuckle train` by its socket: no rank has a key of the bus.

The socket stands in a directory that only this user may enter.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from schemas.aggregations import AggregationOptimizer
from services._jobs.aggregation_frames import RangePlace
from services._runtime.deep_sockets import socket_address
from services._runtime.exit_code import ExitCode
from services.trainer.core.placement import PlacementAnswer, PlacementQuestion
from services.trainer.worker.gather import RankFailedError
from services.trainer.worker.push_pull import AggregationLostError

_MOST_ANSWER_BYTES: Final = 1 << 22
"""Of a few thousand ranges with their addresses."""


class PlacementRefusedError(Exception):
    """The job is not aggregated; the text says why."""

    def __init__(self, reason: str, exit_code: ExitCode) -> None:
        super().__init__(reason)
        self.exit_code = exit_code


@dataclass(frozen=True, slots=True)
class Placement:
    """Of one attempt."""

    job: str
    key: bytes
    places: tuple[RangePlace, ...]


@dataclass(frozen=True, slots=True)
class Placements:
    """The questions of one rank."""

    path: Path
    within_s: float
    """For an answer: an aggregator may have to be started."""
    values: int
    optimizer: AggregationOptimizer

    def ask(self, attempt: int) -> Placement | None:
        """Where an attempt is; a new one is placed. None: that is not known now, as while the bus is away.

        Raises:
            AggregationLostError: it is lost.
            PlacementRefusedError: it is not placed.
            RankFailedError: `turnbuckle train` is gone.
        """
        question = PlacementQuestion(attempt=attempt, values=self.values, optimizer=self.optimizer)
        try:
            answer = PlacementAnswer.model_validate_json(self._exchange(question.model_dump_json().encode() + b"\n"))
        except (OSError, ValidationError) as error:
            reason = "no answer" if isinstance(error, ValidationError) else str(error) or type(error).__name__
            raise RankFailedError(f"turnbuckle train does not say where ranges are: {reason}") from error
        if answer.lost:
            raise AggregationLostError(answer.lost)
        if answer.refused:
            raise PlacementRefusedError(answer.refused, ExitCode(answer.exit_code))
        places = tuple(RangePlace(each.first, each.last, each.version, each.address) for each in answer.ranges)
        return Placement(answer.job, bytes.fromhex(answer.key), places) if places else None

    def _exchange(self, question: bytes) -> bytes:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(self.within_s)
            with socket_address(self.path) as address:
                connection.connect(address)
            connection.sendall(question)
            with connection.makefile("rb") as lines:
                return lines.readline(_MOST_ANSWER_BYTES)
