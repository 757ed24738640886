"""The doctor's look at the memory guard, on a made-up state directory, /proc and control groups."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from services._host.cgroupfs import CgroupLayout, ControllerMount
from services._runtime.command.finding import Level
from services.agent import doctor as guard
from services.agent.doctor import GuardedGroup, Holder, WatchdogSeen
from services.agent.host_lock import HostLock, exec_lock, prepare_state
from services.agent.settings import AgentSettings
from services.agent.state_files import FoundValues, inode_of
from services.agent.watchdog.process import WatchdogOptions, WatchdogProcess
from tests.support.cgroup_lab import wait_until

AGENT = Holder("exec-turnbuckle.lock", 100, "n1", "2026-11-21T05:00:00+00:00")


def layout(directory: Path, version: int = 1) -> CgroupLayout:
    mount = ControllerMount(str(directory), "/", read_only=False)
    return CgroupLayout(version, hybrid=False, mounts={"cpu": mount, "memory": mount})


def group(parent: Path, name: str, *, disabled: int = 1, waiting: int = 0) -> Path:
    """A control group of version 1."""
    directory = parent / name
    directory.mkdir(parents=True)
    (directory / "memory.oom_control").write_text(f"oom_kill_disable {disabled}\nunder_oom {waiting}\noom_kill 0\n")
    return directory


def write_down(state: Path, memory: Path, key: str = "web-0123456789ab") -> None:
    """As the agent does before it changes a container's limits."""
    inode = inode_of(str(memory))
    assert inode is not None
    prepare_state(state, "turnbuckle").save(FoundValues(key, "shop", key[-12:], 1, {"memory": str(memory)}, inode))


def test_the_state_directory_is_where_the_agent_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TURNBUCKLE_AGENT__STATE_DIRECTORY", raising=False)

    assert guard.state_directory() == AgentSettings.model_fields["state_directory"].default

    monkeypatch.setenv("TURNBUCKLE_AGENT__STATE_DIRECTORY", "/elsewhere")

    assert guard.state_directory() == Path("/elsewhere")


def test_which_guard_will_be_used(tmp_path: Path) -> None:
    assert guard.check_memory_guard(lambda: layout(tmp_path)).level is Level.MISSING

    for file in ("memory.oom_control", "cgroup.event_control"):
        (tmp_path / file).touch()

    assert "thresholds and disabled OOM killer" in guard.check_memory_guard(lambda: layout(tmp_path)).found
    assert guard.check_memory_guard(lambda: layout(tmp_path, 2)).level is Level.NOTE

    (tmp_path / "system.slice").mkdir()
    (tmp_path / "system.slice" / "memory.high").touch()

    assert guard.check_memory_guard(lambda: layout(tmp_path, 2)).level is Level.OK


def pod(mount: Path, container: str, high: str, limit: str = "max") -> Path:
    """The control group of a pod's container, version 2."""
    directory = mount / "kubepods/burstable/pod5f1e2d3c-1111-2222-3333-444455556666" / (container * 64)
    directory.mkdir(parents=True)
    (directory / "memory.high").write_text(f"{high}\n")
    (directory / "memory.max").write_text(f"{limit}\n")
    return directory


def test_memory_qos_of_the_kubelet_is_told_by_the_containers_that_have_it(tmp_path: Path) -> None:
    mount, state = tmp_path / "cgroup", tmp_path / "state"
    assert guard.check_memory_qos(layout(mount, 2), state) is None

    pod(mount, "a", "max")
    changed = pod(mount, "b", f"{56 << 20}", f"{64 << 20}")
    inode = inode_of(str(changed))
    assert inode is not None
    record = FoundValues("web-b", "shop", "b", 2, {"memory": str(changed)}, inode, values={"memory.high": "max"})
    prepare_state(state, "turnbuckle").save(record)
    found = guard.check_memory_qos(layout(mount, 2), state)
    assert found is not None, "the guard's own is not external, by its record and by its distance from the limit"
    assert (found.level, found.found) == (Level.OK, "no memory.high of the kubelet on 2 containers")

    record.values["memory.high"] = f"{60 << 20}"
    prepare_state(state, "turnbuckle").save(record)
    qos = pod(mount, "c", f"{900 << 20}")
    found = guard.check_memory_qos(layout(mount, 2), state)
    assert found is not None
    assert found.level is Level.NOTE
    assert f"on 2 of 3 containers: {changed}, {qos};" in found.found
    assert "TURNBUCKLE_AGENT__MEMORY_QOS=refuse" in found.found
    assert "MemoryQoS off" in found.mend

    (qos / "memory.high").unlink()  # it ended meanwhile
    found = guard.check_memory_qos(layout(mount, 2), state)
    assert found is not None
    assert "on 1 of 3 containers" in found.found


