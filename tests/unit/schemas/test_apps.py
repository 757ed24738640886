"""AppSpec: equations 2.1 and 2.2 by hand, and the sentence that a user sees for each mistake."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from schemas.apps import MIN_MEMORY_BYTES, AppSpec

GIB = 1 << 30
MIB = 1 << 20


def spec(**fields: Any) -> AppSpec:
    return AppSpec.model_validate({"name": "shop", "cpu_limit": 2.0, "memory_limit": "2GiB"} | fields)


def complaint(**fields: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        spec(**fields)
    first = caught.value.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


def test_defaults_are_those_of_the_thesis() -> None:
    app = spec()

    assert (app.sigma, app.kappa, app.gamma, app.upsilon, app.window) == (0.2, 0.8, 0.2, 20.0, 10)
    assert (app.delta, app.period_us) == (50 * MIB, 100_000)
    assert (app.policy, app.mode) == ("waterfill", "enforce")


def test_equation_2_1_shares_the_cpu_limit_equally() -> None:
    # 2 cores = 200,000 us per 100 ms period; 200,000 / 8 = 25,000 us, that is 0.25 cores each.
    assert spec(cpu_limit=2.0).initial_quota_us(8) == 25_000
    # 200,000 / 3 = 66,666.67, rounded down so that the sum stays below the limit.
    assert spec(cpu_limit=2.0).initial_quota_us(3) == 66_666


def test_equation_2_2_withholds_sigma_and_shares_the_rest() -> None:
    # 2 GiB x (1 - 0.2) = 1,717,986,918 bytes; / 8 = 214,748,364; / 4096 = 52,428.8, so 52,428 pages.
    assert spec(memory_limit=2 * GIB, sigma=0.2).initial_memory_bytes(8) == 52_428 * 4096
    # Nothing withheld: 1 GiB / 4 = 256 MiB exactly.
    assert spec(memory_limit=GIB, sigma=0.0).initial_memory_bytes(4) == 256 * MIB


def test_initial_limits_never_fall_below_what_every_container_keeps() -> None:
    # 0.02 cores / 2 = 1,000 us, the kernel's own minimum; four would get 500 us.
    assert spec(cpu_limit=0.02).initial_quota_us(4) == 1_000
    assert spec(container_min_cpu=0.1).initial_quota_us(100) == 10_000
    assert spec(memory_limit="8MiB").initial_memory_bytes(100) == MIN_MEMORY_BYTES


@given(
    cpu_limit=st.floats(0.01, 1_000),
    memory_limit=st.integers(MIN_MEMORY_BYTES, 1 << 44),
    sigma=st.floats(0, 0.99),
    containers=st.integers(1, 2_000),
)
def test_admitted_containers_fit_under_the_limits(
    cpu_limit: float, memory_limit: int, sigma: float, containers: int
) -> None:
    app = spec(cpu_limit=cpu_limit, memory_limit=memory_limit, sigma=sigma)

    if app.refuse_containers(containers) is None:
        assert containers * app.initial_quota_us(containers) <= app.cpu_limit_us
        assert containers * app.initial_memory_bytes(containers) <= app.memory_limit
        assert app.initial_quota_us(containers) >= 1_000


def test_too_many_containers_are_refused_in_words() -> None:
    assert spec(cpu_limit=0.02).refuse_containers(2) is None
    assert spec(cpu_limit=0.02).refuse_containers(3) == "3 containers need at least 0.03 cores, cpu_limit is 0.02"
    assert spec(memory_limit="8MiB").refuse_containers(3) == (
        "3 containers need at least 12582912 bytes, memory_limit is 8388608"
    )


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"cpu_limit": 0}, "cpu_limit: Input should be greater than 0"),
        ({"cpu_limit": -1}, "cpu_limit: Input should be greater than 0"),
        ({"cpu_limit": float("nan")}, "cpu_limit: Input should be a finite number"),
        ({"cpu_limit": float("inf")}, "cpu_limit: Input should be a finite number"),
        ({"cpu_limit": "two"}, "cpu_limit: Input should be a valid number, unable to parse string as a number"),
        ({"memory_limit": 0}, "memory_limit: Input should be greater than or equal to 4194304"),
        (
            {"memory_limit": "2 parsecs"},
            "memory_limit: '2 parsecs' is no size: write bytes, or such as 512MiB, 512m or 2g (units of 1024)",
        ),
        ({"memory_limit": "1KiB"}, "memory_limit: Input should be greater than or equal to 4194304"),
        ({"sigma": 1.0}, "sigma: Input should be less than 1"),
        ({"sigma": -0.1}, "sigma: Input should be greater than or equal to 0"),
        ({"kappa": 0}, "kappa: Input should be greater than 0"),
        ({"kappa": 1.5}, "kappa: Input should be less than or equal to 1"),
        ({"gamma": float("nan")}, "gamma: Input should be a finite number"),
        ({"gamma": float("inf")}, "gamma: Input should be a finite number"),
        ({"container_max_cpu": float("inf")}, "container_max_cpu: Input should be a finite number"),
        ({"container_min_cpu": float("inf")}, "container_min_cpu: Input should be a finite number"),
        ({"upsilon": 101}, "upsilon: Input should be less than or equal to 100"),
        ({"window": 0}, "window: Input should be greater than or equal to 1"),
        ({"window": 65}, "window: Input should be less than or equal to 64"),
        ({"delta": "1KiB"}, "delta: Input should be greater than or equal to 1048576"),
        ({"period_us": 50_000}, "period_us: Input should be 100000"),
        ({"policy": "magic"}, "policy: Input should be 'waterfill' or 'escra'"),
        ({"mode": "dry-run"}, "mode: Input should be 'observe' or 'enforce'"),
        ({"container_min_cpu": 3.0}, ": Value error, container_min_cpu 3.0 exceeds cpu_limit 2.0"),
        (
            {"container_max_cpu": 0.1, "container_min_cpu": 0.5},
            ": Value error, container_max_cpu 0.1 is below container_min_cpu",
        ),
        ({"container_min_memory": "3GiB"}, ": Value error, container_min_memory exceeds memory_limit"),
        (
            {"container_min_memory": "8MiB", "container_max_memory": "4MiB"},
            ": Value error, container_max_memory is below container_min_memory",
        ),
    ],
    ids=str,
)
def test_a_mistake_is_answered_in_words(fields: dict[str, Any], sentence: str) -> None:
    assert complaint(**fields) == sentence


@pytest.mark.parametrize("name", ["", "-shop", ".shop", "a b", "a/b", "a\n", "shop\n", "é", "x" * 64, "a*", "a>"])
def test_an_odd_name_is_refused(name: str) -> None:
    assert complaint(name=name).startswith("name: String should match pattern")


@pytest.mark.parametrize("name", ["a", "0", "shop.web_1-x", "x" * 63])
def test_an_ordinary_name_is_accepted(name: str) -> None:
    assert spec(name=name).name == name


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1GiB", GIB),
        ("1GB", GIB),
        ("1G", GIB),
        ("1g", GIB),
        ("512 MiB", 512 * MIB),
        ("512Mi", 512 * MIB),
        ("512m", 512 * MIB),
        ("512mb", 512 * MIB),
        ("1.5g", 3 * GIB // 2),
        (" 2Gi ", 2 * GIB),
        (GIB, GIB),
        ("1073741824", GIB),
    ],
)
def test_memory_is_read_with_its_unit(text: str | int, expected: int) -> None:
    assert spec(memory_limit=text).memory_limit == expected


def test_a_missing_limit_is_named() -> None:
    with pytest.raises(ValidationError) as caught:
        AppSpec.model_validate({"name": "shop"})

    assert [(error["loc"], error["msg"]) for error in caught.value.errors()] == [
        (("cpu_limit",), "Field required"),
        (("memory_limit",), "Field required"),
    ]


def test_a_spec_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        spec().cpu_limit = 3.0  # type: ignore[misc]  # that is what is tested
