"""scripts/load_images.sh with a real engine and a real containerd: a pod starts from the digest that is printed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
import yaml

from tests.support.cri_lab import CRI, HOST_NETWORK, RuntimeClient
from tests.support.real_containerd import write_image

pytestmark = [pytest.mark.root, pytest.mark.docker]
ROOT = Path(__file__).parents[2]


@pytest.fixture
def image(tmp_path: Path) -> Iterator[str]:
    """In the Docker Engine alone."""
    name = f"turnbuckle-test-load-{uuid4().hex[:8]}:1"
    write_image(tmp_path / "made.tar", name)
    subprocess.run(["docker", "load", "--input", tmp_path / "made.tar"], check=True, capture_output=True, timeout=120)
    yield name
    subprocess.run(["docker", "image", "rm", name], check=True, capture_output=True, timeout=120)


def test_a_pod_starts_from_the_digest_that_is_printed(runtime: Path, kubepods: str, image: str) -> None:
    done = subprocess.run(
        [ROOT / "scripts/load_images.sh", "containerd", image],
        check=False,
        capture_output=True,
        text=True,
        env=os.environ | {"CONTAINERD_ADDRESS": str(runtime)},
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    [printed] = yaml.safe_load(done.stdout)
    assert printed["name"] == image.removesuffix(":1")

    client, uid = RuntimeClient(runtime), str(uuid4())
    config = CRI["PodSandboxConfig"](
        metadata={"name": "agent-0", "uid": uid, "namespace": "turnbuckle"},
        linux={
            "cgroup_parent": f"/{kubepods}/burstable/pod{uid}",
            "security_context": {"namespace_options": {"network": HOST_NETWORK}},
        },
    )
    try:
        sandbox_id = client.run_pod(config)
        by_digest = f"{printed['name']}@{printed['digest']}"  # as the overlay's manifest names it, without a registry
        assert client.run_container(sandbox_id, config, "agent", by_digest)
    finally:
        client.close()
