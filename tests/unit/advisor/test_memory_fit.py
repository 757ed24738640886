"""Whether a training fits into memory: figures by hand, the sentence, and what never changes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.jobs import Configuration, TaskFeatures
from services.advisor.core.memory_fit import memory_fit, memory_need, state_bytes_per_parameter
from services.advisor.models.gp.feasibility import BYTES_PER_PARAMETER


def where(**fields: object) -> Configuration:
    return Configuration.model_validate({"instance_type": "m", "workers": 1} | fields)


def task(parameters: int, optimizer: str = "Adam", **fields: object) -> TaskFeatures:
    about = {"task": "t", "parameter_count": parameters, "optimizer": optimizer}
    return TaskFeatures.model_validate(about | fields)


def test_seven_billion_parameters_do_not_fit_on_a_k80() -> None:
    """7e9 x 16 B = 104.3 GiB; once such a job was answered with "will run: yes"."""
    found = memory_fit(task(7_000_000_000), where(accelerator="K80", accelerators=1))

    assert found.fits is False
    assert found.reason == (
        "7e9 parameters need at least 104 GiB for weights, gradients and Adam's two moments; one K80 has 12 GB"
    )


@pytest.mark.parametrize(
    ("optimizer", "size"),
    [("Adam", 16), ("adamw", 16), ("SGD", 8), ("RMSprop", 12), ("Adagrad", 12), ("", 8), ("my-own", 8)],
)
def test_bytes_of_a_parameter(optimizer: str, size: float) -> None:
    """Weight, gradient and moments of 4 bytes each; an unknown optimizer is counted without."""
    assert state_bytes_per_parameter(optimizer) == size


def test_the_learned_feasibility_counts_alike() -> None:
    assert BYTES_PER_PARAMETER == 16.0


def test_the_need_by_hand() -> None:
    """1,000 trained and 500 frozen parameters, Adam, 10 samples of 3 + 2 elements."""
    need = memory_need(task(1_000, frozen_parameter_count=500, input_elements=3, output_elements=2), 10)

    assert (need.weights_bytes, need.gradients_bytes, need.optimizer_bytes) == (6_000, 4_000, 8_000)
    assert need.activations_bytes == 200
    assert need.total_bytes == 18_200
    assert memory_need(task(1_000, activation_bytes=50.0), 10).activations_bytes == 500
    assert memory_need(task(1_000, activation_bytes=50.0), 10, 0.5).activations_bytes == 250


def test_the_batch_is_divided_among_a_machines_accelerators() -> None:
    """1 GiB of activations a sample: 64 samples on 8 accelerators are 8 GiB each."""
    about, place = task(1_000, activation_bytes=2.0**30 * 0.99), {"accelerator": "P4", "batch_size": 64}

    assert memory_fit(about, where(accelerators=8, **place)).fits is True
    found = memory_fit(about, where(accelerators=4, **place))
    assert found.fits is False
    assert found.reason.endswith("Adam's two moments and the activations of 16 samples; one P4 has 8 GB")


def test_in_half_precision_activations_have_half_of_the_bytes() -> None:
    """By an attribute of the task or of the configuration; weights stay as they are."""
    place = where(accelerator="P4", accelerators=1, batch_size=10)
    about = task(1_000, activation_bytes=2.0**30)
    assert memory_fit(about, place).fits is False
    assert memory_fit(about.model_copy(update={"attributes": {"precision": "fp16"}}), place).fits is True
    assert memory_fit(about, place.model_copy(update={"attributes": {"precision": "bf16"}})).fits is True


def test_without_accelerators_the_machines_memory_counts() -> None:
    found = memory_fit(task(2_000_000_000, "SGD"), where(instance_type="n1-highcpu-16", memory_gb=14.4))

    assert found.reason == (
        "2e9 parameters need at least 14.9 GiB for weights and gradients; a machine of type n1-highcpu-16 has 14.4 GB"
    )


@pytest.mark.parametrize(
    ("about", "place"),
    [
        (task(0), where(memory_gb=1)),
        (task(10), where()),
        (task(10), where(accelerator="new-one", accelerators=2, memory_gb=64)),
    ],
)
def test_what_is_not_known_is_not_answered(about: TaskFeatures, place: Configuration) -> None:
    found = memory_fit(about, place)
    assert (found.fits, found.reason) == (None, "")


COUNTS = st.integers(0, 10**12)


@given(COUNTS, COUNTS, st.integers(0, 10**6), st.sampled_from(["Adam", "SGD", "x"]), st.floats(0.1, 1e4))
def test_more_never_fits_better(parameters: int, more: int, batch: int, optimizer: str, memory_gb: float) -> None:
    """In parameters and batch; and what does not fit says why, what fits has nothing to say."""
    place = where(memory_gb=memory_gb, batch_size=batch)
    larger = where(memory_gb=memory_gb, batch_size=2 * batch)
    fit = memory_fit(task(parameters, optimizer, input_elements=10), place)
    for other in (
        memory_fit(task(parameters + more, optimizer, input_elements=10), place),
        memory_fit(task(parameters, optimizer, input_elements=10), larger),
    ):
        assert fit.fits is not False or other.fits is False
        assert (other.fits is False) == bool(other.reason)
