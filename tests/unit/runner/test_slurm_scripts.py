"""Command lines and scripts: what a job says is an argument, never a word of ours; the scripts run by a real shell."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.scheduling import WorkOrder
from services.runner.slurm.core import scripts
from services.runner.slurm.core.digests import digest_run, find_flaw
from services.runner.slurm.core.layout import shape
from services.runner.slurm.core.scripts import Cluster, JobPaths
from services.runner.slurm.files import SharedFiles
from tests.support.cgroup_lab import wait_until
from tests.support.slurm_jobs import HELD, LINEAGE, slurm_order

PATHS = JobPaths("/shared/resnet", "/shared/resnet/1")
WITHIN_S = 60.0


def test_the_environment_is_on_no_command_line_and_in_no_script() -> None:
    order = slurm_order(environment={"TOKEN": "hidden-value"})
    texts = [
        *scripts.submit(order, LINEAGE, Cluster(), PATHS, 7),
        scripts.launch_script(order, Cluster(), PATHS),
        scripts.worker_script(order, PATHS),
        *(word for command in scripts.renew(HELD, order) for word in command),
    ]
    assert not any("hidden-value" in text for text in texts)
    assert "--export-file=7" in texts


def test_submission() -> None:
    even = scripts.submit(slurm_order(("n2", "n1"), memory_bytes=(3 << 20) + 1, slots=2), LINEAGE, Cluster(), PATHS, 7)
    # 3 MiB and a byte over 2 processors, rounded up: 2 MiB each.
    assert {"--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--nodelist=n2,n1", "--cpus-per-task=2"} <= set(even)
    assert {"--mem-per-cpu=2M", f"--comment=turnbuckle:resnet:1:{LINEAGE}", "--requeue"} <= set(even)
    cluster = Cluster(memory_mb_per_cpu=500, partition="train", account="lab", qos="high")
    uneven = scripts.submit(slurm_order(("n2", "n1", "n2")), LINEAGE, cluster, PATHS, 7)
    assert {"--distribution=arbitrary", "--ntasks=3", "--mem-per-cpu=500M"} <= set(uneven)
    assert {"--partition=train", "--account=lab", "--qos=high"} <= set(uneven)
    assert not any(word.startswith(("--nodelist", "--ntasks-per-node")) for word in uneven)
    gpus = scripts.submit(slurm_order(slots=2, cpu_cores=1.5), LINEAGE, Cluster(gpus_are_slots=True), PATHS, 7)
    assert {"--gpus-per-task=2", "--cpus-per-task=2"} <= set(gpus)


def test_an_allocation_has_the_order_of_slurms_nodes() -> None:
    cluster = Cluster(nodes=("n2", "n10"))
    assert scripts.allocation(run := slurm_order(("n10", "n2", "n10")), cluster) == "n2\nn10\nn10\n"
    assert scripts.hostfile(run) == "n10\nn2\nn10\n"


@given(st.lists(st.sampled_from(["n1", "n2", "n3"]), min_size=1, max_size=8))
def test_a_shape_has_all_workers(nodes: list[str]) -> None:
    assert shape(("n2", "n1", "n2")) == (1, 2)
    assert sum(shape(nodes)) == len(nodes)


@pytest.mark.parametrize(
    ("order", "flaw"),
    [
        (slurm_order(), ""),
        (slurm_order(environment={"A B": "x"}), "'A B' is no name of an environment variable"),
        (slurm_order(environment={"A": "x\0y"}), "a value of the job holds a NUL character"),
        (slurm_order(command=("a\0b",)), "a value of the job holds a NUL character"),
        (slurm_order(directory="data"), "the directory 'data' is not absolute"),
        (slurm_order(workers=3), "2 nodes are named for 3 workers"),
        (slurm_order().model_copy(update={"spec": None}), "an order to run without a spec or nodes"),
    ],
)
def test_flaws(order: WorkOrder, flaw: str) -> None:
    assert find_flaw(order) == flaw


def test_the_same_order_by_another_leader_is_the_same() -> None:
    order = slurm_order()
    assert digest_run(order) == digest_run(order.model_copy(update={"sequence": 9, "leader": "b", "ranks": (1,)}))
    for other in (slurm_order(attempt=2), slurm_order(("n2", "n1")), slurm_order(environment={"A": "1"})):
        assert digest_run(order) != digest_run(other)


# -- by a real shell ---------------------------------------------------------------------------------------------------


class Worker:
    """The worker's script as srun would start it."""

    def __init__(
        self, folder: Path, command: tuple[str, ...], rank: int = 0, path: str | None = None, **fields: Any
    ) -> None:
        self.directory = folder / "attempt"
        self.directory.mkdir(exist_ok=True)
        node = socket.gethostname()
        order = slurm_order((node, node), command=command, **({"directory": str(folder)} | fields))
        script = self.directory / "worker"
        script.write_text(scripts.worker_script(order, JobPaths(str(folder), str(self.directory))))
        self._rank = rank
        self.process = subprocess.Popen(
            ["sh", str(script)],
            env={"PATH": path or os.environ["PATH"], "SLURM_PROCID": str(rank), "SLURMD_NODENAME": node},
            start_new_session=True,
        )

    def note(self, kind: str) -> list[float] | None:
        """What was noted."""
        path = self.directory / f"{self._rank}.{kind}"
        return [float(word) for word in path.read_text().split()] if path.exists() else None

    def until(self, kind: str) -> None:
        """Wait until something is noted."""
        wait_until(lambda: self.note(kind) is not None, within_s=WITHIN_S)

    def end(self) -> int:
        """Its exit code, once it has ended."""
        return self.process.wait(WITHIN_S)

    @property
    def log(self) -> str:
        """What it wrote."""
        return (self.directory / f"{self._rank}.log").read_text()


