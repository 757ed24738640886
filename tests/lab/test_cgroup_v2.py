"""The kernel tests and the whole loop on a stock Debian kernel with control groups of version 2, in a machine."""

from __future__ import annotations

import pytest

from tests.lab.vm.guest import Guest
from tests.lab.vm.guest_pytest import run_pytest
from tests.support.never_here import never_here

pytestmark = [pytest.mark.vm, pytest.mark.slow, pytest.mark.timeout(1_600)]

# Measures how many cores a worker gets per second of wall clock: no matter of versions, and emulation distorts it.
WITHOUT = "--ignore=tests/kernel/test_load_in_a_group.py"
NO_MATTER_OF_VERSIONS = "bye or nothing_is_guarded or signals"
[VERSION_1_ONLY] = [
    {test.partition("::")[2] for test in entry.tests} for entry in never_here() if "version 1" in entry.what
]


def test_kernel_tests_guard_and_the_loop_pass_on_cgroup_v2(guest: Guest, capsys: pytest.CaptureFixture[str]) -> None:
    """In one pytest: emulated, starting one takes many seconds."""
    chosen = ["-m", "not docker and not netns", "-k", f"not ({NO_MATTER_OF_VERSIONS})", WITHOUT]
    inside = ("tests/lab/vm/guest_escra.py", "tests/lab/vm/guest_memory_qos.py")
    found = run_pytest(guest, capsys, "tests/kernel", *inside, *chosen, within_s=1_500)
    assert found["skipped"] == VERSION_1_ONLY
    assert found["passed"] >= {
        "test_a_quota_really_limits_and_a_written_one_too",
        "test_a_memory_limit_below_usage_is_refused_and_the_old_one_holds",
        "test_limits_follow_demand_and_are_put_back",
        "test_who_grows_is_given_more_and_never_killed",
        "test_released_the_kernel_kills_as_it_always_does",
        "test_what_was_found_first_survives_a_killed_agent",
        "test_who_is_slowed_at_the_kubelets_memory_high_waits_for_no_grant",
        "test_after_kill_9_growth_is_paid_out_of_the_reserve",
        "test_after_kill_9_without_a_reserve_the_kernel_kills_after_the_deadline",
    }
