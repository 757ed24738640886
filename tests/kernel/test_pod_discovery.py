"""A pod as a kubelet starts one: a real container runtime, real control groups, and the agent's own way to them."""

from __future__ import annotations

import os
from pathlib import Path
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
from tests.support.real_containerd import IMAGE

pytestmark = [pytest.mark.root, pytest.mark.docker]


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
