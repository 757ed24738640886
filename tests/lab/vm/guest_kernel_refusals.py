"""What is lost is told, and what cannot be loaded says why: run by tests/lab/test_kernel_telemetry.py."""

from __future__ import annotations

import json
import os
import shutil
import signal
import struct
import subprocess
import tempfile
import time
from pathlib import Path

from tests.lab.vm.guest_kernel import BUILD, PROGRAM, ROOT, VERSION, Group, Loader, burn, enable_controllers, figure

UNAVAILABLE = 69
NOBODY = 65534
UNITS = {"cgroups", "periods", "decisions", "victims", "throttles", "writers"}
TYPES = Path("/sys/kernel/btf/vmlinux")
CONSTANTS = struct.pack("=IIQ", VERSION, 1, 4096)
"""struct tb_constants, as the object files have it: version, CPUs, bytes of a page."""


def check(objects: Path, *, hierarchy: Path = ROOT, user: int = 0) -> dict[str, str]:
    """What `--check` says: the reason of each unit, empty if it is there."""
    command = [str(PROGRAM), "--objects", str(objects), "--hierarchy", str(hierarchy), "--check"]
    plain = subprocess.run(command, capture_output=True, text=True, user=user, check=False)
    ended = subprocess.run([*command, "--json"], capture_output=True, text=True, user=user, check=False)
    units = json.loads(ended.stdout)
    assert {unit["name"] for unit in units} == UNITS
    assert all(unit["ok"] == (not unit["reason"]) for unit in units)
    expected = UNAVAILABLE if any(unit["reason"] for unit in units) else 0
    assert (plain.returncode, ended.returncode) == (expected, expected)
    said = [f"{unit['name']} ok" if unit["ok"] else f"{unit['name']} failed: {unit['reason']}" for unit in units]
    assert plain.stdout.splitlines() == said
    return {unit["name"]: unit["reason"] for unit in units}


def changed(directory: Path, name: str, old: bytes, new: bytes) -> Path:
    """A copy of an object file with other bytes."""
    content = (BUILD / name).read_bytes()
    assert old in content
    assert len(old) == len(new)
    (directory / name).write_bytes(content.replace(old, new))
    return directory


def wrong_objects() -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        assert set(check(directory).values()) == {
            f"{directory / file}.bpf.o: No such file or directory"
            for file in ("cgroups", "periods", "memory", "throttles", "writers")
        }
        (directory / "cgroups.bpf.o").write_text("no object file at all")
        shutil.copy("/bin/true", directory / "memory.bpf.o")
        shutil.copy(BUILD / "memory.bpf.o", directory / "periods.bpf.o")
        reasons = check(directory)
        assert reasons["cgroups"] == f"{directory}/cgroups.bpf.o is no object file of eBPF programs"
        assert f"{directory}/memory.bpf.o is n" in reasons["decisions"]
        assert reasons["periods"] == f"{directory}/periods.bpf.o has no program period_timer"
        changed(directory, "cgroups.bpf.o", CONSTANTS, struct.pack("=IIQ", VERSION + 1, 1, 4096))
        changed(directory, "memory.bpf.o", b"mem_cgroup_out_of_memory", b"mem_cgroup_out_of_memorY")
        changed(directory, "periods.bpf.o", b"fentry/sched_cfs", b"fentry/Sched_cfs")
        reasons = check(directory)
        assert reasons["cgroups"].endswith(f"has records of version {VERSION + 1}, this loader has version {VERSION}")
        assert reasons["decisions"] == "this kernel has no function mem_cgroup_out_of_memorY"
        assert reasons["periods"] == "this kernel has no function Sched_cfs_period_timer"
        assert not reasons["victims"], "each by itself"
        changed(directory, "cgroups.bpf.o", b"bpf_rdonly_cast", b"bpf_rdonly_Cast")
        refused = "the kernel refuses it: libbpf: extern (func ksym) 'bpf_rdonly_Cast': not found in kernel"
        assert check(directory)["cgroups"].startswith(refused)


def refusals() -> None:
    assert not any(check(BUILD).values())
    reasons = check(BUILD, user=NOBODY)
    assert set(reasons.values()) == {"not permitted: needs root, or CAP_BPF and CAP_PERFMON"}
    reasons = check(BUILD, hierarchy=Path("/proc"))
    assert reasons.pop("cgroups") == "/proc: not a directory of control groups"
    assert not any(reasons.values())
    subprocess.run(["mount", "--bind", "/dev/null", str(TYPES)], check=True)
    try:
        reasons = check(BUILD)
        loader = Loader()
    finally:
        subprocess.run(["umount", str(TYPES)], check=True)
    assert all(reason.startswith("this kernel does not describe its types (BTF)") for reason in reasons.values())
    # The agent hears the same, and then the end: there is nothing to wait for.
    assert loader.status == {name: f"failed: {reason}" for name, reason in reasons.items()}
    assert not loader.links
    assert loader.close() == UNAVAILABLE


def overflow() -> None:
    """Whoever takes no records in time is told how many were lost, and has the others."""
    reference, loader = Loader(), Loader("--ring-bytes", "4096")
    groups = [Group(f"lost{index}", 1000, period_us=10_000) for index in range(4)]
    os.kill(loader.process.pid, signal.SIGSTOP)
    for group in groups:
        group.add(burn)
        group.let_go()
    deadline = time.monotonic() + 60
    while len(reference.periods) < 200:
        assert reference.receive(60.0) is not None
        assert time.monotonic() < deadline
    for group in groups:
        group.stop()
    reference.drain()
    os.kill(loader.process.pid, signal.SIGCONT)
    loader.drain()
    assert reference.lost == 0
    assert loader.lost > 0
    assert len(loader.periods) + loader.lost == len(reference.periods)
    # Two CPUs may come to the two rings in another order.
    had = {(record.id, record.nr_periods) for record in loader.periods}
    assert len(had) == len(loader.periods)
    assert had < {(record.id, record.nr_periods) for record in reference.periods}
    figure(f"{loader.lost} of {len(reference.periods)} records lost and told, in a ring of 4 KiB")
    groups[0].let_go()  # and it goes on
    while len(loader.periods) == len(had):
        assert loader.receive(60.0) is not None
    for group in groups:
        group.remove()
    assert (reference.close(), loader.close()) == (0, 0)


def main() -> None:
    enable_controllers()
    refusals()
    wrong_objects()
    overflow()


if __name__ == "__main__":
    main()
