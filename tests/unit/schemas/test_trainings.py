"""What a training says: columns of one length, in datagrams and events that are taken."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from schemas.codec import encode
from schemas.streams import TRAINING_STREAM
from schemas.trainings import MAX_STEP_ROWS, STEP_COLUMNS, StepBatch
from services.runner.training_sockets import MOST_BYTES


def batch(rows: int, value: int = 1, **changes: object) -> StepBatch:
    fields: dict[str, object] = {"job": "j", "node": "n", "training": "t", "rank": 0, "time_ns": 1}
    return StepBatch.model_validate(fields | dict.fromkeys(STEP_COLUMNS, [value] * rows) | changes)


def test_columns_have_one_length() -> None:
    with pytest.raises(ValidationError, match="column gather_us has 1 rows instead of 2"):
        batch(2, gather_us=[1])


def test_the_longest_batch_of_the_largest_numbers_is_a_datagram() -> None:
    largest = batch(MAX_STEP_ROWS, value=(1 << 62) - 1)
    assert len(encode(largest)) <= MOST_BYTES
    with pytest.raises(ValidationError, match="at most 400"):
        batch(MAX_STEP_ROWS + 1)


def test_whatever_a_runner_takes_its_stream_takes() -> None:
    assert TRAINING_STREAM.max_message_bytes == MOST_BYTES
