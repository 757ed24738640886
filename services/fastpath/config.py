"""What the hot process is told at its start, as one JSON text: the key is in no command line and no environment."""

from __future__ import annotations

import ipaddress
import json
from typing import NamedTuple, Self

from services.fastpath.values import Limits, Ownership


class Config(NamedTuple):
    """Settings of the hot process; see `services.fastpath.settings`."""

    netns: str | None
    uplinks: tuple[str, ...]
    vtep: str
    vtep_prefixes: tuple[str, ...]
    bfd_socket: str
    port: int
    key: bytes
    """Empty: the other hosts are neither told nor heard."""
    ownership: Ownership
    limits: Limits
    standby_above: int
    bgp_watch: bool
    event_buffer_bytes: int
    silence_s: float
    """After which the watchdog acts."""
    realtime_priority: int

    @property
    def stalled_s(self) -> float:
        """Without a turn of the loop for so long, the watchdog may have acted."""
        return 0.8 * self.silence_s

    def wanted(self, destination: str) -> bool:
        """Whether a destination is one to look after: another host's VTEP."""
        if destination == self.vtep:
            return False
        address = ipaddress.ip_address(destination)
        networks = [ipaddress.ip_network(prefix) for prefix in self.vtep_prefixes]
        return not networks or any(address in network for network in networks)

    def text(self) -> str:
        """For `parse`."""
        return json.dumps(self._asdict() | {"key": self.key.hex()})

    @classmethod
    def parse(cls, text: str | bytes) -> Self:
        """What `text` has made."""
        said = json.loads(text)
        said["uplinks"], said["vtep_prefixes"] = tuple(said["uplinks"]), tuple(said["vtep_prefixes"])
        said["key"] = bytes.fromhex(said["key"])
        said["ownership"], said["limits"] = Ownership(*said["ownership"]), Limits(*said["limits"])
        return cls(**said)
