"""The machine of a test session; tests/lab/conftest.py imports it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lab.vm.guest import Guest
from tests.lab.vm.machine import build


@pytest.fixture(scope="session")
def guest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guest]:
    """One machine for all tests of a session that have no need of one of their own."""
    directory = tmp_path_factory.mktemp("guest")
    guest = Guest(build(directory), directory)
    yield guest
    guest.close()
