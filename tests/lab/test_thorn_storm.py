"""Faults at both uplinks in turn, then a storm of them, over FRR, fast path and reconciler: nothing is amplified.

Ten minutes of it: ``python -m tests.bench.thorn_storm``.
"""

from __future__ import annotations

import pytest

from tests.bench.thorn_storm import StormPlan, measure
from tests.bench.thorn_storm_report import table, wrong
from tests.support.dual_tor import own_prefix, remove_orphans

pytestmark = [pytest.mark.netns, pytest.mark.slow, pytest.mark.machine, pytest.mark.timeout(720)]
PLAN = StormPlan(faults=4, down_s=1.5, up_s=5.0, flaps=24)


async def test_a_storm_costs_so_much_a_fault_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # A fast path that steps back does so for half a minute: what matters here is that it comes back.
    monkeypatch.setenv("TURNBUCKLE_FAST_PATH__FLAP_DAMPING_HOLD_S", "5")
    monkeypatch.setenv("TURNBUCKLE_NATS_URL", "")  # put back as it was: the measurement sets it
    remove_orphans()
    results = await measure(PLAN, own_prefix("st"), lambda _: None)
    with capsys.disabled():
        print(f"\n{table(results)}")  # noqa: T201 - the figures
    assert wrong(results) == []
