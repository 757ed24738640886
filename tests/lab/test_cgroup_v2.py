"""The kernel tests and the whole loop on stock Debian kernels with control groups of version 2, in machines."""

from __future__ import annotations

import pytest

from tests.lab.vm.guest import Guest
from tests.lab.vm.guest_pytest import run_pytest

pytestmark = [pytest.mark.vm, pytest.mark.slow, pytest.mark.machine, pytest.mark.timeout(2_300)]

OF_VERSIONS = {
    "test_cgroup_handle.py": (
        "test_counters_move_when_a_process_burns",
        "test_a_quota_really_limits_and_a_written_one_too",
        "test_no_limits_are_restored",
        "test_a_vanished_group_is_a_value",
        "test_a_memory_limit_below_usage_is_refused_and_the_old_one_holds",
        "test_oom_kills_are_counted",
        "test_a_container_with_a_period_of_50_ms",
        "test_the_burst_follows_the_quota_and_is_put_back",
    ),
    "test_managed_groups.py": (
        "test_a_process_moves_in_and_is_seen_in_every_hierarchy",
        "test_a_forking_group_is_killed_and_removed_with_its_parents",
    ),
    "test_memory_guard.py": (
        "test_who_grows_is_given_more_and_never_killed",
        "test_thresholds_alarm_before_the_limit_is_near",
        "test_at_the_limit_tasks_wait_and_a_raise_lets_them_go_on",
        "test_released_the_kernel_kills_as_it_always_does",
        "test_a_guard_undone_by_other_hands_is_noticed_and_repaired",
        "test_what_was_found_first_survives_a_killed_agent",
    ),
    "test_runner_groups.py": ("test_the_agent_finds_it_as_a_container_of_the_job", "test_out_of_memory_is_told"),
    "test_watchdog.py": (
        "test_after_kill_9_growth_is_paid_out_of_the_reserve",
        "test_after_kill_9_without_a_reserve_the_kernel_kills_after_the_deadline",
    ),
}
"""Of tests/kernel, by file, those of code that differs by the version of control groups; the host has the other one."""
QUALITY_OF_SERVICE = "test_who_is_slowed_at_the_kubelets_memory_high_waits_for_no_grant"
LOOP = "test_limits_follow_demand_and_are_put_back"
TRACED = "test_kernel_table.py"
"""Needs tracing programs: in the emulated machine, with the loop once more."""


def test_kernel_tests_guard_and_the_loop_pass_on_cgroup_v2(
    quick_guest: Guest, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one pytest: starting one takes seconds."""
    chosen = [f"tests/kernel/{file}::{test}" for file, tests in OF_VERSIONS.items() for test in tests]
    inside = ("tests/lab/vm/guest_escra.py", "tests/lab/vm/guest_memory_qos.py")
    found = run_pytest(quick_guest, capsys, *chosen, *inside, within_s=2_100)
    assert found["skipped"] == set()
    assert found["passed"] == {QUALITY_OF_SERVICE, LOOP}.union(*OF_VERSIONS.values())


def test_the_table_of_groups_and_the_loop_with_tracing_programs(
    guest: Guest, capsys: pytest.CaptureFixture[str]
) -> None:
    found = run_pytest(guest, capsys, f"tests/kernel/{TRACED}", "tests/lab/vm/guest_escra.py", within_s=2_100)
    assert found["skipped"] == set()
    assert found["passed"] >= {"test_the_table_shows_what_the_files_do", LOOP}
