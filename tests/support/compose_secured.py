"""A compose project whose server knows a user per service: its secrets, and everything that it tells."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from services._runtime.bus.api import BusUnavailableError
from services._runtime.bus.nats import NatsBus
from services._runtime.bus.options import BusOptions
from tests.support.compose_lab import COMPOSE, ROOT, ComposeProject

OVERLAYS: Final = ("nats/compose.secure.yaml",)
_VARIABLE: Final = re.compile(r"PASS|TOKEN|SECRET|SEED|CREDENTIAL|KEY")
_FILE: Final = re.compile(r"[A-Z_]+_FILE=/run/[a-z-]+")


class Secured:
    """The project, with TLS, and every secret of it by file name."""

    def __init__(self, directory: Path) -> None:
        shutil.copytree(COMPOSE, directory, ignore=shutil.ignore_patterns("secure"))
        self.secure = directory / "nats" / "secure"
        self.project = ComposeProject(*OVERLAYS, directory=directory)
        self.project.environment["TURNBUCKLE_LOG_LEVEL"] = "debug"
        self.secrets = self._configure(self.project.name)

    def _configure(self, node: str) -> dict[str, str]:
        make = [sys.executable, "-m", "services.cli", "nats", "config", "--out", self.secure, "--host", "nats"]
        own = ["--mounted-at", "/etc/nats", "--listen", "0.0.0.0:4222", "--monitor", "0.0.0.0:8222"]
        own += ["--owner", "10001", "--node", node]
        subprocess.run([*make, *own], env=os.environ | {"PYTHONPATH": str(ROOT)}, check=True, capture_output=True)
        seeds = {path.name: path.read_text().strip() for path in (self.secure / "secrets").iterdir()}
        assert all(re.fullmatch("SU[A-Z2-7]{56}", seed) for seed in seeds.values())
        keys = {name: (self.secure / "tls" / name).read_text().splitlines()[1] for name in ("server.key", "ca.key")}
        assert all(len(line) == 64 for line in keys.values())
        return seeds | keys

    def declare(self) -> None:
        """Make streams and buckets, as the README says."""
        ours = {
            "PYTHONPATH": str(ROOT),
            "NATS_URL": self.project.url,
            "TURNBUCKLE_NATS_TLS_CA_FILE": str(self.secure / "tls" / "ca.pem"),
            "TURNBUCKLE_NATS_NKEY_SEED_FILE": str(self.secure / "secrets" / "administrator.nk"),
        }
        make = [sys.executable, "-m", "services.cli", "nats", "declare"]
        subprocess.run(make, env=os.environ | ours, check=True, capture_output=True)

    def tell_tales(self) -> list[str]:
        """Which secret stands where: in a log, or in what `docker inspect` and `docker history` say."""
        found = []
        for place, text in self._told():
            found += [f"{name} in {place}" for name, secret in self.secrets.items() if secret in text]
        return found

    def _told(self) -> Iterator[tuple[str, str]]:
        client, mine = self.project.client, {"label": f"com.docker.compose.project={self.project.name}"}
        containers = client.containers.list(all=True, filters=mine)
        for container in containers:
            yield f"inspect of {container.name}", json.dumps(container.attrs)
            yield f"log of {container.name}", container.logs().decode(errors="replace")
        for image in {container.image for container in containers}:
            yield f"image {image.tags}", json.dumps([image.attrs, image.history()])
        for other in (*client.networks.list(filters=mine), *client.volumes.list(filters=mine)):
            yield f"inspect of {other.name}", json.dumps(other.attrs)
        yield "docker compose config", self.project.run("config")

    def variables_that_hold_no_file(self) -> list[str]:
        """Variables of containers that are named like a secret, and do not name a file of one."""
        return [
            variable
            for container in self.project.client.containers.list(
                filters={"label": f"com.docker.compose.project={self.project.name}"}
            )
            for variable in container.attrs["Config"]["Env"]
            if _VARIABLE.search(variable.partition("=")[0]) and not _FILE.fullmatch(variable)
        ]


async def assert_nothing_is_told(secured: Secured) -> None:
    """No secret in any log, layer's history or `docker inspect`; without one nobody gets in."""
    assert await asyncio.to_thread(secured.tell_tales) == []
    assert await asyncio.to_thread(secured.variables_that_hold_no_file) == []
    authority = str(secured.secure / "tls" / "ca.pem")
    with pytest.raises(BusUnavailableError, match="refuses the credentials"):
        await NatsBus.connect(
            BusOptions(servers=(secured.project.url,), connect_deadline_s=10.0, tls_ca_file=authority)
        )
