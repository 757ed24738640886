"""Configuration of the data-plane process, sent as JSON at its start: the key is in no command line or environment."""

from __future__ import annotations

import ipaddress
import json
from typing import NamedTuple, Self

from services._edge.override_tables import OverrideTables
from services.fastpath.values import Limits


class Config(NamedTuple):
    """Settings of the data-plane process; see `services.fastpath.settings`."""

    netns: str | None
    uplinks: tuple[str, ...]
    vtep: str
    vtep_prefixes: tuple[str, ...]
    bfd_socket: str
    port: int
    key: bytes
    """Empty: no signalling between hosts."""
    override_tables: OverrideTables
    limits: Limits
    backup_table_above: int
    bgp_watch: bool
    event_buffer_bytes: int
    silence_s: float
    """Heartbeat timeout of the watchdog."""
    realtime_priority: int

    @property
    def stalled_s(self) -> float:
        """After a stall of this length the watchdog may have acted."""
        return 0.8 * self.silence_s

    def is_peer_vtep(self, destination: str) -> bool:
        """Whether a destination is another host's VTEP."""
        if destination == self.vtep:
            return False
        address = ipaddress.ip_address(destination)
        networks = [ipaddress.ip_network(prefix) for prefix in self.vtep_prefixes]
        return not networks or any(address in network for network in networks)

    def text(self) -> str:
        """As JSON, for `parse`."""
        return json.dumps(self._asdict() | {"key": self.key.hex()})

    @classmethod
    def parse(cls, text: str | bytes) -> Self:
        """The inverse of `text`."""
        fields = json.loads(text)
        fields["uplinks"], fields["vtep_prefixes"] = tuple(fields["uplinks"]), tuple(fields["vtep_prefixes"])
        fields["key"] = bytes.fromhex(fields["key"])
        fields["override_tables"], fields["limits"] = (
            OverrideTables(*fields["override_tables"]),
            Limits(*fields["limits"]),
        )
        return cls(**fields)
