"""The kernel tests and the whole loop on stock Debian kernels with control groups of version 2, in machines."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.lab.vm.guest import Guest
from tests.lab.vm.guest_pytest import run_pytest
from tests.support.never_here import never_here

pytestmark = [pytest.mark.vm, pytest.mark.slow, pytest.mark.machine, pytest.mark.timeout(2_300)]

KERNEL = Path(__file__).parents[1] / "kernel"
# One measures how many cores a worker gets per second of wall clock: no matter of versions, and emulation distorts it;
# the others need a compiler, which the machine has not, and no kernel.
WITHOUT = {"test_load_in_a_group.py", "test_iteration.py", "test_mltcp_closed_loop.py"}
NO_MATTER_OF_VERSIONS = {
    "test_cgroup_handle.py": ("test_the_cost_of_a_reading_is_printed",),  # emulated, it is another cost
    # Users, paths, disks, and what is logged: these workers have no control groups.
    "test_runner_groups.py": (
        "test_a_program_that_is_nowhere_is_not_found_although_a_directory_may_not_be_searched",
        "test_in_a_directory_of_root_checkpoints_go_to_the_root_of_checkpoints",
        "test_workers_run_as_somebody_else",
        "test_a_full_disk",
        "test_without_control_groups_that_is_said_once",
    ),
    # When the process of the watchdog ends, and who starts it: files and signals.
    "test_watchdog.py": (
        "test_told_bye_it_ends_at_once",
        "test_it_ends_when_its_agent_is_dead_and_nothing_is_guarded",
        "test_signals_to_its_whole_group_do_not_end_it_and_a_killed_one_is_started_again",
    ),
}
"""They run on the host."""
TRACED = "test_kernel_table.py"
"""Needs tracing programs: in the emulated machine, with the loop once more."""
[VERSION_1_ONLY] = [
    {test.partition("::")[2] for test in entry.tests} for entry in never_here() if "version 1" in entry.what
]


def of_control_groups() -> list[str]:
    """Files of tests/kernel, but those whose mark asks for Docker or namespaces: their imports take long here."""
    texts = {file.name: file.read_text(encoding="utf-8") for file in sorted(KERNEL.glob("test_*.py"))}
    others = re.compile(r"^pytestmark = .*mark\.(docker|netns)", re.MULTILINE)
    return [name for name, text in texts.items() if name not in WITHOUT | {TRACED} and others.search(text) is None]


def test_kernel_tests_guard_and_the_loop_pass_on_cgroup_v2(
    quick_guest: Guest, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one pytest: starting one takes seconds."""
    files = [f"tests/kernel/{name}" for name in of_control_groups()]
    left_out = [f"tests/kernel/{file}::{test}" for file, tests in NO_MATTER_OF_VERSIONS.items() for test in tests]
    chosen = ["-m", "not docker and not netns", *(f"--deselect={test}" for test in left_out)]
    inside = ("tests/lab/vm/guest_escra.py", "tests/lab/vm/guest_memory_qos.py")
    found = run_pytest(quick_guest, capsys, *files, *inside, *chosen, within_s=2_100)
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


def test_the_table_of_groups_and_the_loop_with_tracing_programs(
    guest: Guest, capsys: pytest.CaptureFixture[str]
) -> None:
    found = run_pytest(guest, capsys, f"tests/kernel/{TRACED}", "tests/lab/vm/guest_escra.py", within_s=2_100)
    assert found["skipped"] == set()
    assert found["passed"] >= {"test_the_table_shows_what_the_files_do", "test_limits_follow_demand_and_are_put_back"}