def test_the_state_directory_can_be_made_or_not(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    assert guard.check_state_directory(tmp_path).found == f"{tmp_path} can be written"
    assert guard.check_state_directory(tmp_path / "a" / "b").found.endswith("and will be made")
    assert guard.check_state_directory(tmp_path / "file" / "b").level is Level.MISSING


def test_who_holds_the_agents_lock_is_told(tmp_path: Path) -> None:
    assert guard.lock_holders(tmp_path) == {}
    assert guard.check_lock_holders({}).level is Level.OK

    lock = HostLock(exec_lock(tmp_path, "turnbuckle"), node="n1", what="x", remedy="y")
    (tmp_path / "docker.lock").touch()
    holders = guard.lock_holders(tmp_path)
    found = guard.check_lock_holders(holders)

    assert {name: (holder.pid, holder.node) for name, holder in holders.items()} == {
        "exec-turnbuckle.lock": (os.getpid(), "n1")
    }
    assert f"pid {os.getpid()}, node n1" in found.found
    assert "--simulate" in found.mend

    lock.release()

    assert guard.lock_holders(tmp_path) == {}


def test_a_lock_file_that_says_nothing_is_no_trouble(tmp_path: Path) -> None:
    with (tmp_path / "docker.lock").open("wb") as file:
        file.write(b"\xff{")
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)

        assert guard.lock_holders(tmp_path)["docker.lock"].node == "?"


def process(proc: Path, pid: int, parent: int, command: str) -> None:
    (proc / str(pid)).mkdir(parents=True)
    (proc / str(pid) / "cmdline").write_bytes(command.replace(" ", "\0").encode())
    (proc / str(pid) / "stat").write_text(f"{pid} (a ) b) S {parent} 0 0")


def test_watchdogs_without_an_agent_are_found(tmp_path: Path) -> None:
    arguments = "/run/turnbuckle/turnbuckle /run/turnbuckle/exec-turnbuckle.lock 100 2.0 0.5"
    process(tmp_path, 200, 100, f"python -S -P -m services.agent.watchdog.supervision {arguments}")
    process(tmp_path, 201, 100, "python -m services.agent")

    assert guard.check_watchdogs(guard.running_watchdogs(str(tmp_path))).level is Level.OK

    process(tmp_path, 202, 1, f"python -S -P -m services.agent.memory.watchdog {arguments}")  # an earlier version's
    found = guard.check_watchdogs(guard.running_watchdogs(str(tmp_path)))

    assert found.level is Level.NOTE
    assert found.found.startswith("1 watchdog without an agent (pid 202)")


def test_the_agents_own_way_to_start_a_watchdog_is_recognised(tmp_path: Path) -> None:
    state = prepare_state(tmp_path, "turnbuckle")
    watchdog = WatchdogProcess(state, WatchdogOptions(exec_lock(tmp_path, "turnbuckle"), 2.0, 0.5))
    watchdog.start()
    try:

        def seen_of_mine() -> list[WatchdogSeen]:
            return [seen for seen in guard.running_watchdogs() if seen.pid == watchdog.pid]

        wait_until(seen_of_mine, what="a process with the watchdog's command line")  # between fork and exec it has ours
        mine = seen_of_mine()

        assert [(seen.root_directory, seen.orphaned) for seen in mine] == [(str(state.path), False)]
    finally:
        watchdog.stop()


def test_groups_of_a_live_agent_are_no_trouble_and_those_of_a_dead_one_are(tmp_path: Path) -> None:
    mount, state = tmp_path / "memory", tmp_path / "run"
    memory = group(mount, "turnbuckle/shop/web-0123456789ab")
    write_down(state, memory)
    groups = guard.guarded_groups(state, layout(mount))

    assert groups == [GuardedGroup(str(memory), "turnbuckle", docker=False, paused=False)]
    assert guard.check_left_behind(groups, {AGENT.lock: AGENT}, []).level is Level.OK
    assert (
        guard.check_left_behind(groups, {}, [WatchdogSeen(202, str(state / "turnbuckle"), orphaned=True)]).level
        is Level.OK
    )

    found = guard.check_left_behind(groups, {}, [])

    assert (found.level, str(memory) in found.found) == (Level.NOTE, True)


def test_a_container_that_hangs_and_that_nobody_looks_after_is_a_failure(tmp_path: Path) -> None:
    mount, state = tmp_path / "memory", tmp_path / "run"
    memory = group(mount, "docker/0123456789abcdef", waiting=1)
    write_down(state, memory)
    foreign = group(mount, "other/left", waiting=1)
    group(mount, "other/asked-for")  # docker run --oom-kill-disable: not ours, and it does not hang
    groups = guard.guarded_groups(state, layout(mount))

    assert [(item.directory, item.docker, item.root) for item in groups] == [
        (str(memory), True, "turnbuckle"),
        (str(foreign), False, None),
    ]

    found = guard.check_left_behind(groups, {}, [])

    assert found.level is Level.FAILED
    assert str(memory) in found.found
    assert found.mend.endswith(f"echo 0 > {memory}/memory.oom_control")

    docker = Holder("docker.lock", 100, "n1", "")
    found = guard.check_left_behind(groups, {docker.lock: docker}, [])

    assert str(foreign) in found.found
    assert str(memory) not in found.found


def test_a_group_of_the_same_name_made_later_is_another_one(tmp_path: Path) -> None:
    mount, state = tmp_path / "memory", tmp_path / "run"
    memory = group(mount, "turnbuckle/shop/web-0123456789ab")
    inode = inode_of(str(memory))
    assert inode is not None
    found = FoundValues("web-0123456789ab", "shop", "0123456789ab", 1, {"memory": str(memory)}, inode + 1)
    prepare_state(state, "turnbuckle").save(found)
    (state / "turnbuckle" / "originals" / "torn.json").write_text('{"directories": ')

    assert guard.guarded_groups(state, layout(mount)) == []
