"""How much faster more workers are: as published, and by Amdahl's law."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.core.speedup import MEASURED_WORKERS, STEPS_PER_S, speedups

PUBLISHED: dict[str, dict[str, float]] = json.loads(
    (Path(__file__).parent / "gavel" / "v100_throughputs.json").read_text()
)
MODELS = st.sampled_from([*PUBLISHED, "resnet50", "LM", "vgg16", ""])


def test_the_table_is_the_published_one() -> None:
    found = {}
    for name, rates in PUBLISHED.items():
        parts = re.fullmatch(r"(.*) \(batch size ([0-9]+)\)", name)
        assert parts is not None
        key = re.sub("[^a-z0-9]", "", parts[1].lower()), int(parts[2])
        found[key] = tuple(round(rates[str(workers)], 3) for workers in MEASURED_WORKERS)

    assert found == STEPS_PER_S


def test_a_model_that_was_measured_has_its_own_speedup() -> None:
    # ResNet-50, 128 samples: 2.497, 4.223, 7.029, 10.293 steps/s with 1, 2, 4, 8 workers; between 2 and 4 linear.
    found = speedups("resnet50", 8)

    assert found[0] == 1
    assert found[1] == pytest.approx(4.223 / 2.497)
    assert found[2] == pytest.approx((4.223 + 7.029) / 2 / 2.497)
    assert found[3] == pytest.approx(7.029 / 2.497)
    assert found[7] == pytest.approx(10.293 / 2.497)
    assert speedups("ResNet-50 (batch size 128)", 8) == found
    assert speedups("ResNet-50 (batch size 3)", 8) == found, "not measured: the largest that was"
    # 64 samples: 4.395 and 7.922.
    assert speedups("ResNet-50 (batch size 64)", 2)[1] == pytest.approx(7.922 / 4.395)


def test_others_are_linear_to_two_workers_and_follow_amdahl_above() -> None:
    # 1 / (0.1 + 0.9 / 3) = 2.5; 1 / (0.1 + 0.9 / 4) = 3.077
    assert speedups("vgg16", 4) == pytest.approx((1, 2, 2.5, 3.0769), rel=1e-4)
    assert speedups("", 4) == speedups("vgg16", 4)


def test_what_grows_with_the_batch_is_not_counted_for_the_workers() -> None:
    """32.4 steps/s with one worker and 382.6 with eight would be 11.8 times as many."""
    one, two, _, four, *_, eight = speedups("ResNet-18 (batch size 16)", 8)

    assert (one, two, eight) == (1, 2, 8)
    assert four == pytest.approx(123.854 / 32.353, rel=1e-4), "3.83: below 4, so as it was measured"


def test_beyond_what_was_measured_it_grows_as_by_amdahl() -> None:
    # 4.122 with 8 workers; 1 / (0.1 + 0.9 / 16) = 6.4 against 1 / (0.1 + 0.9 / 8) = 4.7059 with 8
    assert speedups("resnet50", 16)[15] == pytest.approx(10.293 / 2.497 * 6.4 / 4.7059, rel=1e-4)


@given(MODELS, st.integers(1, 64))
def test_no_model_is_faster_than_its_number_of_workers(model: str, most: int) -> None:
    found = speedups(model, most)

    assert len(found) == most
    assert found[0] == 1
    assert all(0 < each <= workers for workers, each in enumerate(found, start=1))
    assert speedups(model, most + 1)[:most] == found, "the number of workers that may be does not matter"
