"""Names of policies and of variants."""

import pytest

from services.allocator.cpu import dead_band
from services.allocator.cpu import waterfill as policy_waterfill
from tests.bench.escra.policies import POLICIES, constant_names, module_of, parse


def test_the_order_of_the_tables() -> None:
    assert list(POLICIES) == [
        *("none", "static-0.75", "static-1.0", "static-1.5", "autopilot-1s", "autopilot-60s", "vpa"),
        *("captain-0.02", "captain-0.06", "captain-0.1", "captain-0.2", "escra", "waterfill"),
    ]
    assert [name for name, spec in POLICIES.items() if spec.ours] == ["escra", "waterfill"]
    assert [name for name, spec in POLICIES.items() if not spec.limited] == ["none"]


def test_a_variant_names_constants_of_the_policy_and_parameters_of_the_application() -> None:
    spec = parse("waterfill:HEADROOM_US=10000,CUT_SHARE=0.1,delta=30")
    assert (spec.family, spec.name) == ("waterfill", "waterfill:HEADROOM_US=10000,CUT_SHARE=0.1,delta=30")
    assert dict(spec.constants) == {"HEADROOM_US": 10_000, "CUT_SHARE": 0.1, "delta": 30}
    assert module_of("waterfill", "HEADROOM_US") is policy_waterfill
    assert module_of("waterfill", "CUT_SHARE") is dead_band
    assert module_of("escra", "kappa") is None
    assert parse("escra") is POLICIES["escra"]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("escrow", "there are none, static-0.75"),
        ("captain-0.1:target=0.3", "no variants"),
        ("waterfill:", "there are kappa"),
        ("waterfill:LEVL_RATE=0.2", "LEVEL_RATE"),
        ("waterfill:PAGE_BYTES=1", "there are kappa"),
        ("escra:kappa=much", "'much' is no number"),
    ],
)
def test_a_wrong_name_says_what_there_is(name, told) -> None:
    with pytest.raises(ValueError, match=told):
        parse(name)


def test_constants_are_found_in_the_product_itself() -> None:
    assert {"LEVEL_RATE", "HEADROOM_US", "PROBE_FACTOR", "URGENT_SHARE"} <= set(constant_names("waterfill"))
    assert {"kappa", "gamma", "upsilon", "window", "MIN_RAISE_SHARE"} <= set(constant_names("escra"))
