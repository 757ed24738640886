"""Sandboxes on real control groups and network namespaces: limits, traffic, memory, and that nothing is left behind."""

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
from services._host.owner import Owner
from services._jobs.sandbox.records import RECORDS, RunRecord
from services._jobs.sandbox.sandbox import Output, Sandbox, Sandboxes, SandboxSample, SandboxUnavailableError
from tests.support.cgroup_lab import wait_until
from tests.support.local_runs import ROOT, child_of, lives, network_of, record_of, sandbox_directories, wait_gone

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
def sandboxes() -> Iterator[Sandboxes]:
    """A run without sandboxes yet."""
    with Sandboxes() as sandboxes:
        yield sandboxes


def used(sandbox: Sandbox) -> SandboxSample:
    """Its sample."""
    sample = sandbox.sample()
    assert sample is not None
    return sample


def descriptors() -> int:
    """How many this process has open."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def python(sandbox: Sandbox, code: str, *words: str, output: Path | None = None) -> subprocess.Popen[bytes]:
    """A program inside."""
    return sandbox.spawn([sys.executable, "-S", "-c", code, *words], output=Output(output, None))


def transfer_s(sender: Sandbox, receiver: Sandbox, sent_bytes: int, output: Path) -> float:
    """How long it takes to send so much."""
    server = python(receiver, RECEIVE)
    client = python(sender, SEND, receiver.address, str(sent_bytes), output=output)
    assert client.wait(60) == 0
    assert server.wait(60) == 0
    return float(output.read_text())


def test_sandboxes_reach_each_other_and_nothing_else(sandboxes: Sandboxes, tmp_path: Path) -> None:
    one, two = sandboxes.create("one"), sandboxes.create("two")
    transfer_s(one, two, MB, tmp_path / "s")
    for sandbox, elsewhere in ((one, "192.0.2.1"), (two, "127.0.0.1")):
        code = "import errno, socket, sys; print(errno.errorcode[socket.socket().connect_ex((sys.argv[1], 9))])"
        output = tmp_path / elsewhere
        assert python(sandbox, code, elsewhere, output=output).wait(60) == 0
        # No route to anywhere; the loopback device is up, and refuses
        assert output.read_text().strip() == ("ENETUNREACH" if sandbox is one else "ECONNREFUSED")


def test_traffic_is_counted_on_both_sides(sandboxes: Sandboxes, tmp_path: Path) -> None:
    sender, receiver = sandboxes.create("sender"), sandboxes.create("receiver")
    transfer_s(sender, receiver, 3 * MB, tmp_path / "s")
    sent, received = used(sender), used(receiver)
    # headers and acknowledgements: some per cent
    assert 3 * MB < sent.tx_bytes < 3.3 * MB
    assert 3 * MB < received.rx_bytes < 3.3 * MB
    assert sent.rx_bytes < 0.3 * MB


@pytest.mark.slow
@pytest.mark.parametrize("limited", ["sender", "receiver"])
def test_a_rate_holds_in_each_direction(sandboxes: Sandboxes, tmp_path: Path, limited: str) -> None:
    rates = {name: 40_000_000 if name == limited else None for name in ("sender", "receiver")}
    sender, receiver = (sandboxes.create(name, network_bits_per_s=rate) for name, rate in rates.items())
    seconds = transfer_s(sender, receiver, 5 * MB, tmp_path / "s")
    # 40 Mbit of data, 3 per cent of headers, at 40 Mbit/s; the first 50 kB pass at once
    assert 0.95 < seconds < 60.0


@pytest.mark.machine
def test_cpu_quota_and_time(sandboxes: Sandboxes) -> None:
    sandbox = sandboxes.create("burner", cpu_cores=0.2)
    python(sandbox, BURN)
    begin = time.monotonic()
    wait_until(lambda: used(sandbox).cpu_s > 0.6, within_s=60, what="0.6 s of CPU time")
    # A fifth of a core takes 3 s for that, and without a limit it is 0.6 s. Half a core is the bound: a period's quota
    # may come at once, and the scheduler also charges what a hypervisor takes away.
    assert used(sandbox).cpu_s <= 0.5 * (time.monotonic() - begin) + 0.06
    assert used(sandbox).throttled_s > 0.0


@pytest.mark.machine
def test_a_quota_may_come_later_with_a_shorter_period(sandboxes: Sandboxes) -> None:
    """As the emulated cloud does it: no limit while the workers set up."""
    sandbox = sandboxes.create("burner")
    sandbox.limit_cpu(0.2, 20_000)
    python(sandbox, BURN)
    begin = time.monotonic()
    wait_until(lambda: used(sandbox).cpu_s > 0.6, within_s=60, what="0.6 s of CPU time")
    assert used(sandbox).cpu_s <= 0.5 * (time.monotonic() - begin) + 0.06
    sandbox.limit_cpu(None)
    before_s, begin = used(sandbox).cpu_s, time.monotonic()
    wait_until(
        lambda: used(sandbox).cpu_s - before_s > 0.2 * (time.monotonic() - begin) + 0.1,
        within_s=60,
        what="more than that",
    )
    assert sandboxes.remove(sandbox)
    sandbox.limit_cpu(0.2)  # nothing is there any more, and nothing happens


def test_memory_is_seen_and_its_limit_kills(sandboxes: Sandboxes) -> None:
    sandbox = sandboxes.create("hungry", memory_bytes=64 << 20)
    holding = python(sandbox, "held = bytearray(32 << 20); import time; time.sleep(1000)")
    wait_until(lambda: used(sandbox).memory_bytes > 32 << 20, within_s=60, what="32 MiB held")
    assert sandbox.process_ids() == [holding.pid]
    sandbox.kill()
    holding.wait(60)
    killed = python(sandbox, "held = bytearray(96 << 20)")
    assert killed.wait(60) == -signal.SIGKILL
    assert used(sandbox).oom_kills == 1


def test_page_cache_is_not_taken_for_memory(sandboxes: Sandboxes, tmp_path: Path) -> None:
    sandbox = sandboxes.create("reader")
    written = tmp_path / "file"
    assert python(sandbox, "import sys; open(sys.argv[1], 'wb').write(bytes(48 << 20))", str(written)).wait(60) == 0
    assert used(sandbox).memory_bytes < 24 << 20


def test_a_sandbox_can_be_made_again(sandboxes: Sandboxes) -> None:
    first = sandboxes.create("worker", cpu_cores=0.5)
    with pytest.raises(ValueError, match="already"):
        sandboxes.create("worker")
    process = python(first, BURN)
    assert sandboxes.remove(first)
    assert process.wait(60) == -signal.SIGKILL
    assert first.sample() is None
    assert first.remove()
    again = sandboxes.create("worker")
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
def test_limits_that_make_no_sense(sandboxes: Sandboxes, name: str, limits: dict[str, float], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        sandboxes.create(name, **limits)


def test_what_the_kernel_refuses_leaves_nothing(sandboxes: Sandboxes) -> None:
    names = {path.name for path in sandbox_directories(sandboxes.token)}
    with pytest.raises(SandboxUnavailableError, match=r"Numerical result|Invalid argument"):
        sandboxes.create("huge", cpu_cores=1e15)
    assert {path.name for path in sandbox_directories(sandboxes.token)} == names


def test_a_program_that_does_not_exist(sandboxes: Sandboxes) -> None:
    sandbox = sandboxes.create("worker")
    with pytest.raises(FileNotFoundError):
        sandbox.spawn(["/nonexistent/program"])
    assert sandbox.process_ids() == []


def test_a_child_of_a_fork_server_can_enter(sandboxes: Sandboxes) -> None:
    """As the emulated cloud does it, to save the imports."""
    sandbox = sandboxes.create("forked")
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        sandbox.enter()
        os.write(writing, b"x")
        signal.pause()
    try:
        assert os.read(reading, 1) == b"x"
        assert sandbox.process_ids() == [child]
        assert network_of(child) != network_of(os.getpid())
    finally:
        sandbox.kill()
        os.waitpid(child, 0)
        os.close(reading)
        os.close(writing)


async def test_sandboxes_can_be_made_while_an_event_loop_runs() -> None:
    with Sandboxes() as sandboxes:
        sandbox = sandboxes.create("worker", network_bits_per_s=10_000_000)
        process = await asyncio.to_thread(sandbox.process_ids)
        assert process == []


def test_the_end_of_the_run_leaves_nothing() -> None:
    before = network_of(os.getpid())
    opened = descriptors()
    with Sandboxes() as sandboxes:
        token = sandboxes.token
        sandbox = sandboxes.create("worker")
        # a child of its own session, as a daemon would be
        shell = sandbox.spawn(["sh", "-c", "setsid sleep 1000 & wait"])
        wait_until(child_of(shell.pid), what="a child")
        pids = sandbox.process_ids()
        assert record_of(token).exists()
    assert shell.wait(60) == -signal.SIGKILL
    wait_gone(token, pids)
    assert network_of(os.getpid()) == before
    assert descriptors() == opened


OWNER = """
import sys
from services._jobs.sandbox.sandbox import Sandboxes
with Sandboxes() as sandboxes:
    sandbox = sandboxes.create("worker")
    shell = sandbox.spawn(["sh", "-c", "sleep 1000 & sleep 1000 & wait"])
    while len(sandbox.process_ids()) < 3: pass
    print(sandboxes.token, sandboxes._reaper.pid, *sandbox.process_ids(), flush=True)
    sys.stdin.read()
