"""Programs of the host: what they say, and that one which is not ended keeps nothing waiting; signatures on disks."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
from pathlib import Path

import pytest

from services.memory.adapters import programs
from services.memory.adapters.disk import BlockDisk
from services.memory.adapters.programs import ProgramError, run

MIB = 1 << 20


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed program ends once it gets a processor."""
    monkeypatch.setattr(programs, "KILLED_WITHIN_S", 60.0)


def test_a_program_has_its_input_and_says_what_it_has_found() -> None:
    assert run(["cat"], "a table") == "a table"
    with pytest.raises(ProgramError, match=r"^sh -c echo no table >&2; exit 3: no table$"):
        run(["sh", "-c", "echo no table >&2; exit 3"])
    with pytest.raises(ProgramError, match=r"^false: exit code 1$"):
        run(["false"])
    with pytest.raises(ProgramError, match=r"^no-such-program is not installed$"):
        run(["no-such-program"])


def test_a_program_that_takes_too_long_is_killed_and_can_be_run_again() -> None:
    for _ in range(2):
        with pytest.raises(ProgramError, match=r"^sleep 600 has not ended within 0.1 s$"):
            run(["sleep", "600"], within_s=0.1)


def test_what_a_killed_program_has_started_is_not_waited_for(tmp_path: Path) -> None:
    """It has the program's output open: reading that to its end would wait for it."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    writer = os.open(fifo, os.O_RDWR)  # `cat` reads until this is closed
    try:
        with pytest.raises(ProgramError, match=r"has not ended within 2 s$"):
            run(["sh", "-c", f"cat {fifo} & wait"], within_s=2.0)
    finally:
        fifo.unlink()  # a `cat` that has not opened it yet finds nothing, and ends
        os.close(writer)


def test_a_program_that_the_kernel_does_not_end_is_left_and_not_run_beside_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As one in an uninterruptible wait, which no signal ends."""
    command = ["sleep", "601"]
    said = r"nor when it was killed: process \d+ in state [RSD] stays in the kernel, .* `dmesg`"
    with monkeypatch.context() as unkillable:
        unkillable.setattr(subprocess.Popen, "kill", lambda _self: None)
        unkillable.setattr(programs, "KILLED_WITHIN_S", 0.1)
        with pytest.raises(ProgramError, match=f"^sleep 601 has not ended within 0.1 s, {said}"):
            run(command, within_s=0.1)
    process = programs._left[tuple(command)]
    try:
        with pytest.raises(ProgramError, match=f"was killed before and has not ended: process {process.pid} in state"):
            run(command, within_s=0.1)
        assert run(["echo", "others run"]) == "others run\n"
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    with pytest.raises(ProgramError, match=r"^sleep 601 has not ended within 0.1 s$"):
        run(command, within_s=0.1)
    assert programs._left == {}


def test_signatures_are_found_and_erased(tmp_path: Path) -> None:
    """A swap area (mkswap(8): version 1, its last page, the words at the end of the first page) stands for all."""
    file, disk = tmp_path / "disk", BlockDisk()
    content = bytearray(4 * MIB)
    content[1024:1032] = struct.pack("=II", 1, 4 * MIB // 4096 - 1)
    content[4086:4096] = b"SWAPSPACE2"
    content[2 * MIB : 2 * MIB + 4] = b"page"
    file.write_bytes(content)
    assert disk.content(str(file)) == "swap"

    disk.erase(str(file))

    assert disk.content(str(file)) == ""
    assert file.read_bytes()[2 * MIB : 2 * MIB + 4] == b"page"
