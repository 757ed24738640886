"""The loader's side of the socket, spoken by a script: what the agent makes of it."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from services._host.bpf.loader import KernelPrograms
from services._host.bpf.loader_process import LOAD_DEADLINE_S, KernelProgramsError
from services._host.bpf.records import VERSION
from tests.support.cgroup_lab import wait_until

Start = Callable[[str], KernelPrograms]
TABLE = "send(1, descriptors=[os.open('/dev/null', os.O_RDONLY)])"
READY = "send(3)"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a loader that runs these lines; ``send(kind, payload, version, descriptors)`` sends a packet."""
    started: list[KernelPrograms] = []

    def begin(lines: str) -> KernelPrograms:
        loader = tmp_path / "turnbuckle-kernel"
        prelude = f"""\
            #!{sys.executable} -S
            import os, socket, struct, sys
            agent = socket.socket(fileno=int(sys.argv[sys.argv.index("--socket") + 1]))
            def send(kind, payload=b"", version={VERSION}, descriptors=()):
                socket.send_fds(agent, [struct.pack("=II", version, kind) + payload], list(descriptors))
            """
        loader.write_text(textwrap.dedent(prelude) + lines + "\n")
        loader.chmod(0o755)
        programs = KernelPrograms(tmp_path, ["/cpu", "/memory"])
        started.append(programs)
        return programs

    yield begin
    for programs in started:
        programs.close()


def stays(*lines: str) -> str:
    return "\n".join((*lines, "agent.recv(1)"))


def test_what_was_loaded_and_what_was_not_is_known(start: Start) -> None:
    programs = start(stays(TABLE, "send(2, b'cgroups ok')", "send(2, b'periods failed: not permitted')", READY))
    assert len(programs.links) == 1
    assert programs.status == ["cgroups ok", "periods failed: not permitted"]
    assert (programs.streams, programs.streams_periods) == (False, False)


def test_records_come_whole_in_order_and_by_kind(start: Start) -> None:
    period, oom = "struct.pack('=8q', *range({0}, {0} + 8))", "struct.pack('=5q', {0}, 1, 2, 3, 4)"
    programs = start(
        stays(
            TABLE,
            "send(2, b'periods ok')",
            READY,
            f"send(4, {period.format(10)} + {period.format(20)})",
            f"send(5, {oom.format(77)})",
            f"send(4, {period.format(30)})",
        )
    )
    assert programs.streams_periods
    seen: list[int] = []
    ooms: list[int] = []

    def take() -> bool:
        records = programs.take_records()
        assert records.is_whole
        seen.extend(records.periods[:, 0].tolist())
        ooms.extend(records.oom_groups)
        return len(seen) == 3

    wait_until(take, what="all records")
    assert (seen, ooms) == ([10, 20, 30], [77])
    assert programs.take_records().periods.shape == (0, 8)


def test_a_bell_is_the_callers_once_it_is_taken(start: Start) -> None:
    bell = "send(7, descriptors=[os.open('/dev/null', os.O_RDONLY)])"
    programs = start(stays(TABLE, bell, "send(2, b'throttles ok')", READY))
    assert programs.streams, "it rings for as long as the loader runs"
    assert len(programs.links) == 1
    descriptor = programs.take_throttle_ring()
    assert descriptor is not None
    assert programs.take_throttle_ring() is None
    programs.close()
    os.close(descriptor)


def test_the_map_of_writers_is_the_callers_once_it_is_taken(start: Start) -> None:
    writers = "send(8, descriptors=[os.open('/dev/null', os.O_RDONLY)])"
    programs = start(stays(TABLE, writers, "send(2, b'writers ok')", READY))
    assert programs.streams, "the loader holds the program"
    assert len(programs.links) == 1
    descriptor = programs.take_writers()
    assert descriptor is not None
    assert programs.take_writers() is None
    programs.close()
    os.close(descriptor)


def test_what_was_lost_is_told(start: Start) -> None:
    programs = start(stays(TABLE, "send(2, b'victims ok')", READY, "send(6, struct.pack('=Q', 9))"))
    wait_until(lambda: not programs.take_records().is_whole, what="a loss")
    assert programs.take_records().is_whole


def test_a_loader_that_ends_is_noticed(start: Start) -> None:
    programs = start(f"{TABLE}\nsend(2, b'periods ok')\n{READY}")

    def ended() -> bool:
        try:
            programs.take_records()
        except OSError as error:
            return "has ended" in str(error)
        return False

    wait_until(ended, what="the end")


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ("send(2, b'cgroups failed: no BTF')\n" + READY, "cgroups failed: no BTF"),
        (READY, "has no table of control groups"),
        ("send(3, version=9)", f"speaks version 9, not {VERSION}: make kernel"),
        ("sys.exit(7)", "ended with exit code 7"),
        ("agent.send(b'xy')\nagent.recv(1)", "sends packets of an unknown form"),
    ],
)
def test_why_there_is_none_is_a_sentence(start: Start, lines: str, reason: str) -> None:
    with pytest.raises(KernelProgramsError, match=reason):
        start(lines)


def test_one_that_says_nothing_is_given_up(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services._host.bpf.loader_process.LOAD_DEADLINE_S", 0.2)
    assert LOAD_DEADLINE_S > 1
    with pytest.raises(KernelProgramsError, match=r"said nothing for 0\.2 s"):
        start("agent.recv(1)")
