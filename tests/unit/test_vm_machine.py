"""Building a virtual machine says what is missing, whoever asks for one: the tests' marker, or `make vm-shell`."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.vm import machine


@pytest.fixture(autouse=True)
def _asked_anew() -> Iterator[None]:
    machine.missing.cache_clear()
    yield
    machine.missing.cache_clear()


@pytest.mark.parametrize(
    ("program", "package"), [("depmod", "kmod"), (machine.QEMU, "qemu-system-x86"), ("dpkg-deb", "dpkg, on Debian")]
)
def test_a_missing_program_is_named_with_its_package(
    program: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr(shutil, "which", lambda name, **_: None if name == program else f"/usr/bin/{name}")

    with pytest.raises(machine.MachineError, match=f"^needs {program}: apt-get install {package}$"):
        machine.build(tmp_path)
