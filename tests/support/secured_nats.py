"""A real server as `turnbuckle nats config` sets it up: one user per service, each with its own permissions."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from schemas.permissions import NODE_ROLES, Identity, uses
from schemas.roles import Role
from services._runtime.bus.embedded_server import EmbeddedNats
from services._runtime.bus.nats import NatsBus
from services._runtime.bus.options import BusOptions
from services.cli.nats.command import write
from services.cli.nats.config import ServerPlan, User
from services.cli.nats.keys import Keys

NODES = ("gpu-01.example", "gpu-02")


class SecuredNats(EmbeddedNats):
    """Seeds are in ``secrets``; what the command would have written stands where the server runs."""

    def __init__(
        self, secrets: Path, *, root: str = "tb", nodes: tuple[str, ...] = NODES, tls: Path | None = None
    ) -> None:
        super().__init__()
        self.root = root
        self.keys = Keys(secrets)
        self._tls = tls
        identities = [Identity(role) for role in Role if role not in NODE_ROLES]
        identities += [Identity(role, node) for node in nodes for role in NODE_ROLES]
        self.users = []
        for identity in identities:
            key = self.keys.public_key(identity.name)
            self.users.append(User(replace(identity, inbox=key), key))

    @property
    def websocket_port(self) -> int:
        """Where browsers connect."""
        found = re.search(r"Listening for websocket clients on wss?://.*:(\d+)", self.log_path.read_text())
        assert found is not None
        return int(found[1])

    def user(self, role: Role, node: str | None = None) -> User:
        """One of them."""
        return next(each for each in self.users if (each.identity.role, each.identity.node) == (role, node))

    def seed(self, role: Role, node: str | None = None) -> bytes:
        """Its seed."""
        return Path(self.seed_file(role, node)).read_bytes()

    def seed_file(self, role: Role, node: str | None = None) -> str:
        """Where its seed stands."""
        return str(self.keys.path(self.user(role, node).identity.name))

    def options(self, role: Role, node: str | None = None) -> BusOptions:
        """How this user connects."""
        needs = uses(role)
        return BusOptions(
            servers=(self.url,),
            root=self.root,
            nkey_seed_file=self.seed_file(role, node),
            tls_ca_file=str(self._tls / "ca.pem") if self._tls else None,
            connect_deadline_s=60,
            streams=needs.streams,
            buckets=needs.buckets,
            object_stores=needs.object_stores,
        )

    async def bus(self, role: Role, node: str | None = None) -> NatsBus:
        """A connection of this user."""
        return await NatsBus.connect(self.options(role, node))

    async def declare(self) -> None:
        """Make every stream, bucket and store, as an administrator does."""
        bus = await self.bus(Role.ADMINISTRATOR)
        assert bus.undeclared == []
        await bus.close(2)

    def environment(self, role: Role, node: str | None = None) -> dict[str, str]:
        """Settings of a service's process."""
        return {
            "NATS_URL": self.url,
            "XDG_CONFIG_HOME": "/nonexistent",
            "TURNBUCKLE_NATS_NKEY_SEED_FILE": self.seed_file(role, node),
            "TURNBUCKLE_SUBJECT_ROOT": self.root,
        } | ({"TURNBUCKLE_NATS_TLS_CA_FILE": str(self._tls / "ca.pem")} if self._tls else {})

    def _configuration(self) -> str:
        directory = self.log_path.parent
        plan = ServerPlan(
            directory=str(self._tls.parent if self._tls else directory),
            store=str(directory / "jetstream"),
            listen=f"{self.host}:{self.port or -1}",
            websocket=f"{self.host}:-1",
            monitor=None,
            tls=self._tls is not None,
        )
        written = write(directory, plan, self.users, self.keys, self.root)
        return written[0].read_text() + f'log_file: "{self.log_path}"\n'
