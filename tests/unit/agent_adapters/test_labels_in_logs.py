"""A label that somebody else has written reaches a log only in part."""

from __future__ import annotations

import pytest

from services.agent.discovery.docker import ContainerTable, Listed
from services.agent.discovery.labels import refuse_names
from services.agent.ports import RejectedContainer

LONG = "a" * 5_000


@pytest.mark.parametrize(("app", "name"), [(LONG, "web"), ("shop", LONG), ("\U0001f600\u202e" * 2_500, "web")])
def test_a_long_label_is_refused_in_a_short_sentence(app: str, name: str) -> None:
    reason = refuse_names(app, name)

    assert reason is not None
    assert len(reason) < 1_000


def test_neither_name_goes_on_in_full() -> None:
    [rejected] = ContainerTable().update([Listed("c" * 64, LONG, LONG)], lambda _: 1)

    assert isinstance(rejected, RejectedContainer)
    assert max(len(rejected.app), len(rejected.name), len(rejected.reason)) < 1_000
