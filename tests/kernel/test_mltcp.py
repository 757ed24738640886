"""MLTCP in this host's kernel: loaded, learning, chosen by control group, restricted, and gone with its process."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median

import pytest

from schemas.scheduling import WorkerChange
from services._host.bpf.congestion import DEFAULT, CongestionPrograms
from services._host.cgroupfs import UNIFIED, CgroupLayout, ManagedCgroup, detect, managed_directory, with_unified
from services._runtime.telemetry.logging import get_logger
from services.runner.congestion import CongestionControl
from services.runner.core.iterations import FlowIteration
from services.runner.worker import WorkerKey
from tests.support.cgroup_lab import wait_until
from tests.support.deadline import until
from tests.support.runner_lab import RunnerLab, job_spec, python, run_order
from tests.support.shared_trunk import SharedTrunk, shared_trunk

pytestmark = [pytest.mark.root, pytest.mark.netns, pytest.mark.slow]
KERNEL = Path(__file__).resolve().parents[2] / "kernel"
ROOT = f"turnbuckle-mltcp-{os.getpid()}"
HOST_DEFAULT = DEFAULT.read_text(encoding="ascii").strip()
WORKER = WorkerKey("train", 1, 0)
BOTH_ENDS = """
import socket
server = socket.create_server(("127.0.0.1", 0))
active = socket.create_connection(server.getsockname())
passive, _ = server.accept()
for end in (active, passive):
    print(end.getsockopt(6, 13, 16).partition(b"\\0")[0].decode(), flush=True)
"""
CHOOSE = """
import os, socket, sys
os.setuid(65534)
try:
    socket.socket().setsockopt(6, 13, sys.argv[1].encode())
    print("chosen")
except PermissionError:
    print("refused")
"""
HOLD = """
import sys
from pathlib import Path
from schemas.scheduling import WorkerChange
from services._host.bpf.congestion import CongestionPrograms
programs = CongestionPrograms(Path(sys.argv[1]), "restricted")
link = programs.attach(sys.argv[2], "mltcp")
print("loaded", flush=True)
sys.stdin.read()
"""
Load = Callable[..., CongestionPrograms]


@pytest.fixture(scope="module")
def built() -> Path:
    """The directory of the loader and its objects."""
    made = subprocess.run(["make", "-C", str(KERNEL)], capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    return KERNEL / "build"


@pytest.fixture
def load(built: Path) -> Iterator[Load]:
    """Loads the programs until the test's end."""
    loaded: list[CongestionPrograms] = []

    def begin(mltcp: str = "restricted", **options: int) -> CongestionPrograms:
        loaded.append(CongestionPrograms(built, mltcp, **options))
        return loaded[-1]

    yield begin
    for programs in loaded:
        programs.close()


@pytest.fixture
def layout() -> CgroupLayout:
    return with_unified(detect())


@pytest.fixture
def group(layout: CgroupLayout) -> Iterator[str]:
    """Directory of a control group in the hierarchy of version 2."""
    managed = ManagedCgroup.create(layout, managed_directory("job-train", "worker-0", "0" * 12, ROOT))
    yield layout.directories(managed.directory)[UNIFIED]
    managed.end()


@pytest.fixture
def trunk() -> Iterator[SharedTrunk]:
    with shared_trunk() as made:
        yield made


def in_group(directory: str, code: str, *arguments: str) -> list[str]:
    """What a program in a control group prints, in words."""
    join = ["sh", "-c", f'echo 0 > {directory}/cgroup.procs; exec "$@"', "sh"]
    command = [*join, sys.executable, "-S", "-E", "-c", code, *arguments]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=60).stdout.split()


def groups_of_workers(layout: CgroupLayout) -> list[Path]:
    return list(Path(layout.mounts[UNIFIED].directory).glob(f"{ROOT}/*/*"))


def links_of(pid: int) -> set[str]:
    """BPF links that a process holds."""
    held = set()
    for file in Path(f"/proc/{pid}/fdinfo").iterdir():
        held |= set(re.findall(r"^link_id:\t(\d+)", file.read_text(), re.MULTILINE))
    return held


def links_of_host() -> set[str]:
    shown = subprocess.run(["bpftool", "link", "show"], stdout=subprocess.PIPE, text=True, check=True).stdout
    return set(re.findall(r"^(\d+):", shown, re.MULTILINE))


# -- what is learned ---------------------------------------------------------------------------------------------------


