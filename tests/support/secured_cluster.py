"""A small cluster whose server grants each user what `turnbuckle nats config` would, and no more."""

from __future__ import annotations

from pathlib import Path

from schemas.roles import Role
from tests.support.cluster_lab import ClusterLab, ServiceProcess
from tests.support.secured_nats import SecuredNats


class SecuredCluster(ClusterLab):
    """Services have the key of their own; `bus` is the operator's."""

    def __init__(self, directory: Path, nodes: tuple[str, ...]) -> None:
        super().__init__(directory)
        self.nats = self.secured = SecuredNats(directory / "secrets", nodes=nodes)

    async def start(self) -> SecuredCluster:
        """The server with its streams and buckets, and the operator's connection."""
        await self.secured.start()
        await self.secured.declare()
        self._bus = await self.secured.bus(Role.OPERATOR)
        return self

    def launch(self, service: str, **variables: str) -> ServiceProcess:
        """Start a service's process with its key."""
        seed_file = self.secured.seed_file(Role(service), variables.get("AGENT__NODE"))
        return super().launch(service, **variables, NATS_NKEY_SEED_FILE=seed_file)
