"""Swap to remote memory on a stock Debian kernel, in a machine: its NBD client, device mapper's RAID 1, and swap."""

from __future__ import annotations

import pytest

from tests.lab.vm.guest import Guest
from tests.lab.vm.guest_pytest import run_pytest

pytestmark = [pytest.mark.vm, pytest.mark.slow, pytest.mark.timeout(1_000)]


def test_pages_survive_eviction_and_dead_daemons(quick_guest: Guest, capsys: pytest.CaptureFixture[str]) -> None:
    """In one pytest: emulated, starting one takes many seconds."""
    found = run_pytest(quick_guest, capsys, "tests/lab/vm/guest_remote_memory.py", "-s", within_s=900)
    assert found["skipped"] == set()
    assert found["passed"] == {
        "test_no_page_is_lost_through_mapping_eviction_and_a_killed_daemon",
        "test_pages_come_from_remote_memory_and_not_from_a_slow_disk",
        "test_devices_and_disks_of_others_are_left_alone",
        "test_a_half_made_swap_device_is_undone",
    }


def test_services_and_the_command_swap_to_other_hosts(quick_guest: Guest, capsys: pytest.CaptureFixture[str]) -> None:
    """As a user starts them: NATS, two hosts that lend, one that swaps."""
    found = run_pytest(quick_guest, capsys, "tests/lab/vm/guest_swap_service.py", "-s", within_s=900)
    assert found["skipped"] == set()
    assert found["passed"] == {"test_a_host_swaps_to_others_through_eviction_and_kills_of_daemon_and_mapper"}
