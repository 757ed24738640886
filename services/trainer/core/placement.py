"""What a rank asks `turnbuckle train` about the aggregation of its job, and the answer: a line of JSON each. Pure."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field

from schemas.aggregations import MAX_RANGES, MAX_VALUES, AggregatedRange, AggregationOptimizer, Attempt

PLACED_WITHIN_S: Final = 300.0
"""An aggregator may have to be started, which imports torch: 240 s at most, and a minute for its commands."""


class PlacementQuestion(BaseModel):
    """Of one rank: the same of all."""

    model_config = ConfigDict(frozen=True)

    attempt: Attempt
    """Rises whenever the ranges begin anew; one that was placed before is asked for to know whether it is lost."""
    values: Annotated[int, Field(ge=1, le=MAX_VALUES)]
    optimizer: AggregationOptimizer


class PlacementAnswer(BaseModel):
    """Ranges and their key; or why they are lost, or refused; or nothing of it, where that is not known now."""

    model_config = ConfigDict(frozen=True)

    job: str = ""
    """As aggregators know it."""
    key: Annotated[str, Field(repr=False)] = ""
    """Of the job's workers in this attempt, in hexadecimal digits."""
    ranges: Annotated[tuple[AggregatedRange, ...], Field(max_length=MAX_RANGES)] = ()
    lost: str = ""
    """Why: they can be placed anew, as the next attempt."""
    refused: str = ""
    """Why: the training ends, with `exit_code`."""
    exit_code: int = 0
