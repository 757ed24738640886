"""What Applications and Namespaces declare, and who may select whose pods."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.kubeoperator import PodSelector, PodSelectors
from services.kubeoperator.core.declaration import Declaration, Refusal, read_application, read_namespace

LIMITS: dict[str, Any] = {"cpu": "8", "memory": "16Gi"}
LABEL = st.text("abcdefghijklmnopqrstuvwxyz-", min_size=1, max_size=12).filter(lambda text: text.strip("-") == text)


def declared(outcome: Declaration | Refusal | None) -> Declaration:
    assert isinstance(outcome, Declaration), outcome
    return outcome


def refused(outcome: Declaration | Refusal | None) -> Refusal:
    assert isinstance(outcome, Refusal), outcome
    return outcome


@given(
    namespace=LABEL,
    name=LABEL,
    millicores=st.integers(min_value=10, max_value=100_000_000),
    mebibytes=st.integers(min_value=4, max_value=1 << 30),
    fields=st.fixed_dictionaries(
        {"policy": st.sampled_from(["waterfill", "escra"]), "mode": st.sampled_from(["observe", "enforce"])}
    ),
    labels=st.dictionaries(LABEL, LABEL, max_size=3),
)
def test_an_application_becomes_an_appspec_and_a_selector_of_its_namespace(
    namespace: str, name: str, *, millicores: int, mebibytes: int, fields: dict[str, str], labels: dict[str, str]
) -> None:
    spec: dict[str, Any] = {"cpu": f"{millicores}m", "memory": f"{mebibytes}Mi", "selector": {"matchLabels": labels}}
    spec |= fields

    found = declared(read_application(namespace, name, spec, "turnbuckle"))

    app = name if namespace == "turnbuckle" else f"{namespace}.{name}"
    assert (found.spec.name, found.spec.policy, found.spec.mode) == (app, fields["policy"], fields["mode"])
    assert found.spec.cpu_limit == millicores / 1000
    assert found.spec.memory_limit == mebibytes << 20
    [selector] = found.selectors
    assert (selector.app, selector.namespace, selector.match_labels) == (app, namespace, labels)
    assert selector.matches(namespace, labels | {"another": "label"})
    assert not selector.matches(f"{namespace}x", labels)


@pytest.mark.parametrize(
    ("change", "reason", "words"),
    [
        ({"cpu": None}, "LimitMissing", "cpu"),
        ({"memory": None}, "LimitMissing", "memory"),
        ({"memory": "16GiB"}, "InvalidQuantity", "memory: '16GiB'"),
        ({"cpu": "0"}, "InvalidSpec", "cpu: Input should be greater than 0"),
        ({"memory": "1Mi"}, "InvalidSpec", "memory: "),
        ({"policy": "fair"}, "InvalidSpec", "policy: "),
        ({"selector": {"namespaces": ["other"]}}, "ForeignNamespace", "only Applications in turnbuckle"),
    ],
)
def test_a_bad_spec_is_refused_in_words_of_kubernetes(change: dict[str, Any], reason: str, words: str) -> None:
    outcome = refused(read_application("shop", "web", LIMITS | change, "turnbuckle"))

    assert (outcome.reason, outcome.app) == (reason, "shop.web")
    assert words in outcome.message


def test_a_name_that_is_too_long_is_refused() -> None:
    assert refused(read_application("s" * 40, "w" * 40, LIMITS, "turnbuckle")).reason == "InvalidSpec"


def test_administrators_select_over_namespaces() -> None:
    spec = LIMITS | {"selector": {"namespaces": ["shop", "pay"], "matchLabels": {"tier": "web"}}}

    found = declared(read_application("turnbuckle", "front", spec, "turnbuckle"))

    assert found.spec.name == "front"
    assert [selector.namespace for selector in found.selectors] == ["shop", "pay"]


def test_a_namespace_needs_both_limits_or_none() -> None:
    assert read_namespace("shop", {"other": "annotation"}) is None
    assert refused(read_namespace("shop", {"turnbuckle.cpu-limit": "8"})).reason == "LimitMissing"
    both = {"turnbuckle.cpu-limit": "8", "turnbuckle.memory-limit": "16Gi", "turnbuckle.mode": "observe"}
    found = declared(read_namespace("shop", both))
    assert (found.spec.name, found.spec.cpu_limit, found.spec.mode) == ("shop", 8, "observe")
    assert found.selectors == (PodSelector(app="shop", namespace="shop", declared_by="Namespace shop"),)


def test_the_selector_with_the_most_labels_wins() -> None:
    def selector(app: str, **labels: str) -> PodSelector:
        return PodSelector(app=app, namespace="shop", match_labels=labels, declared_by=f"Application shop/{app}")

    table = PodSelectors(
        selectors=(
            selector("all"),
            selector("b", tier="web"),
            selector("a", tier="web"),
            selector("x", tier="web", v="2"),
        )
    )

    assert table.application_of("shop", {}) == "all"
    assert table.application_of("shop", {"tier": "web"}) == "a"
    assert table.application_of("shop", {"tier": "web", "v": "2"}) == "x"
    assert table.application_of("pay", {"tier": "web"}) is None
