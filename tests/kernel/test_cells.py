"""Cells on real control groups and network namespaces: limits, traffic, memory, and that nothing is left behind."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from services._host.cgroupfs import ManagedCgroup, detect
from services._host.sandbox.records import RECORDS, Owner, RunRecord
from services._host.sandbox.sandbox import Cell, Cells, CellSample, CellUnavailableError, Output
from tests.support.cgroup_lab import wait_until
from tests.support.local_runs import ROOT, cell_directories, child_of, lives, network_of, record_of, wait_gone

pytestmark = [pytest.mark.root, pytest.mark.netns]

MB = 1_000_000
BURN = "while True: pass"
RECEIVE = """
import socket
listener = socket.create_server(("", 5000))
connection, _ = listener.accept()
while connection.recv(1 << 16): pass
"""
SEND = """
import socket, sys, time
while True:
    try: connection = socket.create_connection((sys.argv[1], 5000)); break
    except OSError: time.sleep(0.01)
begin = time.monotonic()
connection.sendall(bytes(int(sys.argv[2])))
connection.shutdown(socket.SHUT_WR)
connection.recv(1)
print(time.monotonic() - begin)
"""


@pytest.fixture
def cells() -> Iterator[Cells]:
    """A run without cells yet."""
    with Cells() as cells:
        yield cells


def used(cell: Cell) -> CellSample:
    """Its sample."""
    sample = cell.sample()
    assert sample is not None
    return sample


def descriptors() -> int:
    """How many this process has open."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def python(cell: Cell, code: str, *words: str, output: Path | None = None) -> subprocess.Popen[bytes]:
    """A program inside."""
    return cell.spawn([sys.executable, "-S", "-c", code, *words], output=Output(output, None))


def transfer_s(sender: Cell, receiver: Cell, sent_bytes: int, output: Path) -> float:
    """How long it takes to send so much."""
    server = python(receiver, RECEIVE)
    client = python(sender, SEND, receiver.address, str(sent_bytes), output=output)
    assert client.wait(30) == 0
    assert server.wait(30) == 0
    return float(output.read_text())


def test_cells_reach_each_other_and_nothing_else(cells: Cells, tmp_path: Path) -> None:
    one, two = cells.create("one"), cells.create("two")
    transfer_s(one, two, MB, tmp_path / "s")
    for cell, elsewhere in ((one, "192.0.2.1"), (two, "127.0.0.1")):
        code = "import errno, socket, sys; print(errno.errorcode[socket.socket().connect_ex((sys.argv[1], 9))])"
        output = tmp_path / elsewhere
        assert python(cell, code, elsewhere, output=output).wait(10) == 0
        # No route to anywhere; the loopback device is up, and refuses
        assert output.read_text().strip() == ("ENETUNREACH" if cell is one else "ECONNREFUSED")


def test_traffic_is_counted_on_both_sides(cells: Cells, tmp_path: Path) -> None:
    sender, receiver = cells.create("sender"), cells.create("receiver")
    transfer_s(sender, receiver, 3 * MB, tmp_path / "s")
    sent, received = used(sender), used(receiver)
    # headers and acknowledgements: some per cent
    assert 3 * MB < sent.tx_bytes < 3.3 * MB
    assert 3 * MB < received.rx_bytes < 3.3 * MB
    assert sent.rx_bytes < 0.3 * MB


@pytest.mark.slow
@pytest.mark.parametrize("limited", ["sender", "receiver"])
def test_a_rate_holds_in_each_direction(cells: Cells, tmp_path: Path, limited: str) -> None:
    rates = {name: 40_000_000 if name == limited else None for name in ("sender", "receiver")}
    sender, receiver = (cells.create(name, network_bits_per_s=rate) for name, rate in rates.items())
    seconds = transfer_s(sender, receiver, 5 * MB, tmp_path / "s")
    # 40 Mbit of data, 3 per cent of headers, at 40 Mbit/s; the first 50 kB pass at once
    assert 0.95 < seconds < 10.0


