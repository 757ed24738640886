"""A worker's variables."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from services.runner.core.environment import INHERITED, WorkerPlace, worker_environment
from services.runner.slurm.core.layout import common_environment
from tests.support.runner_lab import job_spec, run_order


def place(rank: int, **changes: object) -> WorkerPlace:
    given_: dict[str, object] = {"gpus": (), "checkpoint_directory": "/srv/ckpt", "ready_file": "/state/ready"}
    return WorkerPlace(rank, **(given_ | changes))  # type: ignore[arg-type]


@given(nodes=st.lists(st.sampled_from(["n1", "n2", "n3"]), max_size=8).map(lambda rest: [*rest, "n1"]))
def test_ranks_are_numbered_as_by_torchrun(nodes: list[str]) -> None:
    """On each node local ranks go from 0, and nodes have the numbers in which ranks name them first."""
    spec = job_spec(Path("/work"), workers=len(nodes))
    asked = run_order(spec, nodes=tuple(nodes))
    seen = [worker_environment(asked, place(rank), {}) for rank in range(len(nodes))]

    assert [each["RANK"] for each in seen] == [str(rank) for rank in range(len(nodes))]
    assert {each["WORLD_SIZE"] for each in seen} == {str(len(nodes))}
    for node in set(nodes):
        here = [each for each, where in zip(seen, nodes, strict=True) if where == node]
        assert [each["LOCAL_RANK"] for each in here] == [str(number) for number in range(len(here))]
        assert {each["LOCAL_WORLD_SIZE"] for each in here} == {str(len(here))}
        assert {each["NODE_RANK"] for each in here} == {str(list(dict.fromkeys(nodes)).index(node))}
        assert all(each["NODE_RANK"] == each["GROUP_RANK"] for each in here)


def test_gpus_by_number() -> None:
    asked = run_order(job_spec(Path("/work")))

    assert worker_environment(asked, place(0, gpus=(1, 3)), {})["CUDA_VISIBLE_DEVICES"] == "1,3"
    assert "CUDA_VISIBLE_DEVICES" not in worker_environment(asked, place(0), {})


def test_the_device_of_the_workers_network_unless_the_job_names_another() -> None:
    chosen = worker_environment(run_order(job_spec(Path("/work"))), place(0, device="eth0"), {})
    own = run_order(job_spec(Path("/work"), environment={"GLOO_SOCKET_IFNAME": "ib0"}))

    assert chosen["GLOO_SOCKET_IFNAME"] == chosen["NCCL_SOCKET_IFNAME"] == chosen["TP_SOCKET_IFNAME"] == "eth0"
    assert worker_environment(own, place(0, device="eth0"), {})["GLOO_SOCKET_IFNAME"] == "ib0"
    assert "GLOO_SOCKET_IFNAME" not in worker_environment(
        own.model_copy(update={"spec": job_spec(Path("/work"))}), place(0), {}
    )


def test_what_the_job_sets_goes_before_what_is_inherited_and_after_what_is_decided() -> None:
    own = {"PATH": "/usr/bin", "LANG": "C.UTF-8", "NATS_URL": "secret", "TURNBUCKLE_NATS_TOKEN": "secret"}
    spec = job_spec(Path("/work"), environment={"LANG": "de_DE.UTF-8", "TURNBUCKLE_JOB": "another", "SEED": "1"})
    variables = worker_environment(run_order(spec), place(0, home="/home/a", user="a"), own)

    assert (variables["LANG"], variables["SEED"], variables["TURNBUCKLE_JOB"]) == ("de_DE.UTF-8", "1", "try")
    assert (variables["HOME"], variables["USER"], variables["PATH"]) == ("/home/a", "a", "/usr/bin")
    assert "secret" not in variables.values()
    assert not set(INHERITED) & {"NATS_URL", "TURNBUCKLE_NATS_TOKEN"}
    assert worker_environment(run_order(spec), place(0), {})["PATH"] == "/usr/local/bin:/usr/bin:/bin"


def test_a_planned_jobs_workers_know_their_batch_whether_there_is_a_plan_or_not() -> None:
    asked = run_order(job_spec(Path("/work"), model="tiny", batch=15))

    for variables in (worker_environment(asked, place(0), {}), common_environment(asked)):
        assert variables["TURNBUCKLE_BATCH"] == "15"
        assert "TURNBUCKLE_PLAN" not in variables
    planned = worker_environment(asked, place(0, plan_file="/state/plan.json"), {})
    assert (planned["TURNBUCKLE_BATCH"], planned["TURNBUCKLE_PLAN"]) == ("15", "/state/plan.json")
    without = run_order(job_spec(Path("/work")))
    assert "TURNBUCKLE_BATCH" not in worker_environment(without, place(0), {}) | common_environment(without)