@pytest.mark.machine
def test_iterations_of_a_job_are_learned_and_learned_again(load: Load, trunk: SharedTrunk, group: str) -> None:
    """Three buckets 15 ms apart are one iteration; then the job sends two others."""
    control = CongestionControl(load(), "", get_logger("runner"))
    assert control.choose(WORKER, group, "auto") == "mltcp"
    job = trunk.start_job([600_000, 900_000, 500_000], 0.3, 10_000, group=group, changed=[400_000, 600_000])
    seen: list[FlowIteration] = []

    def learned(whole: int) -> bool:
        control.poll()
        seen.extend(control.iterations())
        return len(seen) >= 6 and median(one.sent_bytes for one in seen[-6:]) == pytest.approx(whole, rel=0.1)

    wait_until(lambda: learned(2_000_000), what="iterations of 2 MB")
    job.change()
    wait_until(lambda: learned(1_000_000), what="iterations of 1 MB")
    ran = job.stop()
    assert all(one.congestion_control.startswith("mltcp") for one in ran)
    assert {one.congestion_control for one in seen} == {"mltcp"}
    assert {(one.job, one.attempt, one.rank) for one in seen} == {WORKER}
    own_s = {after.sending_s: after.sending_s - before.sending_s for before, after in pairwise(ran)}
    ends_s = [(one.time_ns / 1e9 + one.period_us / 1e6, one.period_us / 1e6) for one in seen[-6:]]
    off = [abs(own_s[min(own_s, key=lambda sent_s: abs(sent_s - end_s))] / period_s - 1) for end_s, period_s in ends_s]
    assert median(off) < 0.2
    assert all(0 < one.sending_us < one.period_us for one in seen)


@pytest.mark.parametrize("algorithm", ["mltcp", "mltcp_cubic"])
def test_growth_is_scaled_once_three_iterations_are_known(
    load: Load, trunk: SharedTrunk, group: str, algorithm: str
) -> None:
    programs = load()
    link = programs.attach(group, algorithm)
    job = trunk.start_job([1_500_000], 0.2, 10_000, group=group)

    def scaled() -> bool:
        programs.take_iterations()
        return programs.counters.scaled_acks > 0

    wait_until(scaled, what="scaled acknowledgements")
    job.stop()
    os.close(link)
    assert programs.counters.iterations >= 3
    assert (programs.counters.flows, programs.counters.lost) == (1, 0)


@pytest.mark.machine
@pytest.mark.parametrize("burst_bytes", [0, 250_000], ids=["received at once", "received in bursts"])
def test_a_stream_without_iterations_is_reno(load: Load, group: str, burst_bytes: int) -> None:
    """Its buffer is never empty: where it waits, its receiver or a busy machine makes it."""
    programs = load()
    link = programs.attach(group, "mltcp")
    with shared_trunk("20mbit") as trunk:
        stream = trunk.start_bulk(3.0, group=group, burst_bytes=burst_bytes)
        sent, used = stream.communicate(timeout=60)[0].split()
    os.close(link)
    assert used.startswith("mltcp")
    assert int(sent) > 1_000_000
    programs.ask_counters()
    asked = programs.counters

    def told() -> bool:
        programs.take_iterations()
        return programs.counters is not asked

    wait_until(told, what="counters")
    assert (programs.counters.iterations, programs.counters.scaled_acks) == (0, 0)


@pytest.mark.machine
def test_a_retransmission_timeout_begins_no_iteration(load: Load, trunk: SharedTrunk, group: str) -> None:
    """After three timeouts in a row the last wait is longer than half of the pause between two iterations."""
    control = CongestionControl(load(), "", get_logger("runner"))
    control.choose(WORKER, group, "auto")
    trunk.start_job([10_000_000], 1.0, 10_000, group=group)
    seen: list[FlowIteration] = []

    def has_more(than: int) -> bool:
        control.poll()
        seen.extend(control.iterations())
        return len(seen) > than

    wait_until(lambda: has_more(2), what="iterations")
    for _ in range(3):
        before, cuts = trunk.timeouts(), len(seen)
        trunk.cut()
        wait_until(lambda: trunk.timeouts() >= before + 3, what="three timeouts")  # noqa: B023 - called at once
        trunk.mend()
        wait_until(lambda: has_more(cuts + 1), what="further iterations")  # noqa: B023 - called at once
    control.close()
    assert [round(one.sent_bytes / 1e7, 1) for one in seen[1:]] == [1.0] * (len(seen) - 1)


@pytest.mark.machine
def test_a_threshold_that_is_no_answer_of_the_programs_is_put_right(
    built: Path, trunk: SharedTrunk, group: str, tmp_path: Path
) -> None:
    """As of a kernel that has skipped the program: each time a number of millions.

    1,000 segments in a queue of 30: Reno loses some tens of an iteration, and who sends all at once nearly all.
    """
    for name in ("turnbuckle-congestion", "sockops.bpf.o", "mltcp_cubic.bpf.o"):
        (tmp_path / name).symlink_to(built / name)
    (tmp_path / "mltcp.bpf.o").symlink_to(built / "test" / "skipped.bpf.o")
    control = CongestionControl(CongestionPrograms(tmp_path, "restricted"), "", get_logger("runner"))
    assert control.choose(WORKER, group, "auto") == "mltcp"
    trunk.start_job([1_500_000], 0.2, 10_000, group=group)
    seen: list[FlowIteration] = []

    def enough() -> bool:
        control.poll()
        seen.extend(control.iterations())
        return len(seen) >= 12

    wait_until(enough, what="iterations")
    control.close()
    assert 0 < median(one.drops for one in seen[1:]) < 200


