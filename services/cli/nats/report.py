"""Output of `turnbuckle nats config`: the files written, and the next steps."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services._runtime.command.output import print_note, stdout_console
from services.cli.nats.certificates import CA_FILE, CA_KEY_FILE, SERVER_FILE, SERVER_KEY_FILE, Certificates
from services.cli.nats.config import LOOPBACK, WILDCARDS, ServerPlan
from services.cli.nats.keys import Keys


@dataclass(frozen=True, slots=True)
class Report:
    """The result of the command."""

    out: Path
    plan: ServerPlan
    users: tuple[str, ...]
    files: tuple[Path, ...]
    certificates: Certificates | None
    """None: without TLS."""

    @property
    def urls(self) -> str:
        """What clients connect to, separated by commas."""
        scheme = "tls" if self.plan.tls else "nats"
        address, _, port = self.plan.listen.rpartition(":")
        if self.plan.cluster:
            hosts = self.plan.cluster.hosts
        elif address.strip("[]") in WILDCARDS:
            hosts = (self.certificates.hosts[0] if self.certificates else "localhost",)
        else:
            hosts = (address,)
        return ",".join(f"{scheme}://{host}:{port}" for host in hosts)

    def plain(self, keys: Keys) -> dict[str, Any]:
        """For programs."""
        found = self.certificates
        tls = found and {
            "ca_file": str(self.out / "tls" / CA_FILE),
            "test_ca": found.is_test,
            "hosts": list(found.hosts),
            "expires": found.expires.isoformat(),
            "new": list(found.made),
        }
        return {
            "files": [str(path) for path in self.files],
            "users": list(self.users),
            "new": keys.made,
            "unused_seeds": keys.unused(set(self.users)),
            "listen": self.plan.listen,
            "urls": self.urls,
            "tls": tls,
        }

    def print_result(self, keys: Keys) -> None:
        """Print results on stdout, warnings on stderr."""
        console = stdout_console()
        secrets = self.out / "secrets"
        console.print(f"{self.files[0]}: {len(self.users)} users, {len(keys.made)} with a new key in {secrets}")
        console.print(f"listens at {self.plan.listen}{self._encryption()}")
        for line in self._warnings(keys):
            print_note(line)
        console.print(f"server:  nats-server --config {self.files[0]}")
        console.print(f"streams: once it runs, with {keys.path('administrator')}: turnbuckle nats declare")
        trust = f" TURNBUCKLE_NATS_TLS_CA_FILE={self.out / 'tls' / CA_FILE}" if self.plan.tls else ""
        seed = f" TURNBUCKLE_NATS_NKEY_SEED_FILE={keys.path('operator')}"
        console.print(f"clients: export NATS_URL={self.urls}{trust}{seed}")

    def _encryption(self) -> str:
        found = self.certificates
        if found is None:
            return " without TLS"
        return f" with TLS; certificate for {', '.join(found.hosts)} until {found.expires:%Y-%m-%d}"

    def _warnings(self, keys: Keys) -> list[str]:
        lines = [
            f"note: {name} has a seed but is no user any more: delete {keys.path(name)}"
            for name in keys.unused(set(self.users))
        ]
        tls, found = self.out / "tls", self.certificates
        if found is None:
            lines.append(
                "warning: without TLS anyone on the network between a client and the server reads everything and can"
                " speak in the client's name: for one machine, or a network that nobody else reaches"
            )
        elif found.is_test:
            made = "made now" if CA_KEY_FILE in found.made else "made by an earlier run"
            lines.append(
                f"note: {tls / CA_FILE} is a test CA, {made}: anyone who holds {tls / CA_KEY_FILE} can pass for the"
                f" server. To replace it, put {CA_FILE}, {SERVER_FILE} and {SERVER_KEY_FILE} of your own CA into {tls},"
                f" delete {CA_KEY_FILE} there, `nats-server --signal reload`, and give clients the new {CA_FILE}"
            )
        if self.plan.cluster and self.plan.listen.rpartition(":")[0] in LOOPBACK:
            lines.append("note: clients on other machines cannot reach this cluster: --listen ADDRESS:PORT")
        return lines
