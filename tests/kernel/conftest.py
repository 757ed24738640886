"""Fixtures of the tests on real control groups."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.support.cgroup_lab import CgroupLab


@pytest.fixture
def lab() -> Iterator[CgroupLab]:
    """Real control groups below a root of this test run's own."""
    lab = CgroupLab(f"turnbuckle-test-{os.getpid()}")
    try:
        yield lab
    finally:
        lab.close()
