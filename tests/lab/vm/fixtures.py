"""The machines of a test session; tests/lab/conftest.py imports them."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.lab.vm.guest import Guest
from tests.lab.vm.machine import MEMORY_MIB, Image, MachineError, build, build_user_mode

KIND: Final = "TURNBUCKLE_TEST_MACHINES"
"""`emulated`: also what User-Mode Linux could run is run on Debian's 6.12 in QEMU."""
BOOT_WITHIN_S: Final = 60.0
"""User-Mode Linux boots in 2 s on a quiet machine."""
MEMORY_FILE_DIRECTORIES: Final = ("$TMPDIR", "$TMP", "$TEMP", "/dev/shm", "/tmp")
"""User-Mode Linux has its memory as a file in the first one that is there (arch/um/os-Linux/mem.c, choose_tempdir)."""


@pytest.fixture(scope="session")
def guest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guest]:
    """An emulated machine for all tests of a session that have no need of one of their own."""
    directory = tmp_path_factory.mktemp("guest")
    guest = Guest(build(directory), directory)
    yield guest
    guest.close()


@pytest.fixture(scope="session")
def quick_guest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guest]:
    """A machine of User-Mode Linux, for what needs none of what that lacks; emulated where it does not boot."""
    directory = tmp_path_factory.mktemp("quick-guest")
    guest = Guest(_quickest(directory), directory)
    yield guest
    guest.close()


def _quickest(directory: Path) -> Image:
    if os.environ.get(KIND) == "emulated":
        return build(directory)
    image = build_user_mode(directory)
    if (reason := _too_small()) or (reason := _does_not_boot(image, directory)):
        # No error, although warnings are: pyproject.toml has it as an exception.
        warnings.warn(f"User-Mode Linux does not run here, machines are emulated instead: {reason}", stacklevel=1)
        return build(directory)
    return image


def _too_small() -> str:
    """It would boot, and be killed by SIGBUS once a test takes more pages than there are."""
    directory = next(name for name in map(os.path.expandvars, MEMORY_FILE_DIRECTORIES) if Path(name).is_dir())
    free_mib = shutil.disk_usage(directory).free >> 20
    return "" if free_mib >= MEMORY_MIB else f"{directory} has {free_mib} MiB free, its memory takes {MEMORY_MIB}"


def _does_not_boot(image: Image, directory: Path) -> str:
    trial = Guest(image, directory / "trial")
    try:
        trial.machine(BOOT_WITHIN_S)
    except MachineError as error:
        return str(error)
    finally:
        trial.close()
    return ""
