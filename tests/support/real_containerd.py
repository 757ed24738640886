"""A containerd of a test's own, with an image of one program."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import tarfile
from hashlib import sha256
from pathlib import Path
from typing import Final

import pytest

IMAGE: Final = "turnbuckle.test/sleep:1"
"""That of pods themselves."""
PROGRAM: Final = "/bin/sleep"
CONFIG: Final = """
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


def write_image(path: Path, image: str = IMAGE) -> None:
    """An image of one program that sleeps, with its libraries, as `docker save` writes one."""
    linked = subprocess.run(["ldd", PROGRAM], check=True, capture_output=True, text=True).stdout
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w", dereference=True) as archive:
        for file in {PROGRAM, *re.findall(r"(/\S+) \(0x", linked)}:
            archive.add(file)
    process = {"Entrypoint": [PROGRAM, "infinity"]}
    layers = [f"sha256:{sha256(layer.getvalue()).hexdigest()}"]
    config = json.dumps(
        {
            "architecture": os.uname().machine.replace("x86_64", "amd64"),
            "os": "linux",
            "config": process,
            "rootfs": {"type": "layers", "diff_ids": layers},
        }
    ).encode()
    files = {"config.json": config, "layer.tar": layer.getvalue()}
    files["manifest.json"] = json.dumps(
        [{"Config": "config.json", "RepoTags": [image], "Layers": ["layer.tar"]}]
    ).encode()
    with tarfile.open(path, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


def need_containerd() -> None:
    """Skip where it is not installed."""
    missing = [command for command in ("containerd", "ctr") if shutil.which(command) is None]
    if missing:
        pytest.skip(f"needs {' and '.join(missing)}: apt-get install containerd")


def start_containerd(base: Path) -> subprocess.Popen[bytes]:
    """With its files below a directory, where it finds config.toml."""
    with (base / "log").open("wb") as log:
        return subprocess.Popen(["containerd", "--config", str(base / "config.toml")], stdout=log, stderr=log)
