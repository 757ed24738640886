"""What sandboxes read from the kernel's files, in both versions; their addresses and records. No root."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from services._host.cgroupfs import CgroupLayout, ControllerMount
from services._host.owner import Owner
from services._jobs.sandbox.network import Traffic, address_of, check_rate, read_traffic
from services._jobs.sandbox.records import RunRecord, forget, sweep
from services._jobs.sandbox.usage import Usage, field_of

V1 = {
    "cpuacct.usage": "2500000000\n",
    "cpu.stat": "nr_periods 9\nnr_throttled 7\nthrottled_time 1500000000\n",
    "memory.usage_in_bytes": "9000000\n",
    "memory.stat": "cache 5\ninactive_file 1\ntotal_inactive_file 4000000\n",
    "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
}
V2 = {
    "cpu.stat": "usage_usec 2500000\nuser_usec 1\nsystem_usec 2\nnr_throttled 7\nthrottled_usec 1500000\n",
    "memory.current": "9000000\n",
    "memory.stat": "anon 7\ninactive_file 4000000\n",
    "memory.events": "low 0\nhigh 0\nmax 9\noom 4\noom_kill 3\n",
}
NET_DEV = """Inter-|   Receive                            |  Transmit
 face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls carrier compressed
    lo:     100    1    0    0    0     0          0         0      100    1    0    0    0     0       0          0
  eth0: 1234567  900    0    0    0     0          0         0  7654321  800    0    0    0     0       0          0
"""


def layout(version: int, top: Path) -> CgroupLayout:
    names = ("cpu", "cpuacct", "memory") if version == 1 else ("cpu", "memory")
    return CgroupLayout(
        version, hybrid=False, mounts=dict.fromkeys(names, ControllerMount(str(top), "/", read_only=False))
    )


@pytest.mark.parametrize(("version", "files"), [(1, V1), (2, V2)])
def test_usage(tmp_path: Path, version: int, files: dict[str, str]) -> None:
    group = tmp_path / "cells" / "one"
    group.mkdir(parents=True)
    for name, text in files.items():
        (group / name).write_text(text)
    usage = Usage.of(layout(version, tmp_path), "cells/one")
    # 9 MB held, of them 4 MB that the kernel would give back first
    assert usage.read() == (2.5, 5_000_000, 3, 1.5)
    memory = "memory.usage_in_bytes" if version == 1 else "memory.current"
    (group / memory).write_text("1\n")
    assert usage.read() == (2.5, 0, 3, 1.5)
    usage.close()


def test_a_group_that_has_vanished_leaves_no_open_file(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "cpu.stat").write_text("usage_usec 1\n")
    opened = sum(1 for _ in Path("/proc/self/fd").iterdir())
    with pytest.raises(FileNotFoundError):
        Usage.of(layout(2, tmp_path), "one")
    assert sum(1 for _ in Path("/proc/self/fd").iterdir()) == opened


def test_a_line_that_an_older_kernel_has_not() -> None:
    assert field_of("oom_kill_disable 0\nunder_oom 0\n", "oom_kill") == 0


def test_traffic_out_of_the_kernels_table(tmp_path: Path) -> None:
    (tmp_path / "dev").write_text(NET_DEV)
    (tmp_path / "none").write_text("\n".join(NET_DEV.splitlines()[:3]))
    for name, expected in (("dev", Traffic(1_234_567, 7_654_321)), ("none", Traffic(0, 0))):
        descriptor = os.open(tmp_path / name, os.O_RDONLY)
        assert read_traffic(descriptor) == expected
        assert read_traffic(descriptor) == expected
        os.close(descriptor)


def test_addresses_differ_and_are_none_of_a_networks_own() -> None:
    addresses = [address_of(position) for position in range(62_500)]
    assert addresses[:2] == ["10.77.0.1", "10.77.0.2"]
    assert addresses[-1] == "10.77.249.250"
    assert len(set(addresses)) == 62_500


@pytest.mark.parametrize("rate", [0, -5, 7_999, 34_000_000_001])
def test_rates_that_tbf_cannot_keep(rate: int) -> None:
    with pytest.raises(ValueError, match="not within"):
        check_rate(rate)


def test_an_owner_is_known_from_another_of_the_same_number() -> None:
    owner = Owner.this_process()
    assert not owner.is_gone()
    assert replace(owner, started_ticks=owner.started_ticks + 1).is_gone()
    assert replace(owner, pid=1 << 22).is_gone()
    assert replace(owner, boot="before").is_gone()
    assert not replace(owner, pid=1 << 22, pid_namespace="pid:[1]").is_gone()


def test_records_are_written_read_and_forgotten(tmp_path: Path) -> None:
    record = RunRecord("abc", "cells", Owner.this_process())
    record.write(tmp_path)
    assert RunRecord.read(tmp_path / "abc.json") == record
    assert record.directory == "cells/abc"
    assert sweep(layout(2, tmp_path), tmp_path) == []
    forget(record, tmp_path)
    forget(record, tmp_path)
    assert RunRecord.read(tmp_path / "abc.json") is None


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"token": "a", "root": "b", "owner": {"pid": 1}}'])
def test_a_record_that_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)
    assert RunRecord.read(tmp_path / "x.json") is None
    assert sweep(layout(2, tmp_path), tmp_path) == []
