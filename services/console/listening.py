"""Where the console's page is served. Pure."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final

HOST: Final = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Listening:
    """Where a server listens."""

    host: str = HOST
    port: int = 0
    """0: any free one."""
    tls: ssl.SSLContext | None = None

    @property
    def on_loopback(self) -> bool:
        """Whether only this machine reaches it. Names but ``localhost`` are taken for another's."""
        try:
            return self.host == "localhost" or ip_address(self.host).is_loopback
        except ValueError:
            return False
