"""Rules in a kernel that has flower: a stock Debian one in a machine, whatever this machine's own is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.bench.thorn_rules import Extent
from tests.bench.thorn_rules_vm import measured_in
from tests.lab.vm.guest import Guest
from tests.lab.vm.guest_pytest import run_pytest

pytestmark = [pytest.mark.vm, pytest.mark.slow, pytest.mark.timeout(1_600)]

VM = Path("tests/lab/vm")
PARTS = ("codec", "path", "service")


def test_rules_on_a_real_kernel(quick_guest: Guest, capsys: pytest.CaptureFixture[str]) -> None:
    """Codec, data path and service in one pytest: emulated, starting one takes as long as the codec's tests."""
    found = run_pytest(quick_guest, capsys, *(str(VM / f"guest_thorn_{part}.py") for part in PARTS), within_s=1_400)
    assert not found["skipped"]
    assert found["passed"] >= {
        "test_tc_shows_what_we_write",
        "test_we_read_what_tc_writes",
        "test_without_rules_the_bridge_carries_everything",
        "test_with_rules_the_bridge_carries_nothing",
        "test_with_a_false_key_nothing_arrives_and_a_pass_repairs_it",
        "test_a_redirect_into_the_ordinary_vtep_is_seen_though_packets_arrive",
        "test_a_rule_of_its_own_is_all_that_is_needed",
        "test_rules_appear_and_what_other_hands_do_is_repaired",
        "test_a_second_reconciler_is_refused",
        "test_after_kill_9_nothing_is_written_again",
        "test_nats_dead_during_churn_and_the_audit_is_complete",
        "test_rules_are_kept_or_flushed_as_it_is_set",
    }


def test_ten_thousand_rules_are_set_up_and_found_right(quick_guest: Guest, capsys: pytest.CaptureFixture[str]) -> None:
    """Each case fails by itself if a write fails, a rule is missing or the second pass finds anything to do."""
    extent = Extent((1, 100, 1_000, 10_000), changes=3, tc_batch_up_to=100, pyroute2_up_to=1)
    record = measured_in(quick_guest, extent)
    cases: list[dict[str, Any]] = record["cases"]
    with capsys.disabled():
        for case in cases:
            set_up, idle = case["set_up"], case["idle"]
            figures = f"{set_up['writes']} writes {set_up['total_s']:.2f} s, idle pass {idle['total_s']:.2f} s"
            print(f"\n  {case['rules']} rules: {figures}", end="")  # noqa: T201
    assert [case["rules"] for case in cases] == [1, 100, 1_000, 10_000]
    # A filter per MAC and a tunnel_key action per 8 of them; actions of the case before count only where the kernel has
    # let go of them by then (it does so some time after the filter).
    for case in cases:
        filters, tunnels = case["rules"], -(-case["rules"] // 8)
        assert filters <= case["set_up"]["writes"] <= filters + 2 * tunnels + 4
    assert all(case["idle"]["writes"] == 0 for case in cases)