# -- who has it --------------------------------------------------------------------------------------------------------


def test_a_control_groups_connections_have_what_is_chosen_both_ends(load: Load, group: str) -> None:
    programs = load("off")
    assert "mltcp" not in programs.sockops
    assert in_group(group, BOTH_ENDS) == [HOST_DEFAULT, HOST_DEFAULT]
    for name in ("reno", "cubic"):
        link = programs.attach(group, name)
        assert in_group(group, BOTH_ENDS) == [name, name]
        os.close(link)
    assert in_group(group, BOTH_ENDS) == [HOST_DEFAULT, HOST_DEFAULT]


def test_two_runners_of_a_host_have_their_own(load: Load, group: str) -> None:
    used = set()
    for programs in (load(), load()):
        link = programs.attach(group, "mltcp")
        used |= set(in_group(group, BOTH_ENDS))
        os.close(link)
    assert len(used) == 2
    assert all(name.startswith("mltcp") for name in used)


@pytest.mark.parametrize(("mltcp", "outcome"), [("restricted", "refused"), ("everybody", "chosen")])
def test_others_may_choose_it_only_where_everybody_may(load: Load, group: str, mltcp: str, outcome: str) -> None:
    programs = load(mltcp)
    link = programs.attach(group, "mltcp")
    registered = in_group(group, BOTH_ENDS)[0]
    os.close(link)
    assert in_group(group, CHOOSE, registered) == [outcome]


# -- what is left ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("killed", ["runner", "loader"])
def test_nothing_is_left_after_kill_9(built: Path, group: str, killed: str) -> None:
    """Neither the congestion control, nor the program on the control group; new connections have the host's default."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(built), group],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=KERNEL.parent,
    ) as runner:
        assert runner.stdout is not None
        assert runner.stdout.readline() == "loaded\n"
        loader = int(Path(f"/proc/{runner.pid}/task/{runner.pid}/children").read_text())
        held = links_of(loader)
        assert len(held) == 2, "mltcp and mltcp_cubic"
        assert in_group(group, BOTH_ENDS)[0].startswith("mltcp")
        os.kill(runner.pid if killed == "runner" else loader, signal.SIGKILL)
        wait_until(lambda: not held & links_of_host(), what="the end of its links")
        assert in_group(group, BOTH_ENDS) == [HOST_DEFAULT, HOST_DEFAULT]
        runner.kill()


# -- a runner's workers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("wanted", "found"), [("auto", "mltcp"), ("cubic", "cubic")])
async def test_workers_have_what_their_job_asks_for(
    tmp_path: Path, layout: CgroupLayout, wanted: str, found: str
) -> None:
    lab = RunnerLab(tmp_path, control_groups="auto", managed_root=ROOT, cores=2.0, memory_bytes=4 << 30)
    await lab.listen()
    async with lab.runner() as runner:
        assert runner.congestion is not None
        assert {HOST_DEFAULT, "mltcp", "mltcp_cubic", "cubic"} <= set(runner.congestion.names)
        await lab.ask(run_order(job_spec(lab.work, python(BOTH_ENDS), congestion_control=wanted)))
        await lab.until_change(WorkerChange.ENDED)
    used = lab.files().log.read_text().split()[:2]
    assert used == [found, found] or (found == "mltcp" and used[0] == used[1] and used[0].startswith("mltcp_"))
    assert not groups_of_workers(layout)


PERIODIC = """
import os, socket, time
server = socket.create_server(("127.0.0.1", 0))
active = socket.create_connection(server.getsockname())
passive, _ = server.accept()
if os.fork() == 0:
    while passive.recv(1 << 16):
        pass
    os._exit(0)
while True:
    time.sleep(0.1)
    active.sendall(bytes(1 << 20))
"""


@pytest.mark.machine
async def test_a_workers_iterations_come_by_its_name(tmp_path: Path) -> None:
    """1 MiB each."""
    lab = RunnerLab(tmp_path, control_groups="auto", managed_root=ROOT, cores=2.0, memory_bytes=4 << 30)
    await lab.listen()
    async with lab.runner() as runner:
        assert runner.congestion is not None
        await lab.ask(run_order(job_spec(lab.work, python(PERIODIC))))
        seen = []

        def enough() -> bool:
            assert runner.congestion is not None
            seen.extend(runner.congestion.iterations())
            return len(seen) >= 5 and median(one.sent_bytes for one in seen[-5:]) == pytest.approx(1 << 20, rel=0.1)

        await until(enough, what="iterations of 1 MiB")
        lab.end_workers()
        await lab.until_change(WorkerChange.LOST)
    assert {(one.job, one.attempt, one.rank, one.congestion_control) for one in seen} == {("try", 1, 0, "mltcp")}
