"""The dual-ToR lab as tests use it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    # Tests in the emulated machine have the same conftest, and there these imports take many seconds.
    from services.fabric.testbed.lab import Lab

PREFIX = "t"
"""Followed by the pid of the test run."""


def own_prefix(kind: str = "") -> str:
    """A prefix that no other run has."""
    return f"{PREFIX}{kind}{os.getpid()}"


def remove_orphans() -> None:
    """Remove labs of test runs that were killed."""
    from services.fabric.testbed import build, state_file  # noqa: PLC0415 - see above

    for prefix in state_file.prefixes():
        pid = prefix.removeprefix(PREFIX).lstrip("abcdefghijklmnopqrstuvwxyz")
        if prefix.startswith(PREFIX) and pid.isdigit() and not Path(f"/proc/{pid}").exists():
            with state_file.lock_lab(prefix):
                held = state_file.load(prefix)
                if held is not None:
                    build.remove(held, lambda _: None)


@contextmanager
def open_lab() -> Iterator[Lab]:
    """Two hosts, BFD 50x3."""
    from services.fabric.testbed.lab import Lab  # noqa: PLC0415 - see above
    from services.fabric.testbed.topology import LabSettings  # noqa: PLC0415

    remove_orphans()
    lab = Lab.up(LabSettings(prefix=own_prefix()))
    try:
        yield lab
    finally:
        assert lab.down() == []


@pytest.fixture(scope="session")
def dual_tor() -> Iterator[Lab]:
    """A lab that all tests of this run share: leave it whole (`whole` does)."""
    with open_lab() as lab:
        yield lab


@pytest.fixture
def whole(dual_tor: Lab) -> Iterator[Lab]:
    """The shared lab, whole before and after: a fault that a test leaves is lifted."""
    yield dual_tor
    dual_tor.restore()
    dual_tor.wait_ready()