@given(
    command=st.lists(
        st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",))), min_size=1, max_size=4
    )
)
def test_arguments_reach_the_command_as_they_are(command: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = tmp_path_factory.mktemp("worker")
    printer = (
        "python3",
        "-c",
        "import sys; sys.stdout.buffer.write(b'\\0'.join(map(__import__('os').fsencode, sys.argv[1:])))",
    )
    worker = Worker(directory, (*printer, *command))
    assert worker.end() == 0
    assert (worker.directory / "0.log").read_bytes() == b"\0".join(word.encode() for word in command)


def test_what_a_worker_is_told_and_notes(tmp_path: Path) -> None:
    worker = Worker(
        tmp_path, ("sh", "-c", 'echo "$RANK $LOCAL_RANK $LOCAL_WORLD_SIZE $WORLD_SIZE $MASTER_PORT"; exit 3'), 1
    )
    assert worker.end() == 3
    assert worker.log == "1 1 2 2 29501\n"
    started, ended = worker.note("started"), worker.note("exit")
    assert started is not None
    assert ended is not None
    assert ended[1] == 3
    assert ended[0] >= started[0]
    assert worker.note("stopping") is None


def test_workers_find_the_plan_of_their_attempt(tmp_path: Path) -> None:
    order = slurm_order(directory=str(tmp_path)).model_copy(update={"plan": '{"samples": [12, 4]}'})
    files = SharedFiles(tmp_path / "shared")
    files.make_root()
    files.prepare(order, Cluster(), ())
    paths = files.paths(order.job, order.attempt)
    assert Path(paths.plan).read_text() == order.plan
    assert f"export TURNBUCKLE_PLAN={paths.plan}\n" in scripts.worker_script(order, paths)
    assert "TURNBUCKLE_PLAN" not in scripts.worker_script(slurm_order(), paths)

    again = order.model_copy(update={"attempt": 2, "plan": ""})
    files.prepare(again, Cluster(), ())
    assert not Path(files.paths(again.job, 2).plan).exists()


def test_a_signal_is_noted_and_the_command_may_take_its_time(tmp_path: Path) -> None:
    script = "trap 'while [ ! -e go ]; do sleep 0.05; done; exit 143' TERM; : >armed; while :; do sleep 0.05; done"
    worker = Worker(tmp_path, ("sh", "-c", script))
    wait_until((tmp_path / "armed").exists, within_s=WITHIN_S)
    os.killpg(worker.process.pid, signal.SIGTERM)
    worker.until("stopping")
    first = worker.note("stopping")
    assert first is not None
    assert worker.note("exit") is None
    wait_until(lambda: float(Path("/proc/uptime").read_text().split()[0]) > first[0], within_s=WITHIN_S)
    os.killpg(worker.process.pid, signal.SIGTERM)  # Slurm's own, once the grace is over
    (tmp_path / "go").touch()
    assert worker.end() == 143
    assert worker.note("stopping") == first


def test_a_signal_to_the_program_that_notes_loses_no_note(tmp_path: Path) -> None:
    """Slurm signals all processes of a step."""
    commands = tmp_path / "bin"
    commands.mkdir()
    (commands / "mv").write_text(f'#!/bin/sh\nkill -TERM $$\nexec {shutil.which("mv")} "$@"\n')
    (commands / "mv").chmod(0o755)
    worker = Worker(tmp_path, ("sh", "-c", "exit 3"), path=f"{commands}:{os.environ['PATH']}")
    assert worker.end() == 3
    ended = worker.note("exit")
    assert ended is not None
    assert ended[1] == 3


def test_the_first_to_have_saved_does_not_have_srun_kill_the_others(tmp_path: Path) -> None:
    """Its bad exit would: --kill-on-bad-exit."""
    (tmp_path / "attempt").mkdir()
    (tmp_path / "attempt" / "stop").touch()
    worker = Worker(tmp_path, ("sh", "-c", "exit 143"))
    assert worker.end() == 0
    ended = worker.note("exit")
    assert ended is not None
    assert ended[1] == 143


def test_a_command_that_cannot_start(tmp_path: Path) -> None:
    worker = Worker(tmp_path, ("true",), directory="/no/such place")
    assert worker.end() == scripts.NOT_STARTED
    assert "there is no such directory here" in worker.log
    assert worker.note("started") is None


def test_an_attempt_begins_once(tmp_path: Path) -> None:
    """Instead of srun and scontrol there are scripts that write down how they are called."""
    commands = tmp_path / "bin"
    commands.mkdir()
    for name in ("srun", "scontrol"):
        (commands / name).write_text(f'#!/bin/sh\necho {name} "$@" >>{tmp_path}/calls\nexit 4\n')
        (commands / name).chmod(0o755)
    paths = JobPaths(str(tmp_path), str(tmp_path / "1"))
    (tmp_path / "1").mkdir()
    script = tmp_path / "launch"
    script.write_text(scripts.launch_script(slurm_order(), Cluster(), paths, ("SLURM_CONF='/a b'",)))
    environment = {"PATH": f"{commands}:{os.environ['PATH']}", "SLURM_JOB_ID": "9"}

    def launch() -> int:
        return subprocess.run(["sh", str(script)], env=environment, check=False, stderr=subprocess.DEVNULL).returncode

    assert launch() == 4
    assert launch() == scripts.BEGUN_BEFORE
    assert (tmp_path / "1" / "again").exists()
    (line,) = (tmp_path / "calls").read_text().splitlines()
    assert line.startswith("srun --distribution=arbitrary --nodes=2 --ntasks=2 ")
    (tmp_path / "1" / "begun").rmdir()
    (tmp_path / "1" / "stop").touch()
    assert launch() == 0
    assert (tmp_path / "calls").read_text().splitlines()[1:] == ["scontrol requeuehold 9"]
