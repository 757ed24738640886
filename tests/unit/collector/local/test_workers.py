"""What each worker is told."""

from __future__ import annotations

from services.collector.profiler.worker_environment import (
    Rendezvous,
    threads_per_worker,
    worker_environment,
    worker_names,
)

MEETING = Rendezvous(workers=3, master_address="10.77.0.1", master_port=29_500, device="eth0", threads=2)


def test_names_by_rank() -> None:
    assert worker_names(3) == ("master", "worker-1", "worker-2")
    assert worker_names(1) == ("master",)


def test_the_environment_is_torchruns() -> None:
    environment = worker_environment({"HOME": "/root", "RANK": "9"}, 2, MEETING)
    assert environment["HOME"] == "/root"
    assert (environment["RANK"], environment["WORLD_SIZE"]) == ("2", "3")
    assert (environment["LOCAL_RANK"], environment["LOCAL_WORLD_SIZE"]) == ("0", "1")
    assert (environment["MASTER_ADDR"], environment["MASTER_PORT"]) == ("10.77.0.1", "29500")
    assert environment["GLOO_SOCKET_IFNAME"] == environment["TP_SOCKET_IFNAME"] == "eth0"


def test_threads_are_the_users_choice_first() -> None:
    assert worker_environment({}, 0, MEETING)["OMP_NUM_THREADS"] == "2"
    assert worker_environment({"OMP_NUM_THREADS": "7"}, 0, MEETING)["OMP_NUM_THREADS"] == "7"


def test_threads_follow_the_cores() -> None:
    assert threads_per_worker(3, 16, None) == 5
    assert threads_per_worker(3, 2, None) == 1
    assert threads_per_worker(3, 16, 2.5) == 2
    assert threads_per_worker(3, 16, 0.1) == 1
