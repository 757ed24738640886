"""A pod as a kubelet starts one: a real container runtime, real control groups, and the agent's own way to them."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from schemas.containers import ContainerSource
from services._host.cgroup_snapshot import WriteOutcome
from services._host.cgroupfs import CgroupLayout, detect
from services._runtime.clock import SystemClock
from services.agent.backend import build_backend
from services.agent.discovery.pods import PodDiscovery
from services.agent.ports import FoundContainer, GoneContainer
from services.agent.settings import AgentSettings
from tests.support.cri_lab import CRI, HOST_NETWORK, RuntimeClient
from tests.support.deadline import until

pytestmark = [pytest.mark.root, pytest.mark.docker]
IMAGE = "turnbuckle.test/sleep:1"
PROGRAM = "/bin/sleep"
CONFIG = """
version = 2
root = "{base}/root"
state = "{base}/state"
[grpc]
  address = "{base}/cri.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{image}"
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
"""


def write_image(path: Path) -> None:
    """An image of one program with its libraries, as `docker save` writes one."""
    linked = subprocess.run(["ldd", PROGRAM], check=True, capture_output=True, text=True).stdout
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w", dereference=True) as archive:
        for name in {PROGRAM, *re.findall(r"(/\S+) \(0x", linked)}:
            archive.add(name)
    process = {"Entrypoint": [PROGRAM, "infinity"]}
    layers = [f"sha256:{sha256(layer.getvalue()).hexdigest()}"]
    config = json.dumps({"architecture": os.uname().machine.replace("x86_64", "amd64"), "os": "linux",
                         "config": process, "rootfs": {"type": "layers", "diff_ids": layers}}).encode()  # fmt: skip
    files = {"config.json": config, "layer.tar": layer.getvalue()}
    files["manifest.json"] = json.dumps(
        [{"Config": "config.json", "RepoTags": [IMAGE], "Layers": ["layer.tar"]}]
    ).encode()
    with tarfile.open(path, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


def need_containerd() -> None:
    missing = [command for command in ("containerd", "ctr") if shutil.which(command) is None]
    if missing:
        pytest.skip(f"needs {' and '.join(missing)}: apt-get install containerd")


def start_containerd(base: Path) -> subprocess.Popen[bytes]:
    with (base / "log").open("wb") as log:
        return subprocess.Popen(["containerd", "--config", str(base / "config.toml")], stdout=log, stderr=log)


@pytest.fixture
async def runtime(tmp_path: Path) -> Any:
    """A containerd of our own, with the image."""
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


def quota_of(layout: CgroupLayout, directory: str) -> str:
    file = "cpu.cfs_quota_us" if layout.version == 1 else "cpu.max"
    return Path(layout.directories(directory)["cpu"], file).read_text().split()[0]


async def test_a_pod_is_found_limited_and_seen_to_end(runtime: Path, kubepods: str, tmp_path: Path) -> None:
    client, layout, uid = RuntimeClient(runtime), detect(), str(uuid4())
    config = CRI["PodSandboxConfig"](
        metadata={"name": "web-0", "uid": uid, "namespace": "shop"},
        labels={"turnbuckle.app": "shop", "pod-template-hash": "5d4f"},
        linux={
            "cgroup_parent": f"/{kubepods}/burstable/pod{uid}",
            "security_context": {"namespace_options": {"network": HOST_NETWORK}},
        },
    )
    backend = build_backend(
        AgentSettings.load(
            {}, pods="on", docker="off", cri_socket=runtime, state_directory=tmp_path, managed_root=f"t{os.getpid()}"
        ),
        SystemClock(),
    )
    discovery = backend.discoveries["pods"]
    assert isinstance(discovery, PodDiscovery)
    try:
        sandbox_id = client.run_pod(config)
        container_id = client.run_container(sandbox_id, config, "web", IMAGE)

        [found] = await discovery.scan()

        directory = f"{kubepods}/burstable/pod{uid}/{container_id}"
        assert found == FoundContainer(
            container_id, "shop", "web", ContainerSource.KUBERNETES, managed_directory=directory
        )
        handle = backend.host.open(found)
        assert handle is not None
        assert handle.write_quota(50_000) is WriteOutcome.WRITTEN
        assert quota_of(layout, directory) == "50000"
        handle.restore()
        assert quota_of(layout, directory) in {"-1", "max"}
        handle.close()

        client.remove_pod(sandbox_id)
        assert await discovery.scan() == [GoneContainer(container_id)]
    finally:
        client.close()
        backend.close()
