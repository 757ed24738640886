"""The lab with a reconciler on every host, in a kernel that has flower."""

from __future__ import annotations

import json

import pytest

from tests.lab.vm.guest import Guest
from tests.lab.vm.guest_pytest import python

pytestmark = [pytest.mark.vm, pytest.mark.slow, pytest.mark.timeout(1_200)]


def test_an_edge_fault_changes_no_rule(quick_guest: Guest, capsys: pytest.CaptureFixture[str]) -> None:
    """FRR, reconciler and kernel together: applications' packets go by rules, and a silent fault writes none."""
    ended = quick_guest.run([python(), "-m", "tests.lab.vm.guest_dual_tor"], within_s=1_100)

    assert ended.exit_code == 0, ended.output
    result = json.loads(ended.output.splitlines()[-1])
    with capsys.disabled():
        print(f"\n  {quick_guest.image.release}, {ended.seconds:.0f} s: {result}")  # noqa: T201
    assert result["by_rule"] >= 200
