"""What is planned from: profiles of one model on every kind of device, known rates, a batch in units."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.devices import Link
from schemas.launch import launch_lines
from schemas.layers import LayerProfile
from schemas.plans import Engine
from services.planner.core import cephalo
from services.planner.core.inputs import (
    MissingProfileError,
    UnusableInputError,
    data_parallel,
    inputs_of,
    network_of,
    pipeline,
    units_of,
    with_fsdp2,
)
from services.planner.core.profile import LayerTimes, MemoryProfile, fitted
from tests.support.layer_profiles import GIB, MIB, cluster, layer, profile, request

PAIR = cluster(("fast", "a", 4), ("slow", "b", 4))
PROFILES = (profile(), profile("slow", 6.0))


def test_a_kind_without_profile_is_named() -> None:
    with pytest.raises(MissingProfileError, match="no layer profile of slow: measure the model's layers there first"):
        inputs_of(request(PAIR, PROFILES[:1]), PROFILES[:1])


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"model": "m2"}, "the profiles of fast and slow are of different models or types: measure anew"),
        ({"dtype": "bfloat16"}, "the profiles of fast and slow are of different models or types: measure anew"),
        ({"refused": "layers share weights"}, "the model cannot be trained: layers share weights"),
        (
            {"classes": (layer("embedding", 1, 5, 1), layer("block", 6, 5, 1), layer("head", 1, 5, 1))},
            "the profiles of fast and slow differ in their layers",
        ),
    ],
)
def test_profiles_that_do_not_belong_together_are_refused(changes: dict[str, object], sentence: str) -> None:
    profiles = (PROFILES[0], profile("slow", 6.0, **changes))

    with pytest.raises(UnusableInputError, match=sentence):
        inputs_of(request(PAIR, profiles), profiles)


def test_the_newest_profile_counts() -> None:
    newer = profile("slow", 3.0, measured_ns=2, profile="slow-2")

    assert inputs_of(request(PAIR, PROFILES), (*PROFILES, newer)).profiles["slow"] == newer
    assert inputs_of(request(PAIR, PROFILES), (newer, *PROFILES)).profiles["slow"] == newer


def test_an_unknown_rate_is_named() -> None:
    with pytest.raises(UnusableInputError, match="no transfer rate between machines a and b is given"):
        network_of(PAIR.model_copy(update={"between": None}))
    with pytest.raises(UnusableInputError, match="no transfer rate inside machine a is given"):
        network_of(cluster(("fast", "a", 4), ("fast", "a", 4), inside=None))


def test_a_link_goes_before_the_rate_of_others() -> None:
    link = Link(first="b", second="a", bytes_per_s=5 * GIB, latency_us=200)
    network = network_of(PAIR.model_copy(update={"links": (link,)}))

    assert network.gib_per_s[0][1] == network.gib_per_s[1][0] == 5
    assert network.latency_ms[0][1] == pytest.approx(0.2)
    assert network.gib_per_s[0][0] == pytest.approx(10e9 / GIB)


def test_memory_of_a_worker() -> None:
    """Idle 300 MiB; five copies of a layer of 10 million parameters (4 bytes); 20 MiB saved per sample."""
    inputs = inputs_of(request(PAIR, PROFILES), PROFILES)
    problem = data_parallel(inputs)
    assert problem is not None

    assert problem.memory[0].at(3) == pytest.approx((300 * MIB + 200_000_000 + 60 * MIB) / GIB)
    # Outputs of eight layers, 2 MiB each
    assert problem.memory[0].held(3, 6) - problem.memory[0].at(3) == pytest.approx(6 * 16 * MIB / GIB)
    working = pipeline(inputs).model.working
    assert working is not None
    # In a pipeline four: its ministage has the fifth
    assert working["slow"].at(1) == pytest.approx((300 * MIB + 160_000_000 + 20 * MIB) / GIB)


@pytest.mark.parametrize(("engine", "copies_bytes"), [(Engine.LAYERED, 400_000_000), (Engine.FSDP2, 240_000_000)])
@pytest.mark.parametrize("kind", ["cpu", "sandbox:0.5"])
def test_copies_of_a_layer_leave_holes_on_a_processor(kind: str, engine: Engine, copies_bytes: int) -> None:
    """Twice the five copies (4 bytes) of a layer of 10 million parameters, or the 12 bytes of `fsdp2`."""
    profiles = (profile(kind),)
    asked = request(cluster((kind, "a", 8), (kind, "a", 8)), profiles)
    problem = data_parallel(inputs_of(asked, profiles), engine=engine)
    assert problem is not None

    saved_bytes = (1 if engine is Engine.LAYERED else 8) * 60 * MIB
    assert problem.memory[0].at(3) == pytest.approx((300 * MIB + copies_bytes + saved_bytes) / GIB)


def test_memory_of_a_worker_that_does_no_forward_pass_again() -> None:
    """All eight layers save 20 MiB per sample; two layers of 10 million parameters are gathered (8 bytes)."""
    problem = data_parallel(inputs_of(request(PAIR, PROFILES), PROFILES), engine=Engine.FSDP2)
    assert problem is not None

    assert problem.memory[0].at(3) == pytest.approx((300 * MIB + 120_000_000 + 480 * MIB) / GIB)


@pytest.mark.parametrize(
    ("kind", "engine", "step_ms", "busy_ms"),
    [
        # Forward 0.85 + 6 * 8.05 + 4.05 = 53.2, twice but for the head's 4.05, backward 106.4; a gather of a block
        # 1.15 * 20 MB / 10 GB/s = 2.3, of embedding and head 0.92, together 15.64, twice but for the head, and the
        # scatters 15.64.
        ("fast", Engine.LAYERED, 2 * 53.2 - 4.05 + 106.4 + 3 * 15.64 - 0.92, 208.75),
        # Forward and backward once; only the embedding's collectives are longer than its 0.85 and 1.7.
        ("fast", Engine.FSDP2, 53.2 + 106.4 + (0.92 - 0.85) + (1.84 - 1.7), 159.6),
        # Of processors, collectives are computing, too.
        ("cpu", Engine.FSDP2, 53.2 + 106.4 + 3 * 15.64, 159.6),
        ("sandbox:0.5", Engine.FSDP2, 53.2 + 106.4 + 3 * 15.64, 159.6),
    ],
)
def test_what_a_step_of_each_engine_takes(kind: str, engine: Engine, step_ms: float, busy_ms: float) -> None:
    profiles = (profile(kind),)
    asked = request(cluster((kind, "a", 8), (kind, "a", 8)), profiles)
    problem = data_parallel(inputs_of(asked, profiles), engine=engine)
    assert problem is not None

    assert cephalo.device_ms(problem, 0, 4, 1, uneven=False) == pytest.approx(step_ms)
    assert cephalo.busy_ms(problem, 0, 4, 1) == pytest.approx(busy_ms)


@pytest.mark.parametrize(
    ("kind", "engine", "samples", "more_ms"),
    [
        # 3 ms for each of six blocks, whatever the micro-batch, within what was measured (4 samples) and beyond
        ("sandbox:0.5", Engine.FSDP2, 1, 18.0),
        ("cpu", Engine.FSDP2, 4, 18.0),
        ("cpu", Engine.FSDP2, 6, 18.0),
        ("cpu", Engine.LAYERED, 4, 0.0),
        # A GPU's host: one sample takes 2.05 + 4.1 + 3 = 9.15 ms, two take 12.15 ms of the GPU by themselves
        ("fast", Engine.FSDP2, 1, 18.0),
        ("fast", Engine.FSDP2, 2, 0.0),
        ("fast", Engine.FSDP2, 6, 0.0),
        ("fast", Engine.LAYERED, 1, 0.0),
    ],
)
def test_what_fsdp2_takes_beside_the_layers(kind: str, engine: Engine, samples: int, more_ms: float) -> None:
    without = profile(kind)
    first, block, last = without.classes
    with_it = profile(kind, classes=(first, block.model_copy(update={"fsdp2_us": 3_000.0}), last))
    took_ms = []
    for one in (without, with_it):
        asked = request(cluster((kind, "a", 8), (kind, "a", 8)), (one,))
        problem = data_parallel(inputs_of(asked, (one,)), engine=engine)
        assert problem is not None
        took_ms.append(cephalo.busy_ms(problem, 0, samples, 1))

    assert took_ms[1] - took_ms[0] == pytest.approx(more_ms)


@given(
    fsdp2_us=st.floats(0, 1e5),
    sizes=st.lists(st.floats(1, 1e5), min_size=1, max_size=6),
    samples=st.integers(1, 12),
    is_on_processor=st.booleans(),
)
def test_an_engine_takes_no_less_than_its_layers(
    fsdp2_us: float, sizes: list[float], samples: int, *, is_on_processor: bool
) -> None:
    alone = LayerTimes(fitted(sizes), fitted([2 * ms for ms in sizes]))
    found = with_fsdp2(alone, fsdp2_us, is_processor=is_on_processor)

    more_ms = found.backward.at(samples) - alone.backward.at(samples)
    assert found.forward == alone.forward
    assert -1e-9 <= more_ms <= fsdp2_us / 1e3 + 3 * sizes[0] + 1e-6
    if is_on_processor:
        assert more_ms == pytest.approx(fsdp2_us / 1e3, abs=1e-6)


def test_a_profile_of_an_older_release_is_read() -> None:
    text = (Path(__file__).parents[3] / "docs/examples/planner/l4.json").read_text(encoding="utf-8")
    assert "fsdp2_us" not in text
    assert {layer.fsdp2_us for layer in LayerProfile.model_validate_json(text).classes} == {0.0}


@pytest.mark.parametrize(
    ("batch", "devices", "unit"),
    [
        (64, 4, 1),
        (128, 64, 1),
        (256, 4, 2),
        (4_096, 4, 32),
        (4_096, 200, 16),  # 256 units: 128 are fewer than devices
        (257, 4, 1),  # a prime number: 257 units
        (1_021, 4, None),  # a prime number above 512
        (3, 4, None),
        (2 * 509, 4, 2),
    ],
)
def test_units(batch: int, devices: int, unit: int | None) -> None:
    assert units_of(batch, devices) == unit


def test_times_beyond_what_was_measured_never_fall() -> None:
    # Least squares through (1, 4), (2, 6), (3, 8): 2 m + 2
    assert fitted((4.0, 6.0, 8.0)).at(5) == pytest.approx(12)
    assert fitted((3.0,)).at(4) == 12
    falling = fitted((5.0, 4.0, 4.5))
    assert [falling.at(size) for size in (1, 2, 3, 4)] == [5.0, 4.0, 4.5, 4.5]


def test_memory_needs_two_values() -> None:
    with pytest.raises(ValueError, match="memory of 1 micro-batches, 2 are needed"):
        MemoryProfile((1.0,))


def test_memory_grows_on_as_in_its_last_values() -> None:
    memory = MemoryProfile((1.0, 1.5, 2.0), 0.5)

    assert [memory.at(size) for size in (1, 3, 5)] == [1.5, 2.5, 3.5]
    assert memory.largest(3.0, 10) == 4
    assert memory.largest(1.0, 10) == 0
    assert memory.largest(100.0, 10) == 10


def test_one_line_per_machine() -> None:
    hardware = cluster(("fast", "a", 4), ("fast", "a", 4), ("slow", "b b", 4))

    rendezvous = "--master-addr a --master-port 29500"
    assert launch_lines(hardware, ("worker", "plan.json")) == (
        f"torchrun --nnodes 2 --node-rank 0 --nproc-per-node 2 {rendezvous} --no-python worker plan.json",
        f"torchrun --nnodes 2 --node-rank 1 --nproc-per-node 1 {rendezvous} --no-python worker plan.json",
    )
