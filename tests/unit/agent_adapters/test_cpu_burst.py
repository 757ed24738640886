"""The CPU burst of both versions follows the quota, and is put back; why the kernel refuses a quota or a limit."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from services._host.cgroup_snapshot import RefusedQuota, WriteOutcome
from services.agent.cgroup.open import open_host
from services.agent.ports import ContainerHandle
from services.agent.state_files import StateDirectory
from tests.support.fake_cgroupfs import (
    CONTAINER,
    V1_TREE,
    V2_TREE,
    FakeKernel,
    burst_rule,
    fake_layout,
    materialise,
    ratio_rule,
    refuse,
)

MIB = 1 << 20


class Files(NamedTuple):
    """Of one version."""

    version: int
    tree: dict[str, dict[str, str]]
    quota: str
    burst: str

    def spell(self, quota_us: int) -> str:
        number = f"{quota_us}" if quota_us >= 0 or self.version == 1 else "max"
        return number if self.version == 1 else f"{number} 100000"


V1 = Files(1, V1_TREE, "cpu.cfs_quota_us", "cpu.cfs_burst_us")
V2 = Files(2, V2_TREE, "cpu.max", "cpu.max.burst")


@pytest.fixture(params=[V1, V2], ids=["v1", "v2"])
def files(request: pytest.FixtureRequest) -> Files:
    return request.param


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: Files) -> FakeKernel:
    """A quota of 1.5 cores and a burst of 1.0."""
    materialise(tmp_path, files.tree)
    kernel = FakeKernel(tmp_path, monkeypatch)
    kernel.set(files.quota, files.spell(150_000))
    (kernel.path(files.quota).parent / files.burst).write_text("100000\n")
    kernel.rules.append(burst_rule)
    return kernel


@pytest.fixture
def opener(kernel: FakeKernel, files: Files, tmp_path: Path):
    opened: list[ContainerHandle] = []
    state = StateDirectory(tmp_path / "state")
    state.make()

    def open_it() -> ContainerHandle:
        handle = open_host(fake_layout(kernel.base, files.version), state).open(CONTAINER)
        assert handle is not None
        opened.append(handle)
        return handle

    yield open_it
    for handle in opened:
        handle.close()


Opener = Callable[[], ContainerHandle]


def test_a_cut_lowers_the_burst_first_and_a_raise_puts_it_back(kernel: FakeKernel, files: Files, opener: Opener):
    handle = opener()
    assert handle.write_quota(38_000) is WriteOutcome.WRITTEN
    assert kernel.writes == [(files.burst, "38000"), (files.quota, files.spell(38_000))]
    assert handle.write_quota(60_000) is WriteOutcome.WRITTEN
    assert kernel.value(files.burst) == "60000"
    assert handle.write_quota(120_000) is WriteOutcome.WRITTEN
    assert kernel.value(files.burst) == "100000"  # never more than it was
    assert kernel.refused == []


def test_a_burst_that_fits_is_left_alone(kernel: FakeKernel, files: Files, opener: Opener):
    assert opener().write_quota(100_000) is WriteOutcome.WRITTEN
    assert kernel.writes == [(files.quota, files.spell(100_000))]


def test_a_burst_that_is_set_later_is_found_when_the_kernel_refuses(kernel: FakeKernel, files: Files, opener: Opener):
    """As in the report: written beside a running agent."""
    kernel.set(files.burst, "0")
    handle = opener()
    kernel.set(files.burst, "100000")
    assert handle.write_quota(38_000) is WriteOutcome.WRITTEN
    assert (kernel.value(files.burst), kernel.value(files.quota)) == ("38000", files.spell(38_000))
    assert kernel.refused == [(files.quota, files.spell(38_000))]
    handle.restore()
    assert (kernel.value(files.burst), kernel.value(files.quota)) == ("100000", files.spell(150_000))


def test_a_burst_that_others_change_is_theirs(kernel: FakeKernel, files: Files, opener: Opener):
    handle = opener()
    handle.write_quota(38_000)
    kernel.set(files.burst, "0")
    handle.write_quota(60_000)
    assert kernel.value(files.burst) == "0"
    handle.restore()
    assert kernel.value(files.burst) == "0"


def test_quota_and_burst_are_restored_by_the_next_agent_too(kernel: FakeKernel, files: Files, opener: Opener):
    opener().write_quota(38_000)  # and dies
    after = opener()
    after.write_quota(50_000)
    assert kernel.value(files.burst) == "50000"
    after.restore()
    assert (kernel.value(files.burst), kernel.value(files.quota)) == ("100000", files.spell(150_000))
    assert list((kernel.base / "state/originals").iterdir()) == []  # nothing is left to restore


def test_an_unlimited_quota_takes_any_burst_back(kernel: FakeKernel, files: Files, opener: Opener):
    kernel.set(files.quota, files.spell(-1))
    handle = opener()
    assert handle.write_quota(38_000) is WriteOutcome.WRITTEN
    handle.restore()
    assert (kernel.value(files.burst), kernel.value(files.quota)) == ("100000", files.spell(-1))


def test_a_burst_above_the_original_quota_is_put_back_as_far_as_that_allows(
    kernel: FakeKernel, files: Files, opener: Opener
):
    kernel.set(files.burst, "0")
    handle = opener()
    handle.write_quota(300_000)
    kernel.set(files.burst, "250000")
    handle.write_quota(200_000)
    handle.restore()
    assert (kernel.value(files.burst), kernel.value(files.quota)) == ("150000", files.spell(150_000))
    assert list((kernel.base / "state/originals").iterdir()) == []


def test_a_burst_that_cannot_be_lowered_is_the_reason(kernel: FakeKernel, files: Files, opener: Opener):
    kernel.rules.append(refuse(files.burst, errno.EPERM))
    handle = opener()
    assert handle.write_quota(38_000) is WriteOutcome.REFUSED
    assert handle.why_quota_refused(38_000) == RefusedQuota(f"{files.burst} is 100000", 100_000)
    assert handle.write_quota(100_000) is WriteOutcome.WRITTEN


def test_a_quota_that_is_refused_all_the_same_puts_the_burst_back(kernel: FakeKernel, files: Files, opener: Opener):
    kernel.rules.append(refuse(files.quota, errno.EINVAL))
    handle = opener()
    assert handle.write_quota(38_000) is WriteOutcome.REFUSED
    assert (kernel.value(files.burst), kernel.value(files.quota)) == ("100000", files.spell(150_000))
    cause = f"{files.quota}: Invalid argument (EINVAL)"
    assert handle.why_quota_refused(38_000) == RefusedQuota(cause, may_accept_less=files.version == 1)


def test_a_kernel_without_bursts(kernel: FakeKernel, files: Files, opener: Opener):
    kernel.rules.clear()
    kernel.path(files.burst).unlink()
    assert opener().write_quota(38_000) is WriteOutcome.WRITTEN
    assert kernel.writes == [(files.quota, files.spell(38_000))]


def test_memory_in_use_and_files_that_cannot_be_written(kernel: FakeKernel, files: Files, opener: Opener):
    """10 MiB are in use; version 2 refuses less than that and a margin by itself."""
    name = "memory.limit_in_bytes" if files.version == 1 else "memory.max"
    handle = opener()
    kernel.rules.append(refuse(name, errno.EBUSY))
    assert handle.write_memory(8 * MIB) is WriteOutcome.REFUSED
    assert handle.why_memory_refused() == "10.0 MiB are in use"
    kernel.rules[-1] = refuse(name, errno.EROFS)
    assert handle.write_memory(300 * MIB) is WriteOutcome.REFUSED
    assert handle.why_memory_refused() == f"{name}: Read-only file system (EROFS)"


@pytest.mark.parametrize("files", [V1], ids=["v1"], indirect=True)
def test_the_group_above_and_the_group_below_are_named_with_their_quotas(
    kernel: FakeKernel, files: Files, opener: Opener
):
    """Version 1: quota / period of a group lie between those of the groups below and that of the one above."""
    kernel.set(files.burst, "0")
    group = kernel.path(files.quota).parent
    for other, quota, period in ((group.parent, "-1", "100000"), (group.parents[1], "80000", "50000")):
        (other / "cpu.cfs_quota_us").write_text(f"{quota}\n")
        (other / "cpu.cfs_period_us").write_text(f"{period}\n")
    kernel.rules.append(ratio_rule(1.6))
    handle = opener()
    assert handle.write_quota(200_000) is WriteOutcome.REFUSED
    above = f"the group above, {group.parents[1]}, has a quota of 1.60 cores"
    assert handle.why_quota_refused(200_000) == RefusedQuota(above, 160_000)
    below = group / "inner" / "job"
    below.mkdir(parents=True)
    (below / "cpu.cfs_quota_us").write_text("45000\n")
    (below / "cpu.cfs_period_us").write_text("50000\n")
    kernel.rules.append(refuse("cpu.cfs_quota_us", errno.EINVAL))
    assert handle.write_quota(30_000) is WriteOutcome.REFUSED
    assert handle.why_quota_refused(30_000) == RefusedQuota(
        f"the group below, {below}, has a quota of 0.90 cores", 90_000
    )
