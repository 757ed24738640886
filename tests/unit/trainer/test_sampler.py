"""Which samples a step has, whatever the plan."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.trainer.worker.cuts import sample_range
from services.trainer.worker.sampler import PlanSampler, epoch_order

SAMPLES = st.lists(st.integers(min_value=0, max_value=7), min_size=1, max_size=5).filter(any)


def steps_of(dataset: int, samples: list[int], first: int, steps: int, seed: int = 1) -> list[list[int]]:
    """Indices of each step, of all ranks in their order."""
    ranks = [
        list(PlanSampler(dataset, sum(samples), sample_range(samples, rank), seed, first, steps))
        for rank in range(len(samples))
    ]
    return [[index for own in step for index in own] for step in zip(*ranks, strict=True)]


def test_the_order_of_an_epoch_is_the_same_on_every_machine() -> None:
    # As drawn once: another order would make a checkpoint go on with samples that it has had
    assert epoch_order(10, seed=0, epoch=0).tolist() == [0, 2, 9, 1, 8, 5, 4, 3, 6, 7]
    assert epoch_order(10, seed=0, epoch=1).tolist() == [5, 3, 7, 8, 2, 4, 1, 0, 6, 9]


@given(st.integers(min_value=1, max_value=40), SAMPLES, SAMPLES)
def test_samples_of_a_step_do_not_depend_on_the_plan(dataset: int, one: list[int], other: list[int]) -> None:
    other = [*other[:-1], 0, sum(one)] if sum(other[:-1]) == 0 else [sum(one)]

    assert steps_of(dataset, one, 0, 6) == steps_of(dataset, other, 0, 6)


@given(st.integers(min_value=1, max_value=40), SAMPLES, st.integers(min_value=1, max_value=6))
def test_a_training_that_goes_on_has_the_samples_that_it_would_have_had(
    dataset: int, samples: list[int], done: int
) -> None:
    whole = steps_of(dataset, samples, 0, 8)

    assert whole[done:] == steps_of(dataset, samples, done * sum(samples), 8 - done)


@given(st.integers(min_value=1, max_value=40), SAMPLES)
def test_each_epoch_has_each_sample_once(dataset: int, samples: list[int]) -> None:
    epochs = 3
    steps = -(-epochs * dataset // sum(samples))
    drawn = [index for step in steps_of(dataset, samples, 0, steps) for index in step]

    for epoch in range(epochs):
        assert sorted(drawn[epoch * dataset : (epoch + 1) * dataset]) == list(range(dataset))


def test_epochs_and_seeds_differ() -> None:
    orders = {tuple(epoch_order(100, seed, epoch).tolist()) for seed in range(3) for epoch in range(3)}

    assert len(orders) == 9