def test_cpu_quota_and_time(cells: Cells) -> None:
    cell = cells.create("burner", cpu_cores=0.2)
    python(cell, BURN)
    begin = time.monotonic()
    wait_until(lambda: used(cell).cpu_s > 0.2, within_s=30, what="0.2 s of CPU time")
    # a quota is granted per 100 ms: the first one may come at once
    assert used(cell).cpu_s <= 0.2 * (time.monotonic() - begin) + 0.06


def test_a_quota_may_come_later_with_a_shorter_period(cells: Cells) -> None:
    """As the emulated cloud does it: no limit while the workers set up."""
    cell = cells.create("burner")
    cell.limit_cpu(0.2, 20_000)
    python(cell, BURN)
    begin = time.monotonic()
    wait_until(lambda: used(cell).cpu_s > 0.2, within_s=30, what="0.2 s of CPU time")
    assert used(cell).cpu_s <= 0.2 * (time.monotonic() - begin) + 0.06
    cell.limit_cpu(None)
    before_s, begin = used(cell).cpu_s, time.monotonic()
    wait_until(
        lambda: used(cell).cpu_s - before_s > 0.2 * (time.monotonic() - begin) + 0.1, within_s=30, what="more than that"
    )
    assert cells.remove(cell)
    cell.limit_cpu(0.2)  # nothing is there any more, and nothing happens


def test_memory_is_seen_and_its_limit_kills(cells: Cells) -> None:
    cell = cells.create("hungry", memory_bytes=64 << 20)
    holding = python(cell, "held = bytearray(32 << 20); import time; time.sleep(1000)")
    wait_until(lambda: used(cell).memory_bytes > 32 << 20, within_s=30, what="32 MiB held")
    assert cell.process_ids() == [holding.pid]
    cell.kill()
    holding.wait(10)
    killed = python(cell, "held = bytearray(96 << 20)")
    assert killed.wait(20) == -signal.SIGKILL
    assert used(cell).oom_kills == 1


def test_page_cache_is_not_taken_for_memory(cells: Cells, tmp_path: Path) -> None:
    cell = cells.create("reader")
    written = tmp_path / "file"
    assert python(cell, "import sys; open(sys.argv[1], 'wb').write(bytes(48 << 20))", str(written)).wait(20) == 0
    assert used(cell).memory_bytes < 24 << 20


def test_a_cell_can_be_made_again(cells: Cells) -> None:
    first = cells.create("worker", cpu_cores=0.5)
    with pytest.raises(ValueError, match="already"):
        cells.create("worker")
    process = python(first, BURN)
    assert cells.remove(first)
    assert process.wait(10) == -signal.SIGKILL
    assert first.sample() is None
    assert first.remove()
    again = cells.create("worker")
    assert again.address != first.address
    assert used(again).cpu_s == 0


