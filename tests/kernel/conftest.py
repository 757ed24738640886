"""Fixtures of the tests on real control groups."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.support.cgroup_lab import CgroupLab
from tests.support.deadline import until
from tests.support.real_containerd import CONFIG, IMAGE, need_containerd, start_containerd, write_image


@pytest.fixture
def lab() -> Iterator[CgroupLab]:
    """Real control groups below a root of this test run's own."""
    lab = CgroupLab(f"turnbuckle-test-{os.getpid()}")
    try:
        yield lab
    finally:
        lab.close()


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[Path]:
    """The socket of a containerd of our own that has the image of pods."""
    need_containerd()
    (tmp_path / "config.toml").write_text(CONFIG.format(base=tmp_path, image=IMAGE))
    write_image(tmp_path / "image.tar")
    process = start_containerd(tmp_path)
    ctr = ["ctr", "--address", str(tmp_path / "cri.sock"), "--namespace", "k8s.io"]
    try:

        def imported() -> bool:
            done = subprocess.run([*ctr, "image", "import", str(tmp_path / "image.tar")], check=False, timeout=60)
            return done.returncode == 0

        await until(lambda: (tmp_path / "cri.sock").exists() and imported(), within_s=60, what="containerd")
        yield tmp_path / "cri.sock"
    finally:
        process.terminate()
        process.wait(60)


@pytest.fixture
def kubepods() -> Iterator[str]:
    """A kubelet's directory, in a corner of its own."""
    corner = f"turnbuckle-test-{os.getpid()}"
    yield f"{corner}/kubepods"
    for directory in sorted(Path("/sys/fs/cgroup").glob(f"**/{corner}"), reverse=True):
        for below in [*sorted(directory.glob("**/"), reverse=True), directory]:
            with contextlib.suppress(OSError):
                below.rmdir()
