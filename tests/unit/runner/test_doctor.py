"""`turnbuckle doctor` says whether MLTCP can be had here, and why not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from services._runtime.command.finding import Finding, Level
from services.runner.commands import (
    CONTROL_GROUPS_VARIABLE,
    KERNEL_DIRECTORY_VARIABLE,
    NETWORK_NAMESPACE_VARIABLE,
    check_congestion_control,
)

ALL = {"mltcp": "", "mltcp_cubic": "", "sockops": ""}
DEFAULT = "the host's default is bbr"


class Host:
    """What its kernel says, and its loader."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.available, self.default = directory / "available", directory / "default"
        self.available.write_text("reno bbr cubic\n")
        self.default.write_text("bbr\n")
        self.mountinfo = directory / "mountinfo"
        self.mount("rw")

    def mount(self, access: str) -> None:
        """Control groups of version 2."""
        self.mountinfo.write_text(f"30 24 0:26 / /sys/fs/cgroup {access},nosuid - cgroup2 cgroup2 {access}\n")

    def loader(self, text: str) -> None:
        """A loader that is this shell's line."""
        path = self.directory / "turnbuckle-congestion"
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def says(self, programs: dict[str, str]) -> None:
        """A loader that says why each program cannot be loaded."""
        told = [{"name": name, "ok": not why, "reason": why} for name, why in programs.items()]
        self.loader(f"echo '{json.dumps(told)}'")

    def check(self) -> Finding:
        """The doctor's line."""
        infiniband = self.directory / "infiniband"
        return check_congestion_control(self.available, self.default, infiniband, self.mountinfo)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    monkeypatch.setenv(KERNEL_DIRECTORY_VARIABLE, str(tmp_path))
    return Host(tmp_path)


def test_it_can_be_loaded(host: Host) -> None:
    host.says(ALL)
    finding = host.check()
    assert (finding.level, finding.found) == (
        Level.OK,
        f"a runner can load mltcp, mltcp_cubic, sockops; workers have it by their control groups; {DEFAULT}",
    )


@pytest.mark.parametrize(
    ("namespace", "how"),
    [
        ("train", "by the routes of network namespace train"),
        ("", "in no way here: that takes control groups, or TURNBUCKLE_RUNNER__NETWORK_NAMESPACE"),
    ],
)
@pytest.mark.parametrize("without", ["switched off", "read-only", "not mounted"])
def test_without_control_groups_it_is_told_by_what_else(
    host: Host, monkeypatch: pytest.MonkeyPatch, namespace: str, how: str, without: str
) -> None:
    host.says(ALL)
    monkeypatch.setenv(NETWORK_NAMESPACE_VARIABLE, namespace)
    monkeypatch.setenv(CONTROL_GROUPS_VARIABLE, "off" if without == "switched off" else "auto")
    if without == "read-only":
        host.mount("ro")
    elif without == "not mounted":
        host.mountinfo.write_text("")
    assert f"; workers have it {how}; " in host.check().found


def test_it_is_loaded(host: Host) -> None:
    host.available.write_text("reno bbr cubic mltcp mltcp_cubic\n")
    finding = host.check()
    assert (finding.level, finding.found) == (
        Level.OK,
        f"mltcp is loaded; workers have it by their control groups; {DEFAULT}",
    )


def test_it_is_not_built(host: Host) -> None:
    finding = host.check()
    assert finding.level is Level.NOTE
    assert finding.found == f"no mltcp: {host.directory}/turnbuckle-congestion is not there; {DEFAULT}"
    assert finding.mend == "make kernel"


def test_an_older_kernel_is_named(host: Host) -> None:
    why = "kernel 5.15.0: BPF links of congestion controls need 6.4"
    host.says({"mltcp": why, "mltcp_cubic": why, "sockops": ""})
    finding = host.check()
    assert finding.level is Level.NOTE
    assert finding.found == f"no mltcp: {why}; no mltcp_cubic: {why}; {DEFAULT}"


def test_a_loader_that_does_not_run_is_told(host: Host) -> None:
    host.loader("exit 3")
    finding = host.check()
    assert finding.level is Level.NOTE
    assert "turnbuckle-congestion does not run: " in finding.found


def test_rdma_is_told_that_it_gains_nothing(host: Host) -> None:
    (host.directory / "infiniband" / "mlx5_0").mkdir(parents=True)
    host.says(ALL)
    assert host.check().found.endswith("; RDMA (mlx5_0): TCP's congestion control has no effect on its traffic")


def test_without_the_kernels_files_nothing_is_known(host: Host) -> None:
    host.available.unlink()
    assert host.check().found == f"not known: {host.available}: No such file or directory"