@pytest.mark.parametrize(
    ("name", "limits", "words"),
    [
        ("../evil", {}, "does not match"),
        ("", {}, "does not match"),
        ("a", {"cpu_cores": 0.0}, "no limit"),
        ("a", {"cpu_cores": float("nan")}, "no limit"),
        ("a", {"memory_bytes": 0}, "no limit"),
        ("a", {"network_bits_per_s": 1}, "not within"),
    ],
)
def test_limits_that_make_no_sense(cells: Cells, name: str, limits: dict[str, float], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        cells.create(name, **limits)


def test_what_the_kernel_refuses_leaves_nothing(cells: Cells) -> None:
    names = {path.name for path in cell_directories(cells.token)}
    with pytest.raises(CellUnavailableError, match=r"Numerical result|Invalid argument"):
        cells.create("huge", cpu_cores=1e15)
    assert {path.name for path in cell_directories(cells.token)} == names


def test_a_program_that_does_not_exist(cells: Cells) -> None:
    cell = cells.create("worker")
    with pytest.raises(FileNotFoundError):
        cell.spawn(["/nonexistent/program"])
    assert cell.process_ids() == []


def test_a_fork_of_a_warm_parent_can_enter(cells: Cells) -> None:
    """As the emulated cloud does it, to save the imports."""
    cell = cells.create("forked")
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        cell.enter()
        os.write(writing, b"x")
        signal.pause()
    try:
        assert os.read(reading, 1) == b"x"
        assert cell.process_ids() == [child]
        assert network_of(child) != network_of(os.getpid())
    finally:
        cell.kill()
        os.waitpid(child, 0)
        os.close(reading)
        os.close(writing)


async def test_cells_can_be_made_while_an_event_loop_runs() -> None:
    with Cells() as cells:
        cell = cells.create("worker", network_bits_per_s=10_000_000)
        process = await asyncio.to_thread(cell.process_ids)
        assert process == []


def test_the_end_of_the_run_leaves_nothing() -> None:
    before = network_of(os.getpid())
    opened = descriptors()
    with Cells() as cells:
        token = cells.token
        cell = cells.create("worker")
        # a child of its own session, as a daemon would be
        shell = cell.spawn(["sh", "-c", "setsid sleep 1000 & wait"])
        wait_until(child_of(shell.pid), what="a child")
        pids = cell.process_ids()
        assert record_of(token).exists()
    assert shell.wait(5) == -signal.SIGKILL
    wait_gone(token, pids)
    assert network_of(os.getpid()) == before
    assert descriptors() == opened


OWNER = """
import sys
from services._host.sandbox.sandbox import Cells
with Cells() as cells:
    cell = cells.create("worker")
    shell = cell.spawn(["sh", "-c", "sleep 1000 & sleep 1000 & wait"])
    while len(cell.process_ids()) < 3: pass
    print(cells.token, cells._warden.pid, *cell.process_ids(), flush=True)
    sys.stdin.read()
"""


@pytest.mark.slow
@pytest.mark.parametrize("warden_dies_first", [False, True])
def test_a_killed_owner_leaves_nothing(warden_dies_first: bool) -> None:
    """At once, by the warden; without one at the next start."""
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert owner.stdout is not None
    token, warden, *pids = owner.stdout.readline().split()
    if warden_dies_first:
        os.kill(int(warden), signal.SIGKILL)
        wait_until(lambda: not lives(int(warden)), what="the warden's end")
    owner.kill()
    owner.communicate()
    if warden_dies_first:
        # the program that we started died with us, its children did not
        wait_until(lambda: not lives(int(pids[0])), what="the end of the program")
        assert [lives(int(pid)) for pid in pids[1:]] == [True, True]
        with Cells() as next_run:
            assert token in next_run.swept
    wait_gone(token, [int(pid) for pid in pids])


def test_what_lives_is_not_swept() -> None:
    with Cells() as ours, Cells() as other:
        cell = ours.create("worker")
        process = python(cell, BURN)
        assert other.swept == []
        with Cells() as third:
            assert third.swept == []
        assert process.poll() is None
        assert ours.token != other.token


def test_records_of_others_are_left_alone(tmp_path: Path) -> None:
    """Of another PID namespace, whose processes we cannot see; of an earlier boot only the record is left."""
    ourselves = Owner.ourselves()
    (tmp_path / "broken.json").write_text("no record")
    elsewhere = RunRecord("elsewhere", "x", replace(ourselves, pid_namespace="pid:[1]", pid=1 << 21))
    earlier = RunRecord("earlier", "x", replace(ourselves, boot="another"))
    reused = RunRecord("reused", "x", replace(ourselves, started_ticks=1))
    for record in (elsewhere, earlier, reused):
        record.write(tmp_path)
    with Cells(records=tmp_path) as cells:
        assert sorted(cells.swept) == ["earlier", "reused"]
        left = sorted(path.stem for path in tmp_path.glob("*.json"))
        assert left == sorted(["broken", "elsewhere", cells.token])
        plain = json.loads((tmp_path / f"{cells.token}.json").read_text())
        assert plain["owner"] == asdict(ourselves)


def test_no_place_for_records(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CellUnavailableError, match="file"), Cells(records=tmp_path / "file" / "records"):
        pass


def test_without_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(CellUnavailableError, match="need root"), Cells():
        pass


def test_no_group_is_left_at_the_top() -> None:
    """Runs of this machine's others may be there; an empty root may not."""
    with Cells():
        pass
    for mount in detect().distinct_mounts():
        top = Path(mount.directory) / "turnbuckle-cells"
        assert not top.exists() or any(path.is_dir() for path in top.iterdir())
    assert isinstance(ManagedCgroup(detect(), "turnbuckle-cells").process_ids(), list)
    assert RECORDS.is_dir()
