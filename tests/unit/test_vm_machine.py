"""Building a virtual machine says what is missing, whoever asks for one: the tests' marker, or `make vm-shell`.

And where User-Mode Linux does not run, tests get an emulated machine; one that has gone is killed once.
"""

from __future__ import annotations

import os
import shutil
import signal
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.lab.vm import fixtures, machine
from tests.lab.vm.guest import RunningMachine


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


@pytest.mark.parametrize(("free_mib", "why"), [(64, "has 64 MiB free"), (machine.MEMORY_MIB, "no kernel")])
def test_where_user_mode_linux_does_not_run_machines_are_emulated(
    free_mib: int, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its memory is a file: with less room a test would be killed halfway. Warnings are errors, but this one."""
    emulated = machine.EmulatedImage(tmp_path / "vmlinuz", tmp_path / "initramfs")
    tried = machine.UserModeImage(Path("/nonexistent"), tmp_path / "initramfs-user-mode", "6.1")

    def does_not_boot(*_: object) -> None:
        raise machine.MachineError("no kernel")

    monkeypatch.delenv(fixtures.KIND, raising=False)
    monkeypatch.setattr(fixtures, "build", lambda _: emulated)
    monkeypatch.setattr(fixtures, "build_user_mode", lambda _: tried)
    monkeypatch.setattr(fixtures.Guest, "machine", does_not_boot)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free_mib << 20))

    with warnings.catch_warnings(record=True) as said:  # `recwarn` would have filters of its own
        assert fixtures._quickest(tmp_path) == emulated
    [warning] = said
    assert why in str(warning.message)


class Sleep:
    """An image whose machine does nothing."""

    release = "none"

    def command(self, *_: object, **__: object) -> list[str]:
        return ["sleep", "600"]


def test_a_machine_is_killed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process is reaped then, and the kernel may give the number to another one, with a group of that number."""
    killed, kill = [], os.killpg

    def killpg(group: int, number: int) -> None:
        killed.append(number)
        kill(group, number)

    running = RunningMachine(Sleep(), tmp_path / "machine")
    monkeypatch.setattr(os, "killpg", killpg)
    for _ in range(2):
        running.kill()

    assert not running.alive
    assert killed == [signal.SIGKILL]
