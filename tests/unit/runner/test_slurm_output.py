"""What a real Slurm printed, and what it never does."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services._runtime.settings_error import SettingsError
from services.runner.slurm.core.output import SlurmOutputError, Where, comment_of, parse_jobs, parse_nodes, where_is
from services.runner.slurm.settings import SlurmSettings

RECORDED = Path(__file__).parent / "slurm_recorded"


def test_nodes() -> None:
    nodes = parse_nodes((RECORDED / "nodes.txt").read_text())
    assert [(node.name, node.responds, node.takes_jobs) for node in nodes] == [
        ("n1", True, True),
        ("n2", True, False),
        ("n3", False, False),
        ("n4", True, True),
    ]
    assert {(node.address, node.cpus, node.gpus, node.memory_bytes) for node in nodes} == {
        ("127.0.0.1", 2, 2, 1000 << 20)
    }
    assert nodes[0].partitions == {"all"}


@pytest.mark.parametrize(
    ("state", "takes_jobs"),
    [
        ("IDLE", True),
        ("MIXED", True),
        ("ALLOCATED", True),
        ("MIXED+PLANNED", True),
        ("IDLE*", False),
        ("IDLE+DRAIN", False),
        ("ALLOCATED+DRAIN", False),
        ("DOWN+NOT_RESPONDING", False),
        ("IDLE+CLOUD+POWERED_DOWN", False),
        ("IDLE+MAINTENANCE+RESERVED", False),
        ("UNKNOWN", False),
    ],
)
def test_states_of_nodes(state: str, *, takes_jobs: bool) -> None:
    (node,) = parse_nodes(f"NodeName=n1 CPUTot=4 RealMemory=1 State={state} Reason=r State=IDLE")
    assert node.takes_jobs is takes_jobs


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [("(null)", 0), ("gpu:4", 4), ("gpu:a100:4(S:0-1)", 4), ("gpu:a100:2,gpu:v100:1,nic:3", 3), ("mygpu:9", 0)],
)
def test_gpus(gres: str, gpus: int) -> None:
    (node,) = parse_nodes(f"NodeName=n1 CPUTot=4 Gres={gres} RealMemory=1 State=IDLE")
    assert node.gpus == gpus


@pytest.mark.parametrize(
    ("gres", "memory_bytes", "device"),
    [
        ("gpu:a100:4(S:0-1)", {"a100": 80, "l4": 24}, ("a100", 80)),
        ("gpu:v100:1", {"a100": 80}, ("v100", 0)),
        ("gpu:a100:2,gpu:v100:1", {"a100": 80}, ("", 0)),
        ("gpu:4", {"a100": 80}, ("", 0)),
        ("gpu:a100:4", None, ("cpu", 2 << 20)),
    ],
)
def test_what_one_slot_has(gres: str, memory_bytes: dict[str, int] | None, device: tuple[str, int]) -> None:
    (node,) = parse_nodes(f"NodeName=n1 CPUTot=4 Gres={gres} RealMemory=8 State=IDLE")
    assert node.device(memory_bytes) == device


def test_jobs() -> None:
    jobs = {job.job: job for job in parse_jobs((RECORDED / "jobs.txt").read_text())}
    assert {name: job.where for name, job in jobs.items()} == {
        "cancelled": Where.FINISHED,
        "fails": Where.FINISHED,
        "requeued": Where.ACTIVE,
        "drained": Where.WAITING,
        "held": Where.HELD,
        "runs": Where.ACTIVE,
    }
    assert (jobs["held"].job_id, jobs["held"].attempt, jobs["held"].lineage) == (4, 2, "0011aabb")
    assert jobs["drained"].reason == "ReqNodeNotAvail, UnavailableNodes:n2"
    assert where_is(None) is Where.GONE


def test_nothing() -> None:
    assert parse_nodes("No nodes in the system\n") == ()
    assert parse_jobs("") == ()


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (parse_nodes, "NodeName=n1 CPUTot=many RealMemory=1 State=IDLE"),
        (parse_nodes, "slurm_load_node error: Unable to contact slurm controller"),
        (parse_jobs, "slurm_load_jobs error: Unable to contact slurm controller"),
        (parse_jobs, "x|RUNNING|1|None|turnbuckle:a:1:0011aabb"),
    ],
)
def test_what_slurm_never_prints(parse: object, text: str) -> None:
    assert callable(parse)
    with pytest.raises(SlurmOutputError):
        parse(text)


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    for parse in (parse_jobs, parse_nodes):
        try:
            parse(text)
        except SlurmOutputError:
            continue


@given(st.from_regex(r"\A[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\Z"), st.integers(1, 1_000_000))
def test_a_job_is_found_again_by_its_comment(job: str, attempt: int) -> None:
    (found,) = parse_jobs(f"9|RUNNING|17|None|{comment_of(job, attempt, '0011aabb')}")
    assert (found.job, found.attempt, found.lineage) == (job, attempt, "0011aabb")


def test_memory_of_gpus_is_given_by_type() -> None:
    settings = SlurmSettings.load({}, directory="/shared", slots="gpus", gpu_memory=("a100=80GiB", "l4=24g"))
    assert settings.gpu_memory_bytes == {"a100": 80 << 30, "l4": 24 << 30}
    assert SlurmSettings.load({}, directory="/shared").gpu_memory_bytes is None
    for wrong in ("a100", "a100=many", "=80GiB"):
        with pytest.raises(SettingsError, match="TURNBUCKLE_SLURM__GPU_MEMORY"):
            SlurmSettings.load({"TURNBUCKLE_SLURM__GPU_MEMORY": wrong}, directory="/shared")