"""


@pytest.mark.slow
@pytest.mark.parametrize("reaper_dies_first", [False, True])
def test_a_killed_owner_leaves_nothing(reaper_dies_first: bool) -> None:
    """At once, by the reaper; without one at the next start."""
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert owner.stdout is not None
    token, reaper, *pids = owner.stdout.readline().split()
    if reaper_dies_first:
        os.kill(int(reaper), signal.SIGKILL)
        wait_until(lambda: not lives(int(reaper)), what="the reaper's end")
    owner.kill()
    owner.communicate()
    if reaper_dies_first:
        # the program that we started died with us, its children did not
        wait_until(lambda: not lives(int(pids[0])), what="the end of the program")
        assert [lives(int(pid)) for pid in pids[1:]] == [True, True]
        with Sandboxes() as next_run:
            assert token in next_run.swept
    wait_gone(token, [int(pid) for pid in pids])


def test_what_lives_is_not_swept() -> None:
    with Sandboxes() as ours, Sandboxes() as other:
        sandbox = ours.create("worker")
        process = python(sandbox, BURN)
        assert other.swept == []
        with Sandboxes() as third:
            assert third.swept == []
        assert process.poll() is None
        assert ours.token != other.token


def test_records_of_others_are_left_alone(tmp_path: Path) -> None:
    """Of another PID namespace, whose processes we cannot see; of an earlier boot only the record is left."""
    owner = Owner.this_process()
    (tmp_path / "broken.json").write_text("no record")
    elsewhere = RunRecord("elsewhere", "x", replace(owner, pid_namespace="pid:[1]", pid=1 << 21))
    earlier = RunRecord("earlier", "x", replace(owner, boot="another"))
    reused = RunRecord("reused", "x", replace(owner, started_ticks=1))
    for record in (elsewhere, earlier, reused):
        record.write(tmp_path)
    with Sandboxes(records=tmp_path) as sandboxes:
        assert sorted(sandboxes.swept) == ["earlier", "reused"]
        left = sorted(path.stem for path in tmp_path.glob("*.json"))
        assert left == sorted(["broken", "elsewhere", sandboxes.token])
        plain = json.loads((tmp_path / f"{sandboxes.token}.json").read_text())
        assert plain["owner"] == asdict(owner)


def test_no_place_for_records(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SandboxUnavailableError, match="file"), Sandboxes(records=tmp_path / "file" / "records"):
        pass


def test_without_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(SandboxUnavailableError, match="need root"), Sandboxes():
        pass


def test_no_group_is_left_at_the_top() -> None:
    """Runs of this machine's others may be there; an empty root may not."""
    with Sandboxes():
        pass
    for mount in detect().distinct_mounts():
        top = Path(mount.directory) / "turnbuckle-cells"
        assert not top.exists() or any(path.is_dir() for path in top.iterdir())
    assert isinstance(ManagedCgroup(detect(), "turnbuckle-cells").process_ids(), list)
    assert RECORDS.is_dir()
