"""The network of workers where it is not the runner's: a namespace that their shims enter before they start them.

The runner stays in the host's own namespace, where it has the bus. Sources: network_namespaces(7), netdevice(7).
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from services._host.netns import inside, netns_path
from services._runtime.settings_error import UnusableSettingsError
from services.runner.settings import RunnerSettings

_SIOCGIFADDR: Final = 0x8915
_IFREQ: Final = struct.Struct("16s 4x 4s 16x")
"""``struct ifreq`` with a ``sockaddr_in``: family and port are passed over."""


@dataclass(frozen=True, slots=True)
class WorkerNetwork:
    """Where workers reach each other."""

    namespace: str
    """Path of the network namespace."""
    device: str
    """That has the node's address."""


def worker_network(settings: RunnerSettings) -> WorkerNetwork | None:
    """The workers' network, as set; None: they are in the runner's.

    Raises:
        UnusableSettingsError: it cannot be entered, or the node's address is not in it.
    """
    if settings.network_namespace is None:
        return None
    setting = f"TURNBUCKLE_RUNNER__NETWORK_NAMESPACE={settings.network_namespace}"
    if os.geteuid() != 0:
        raise UnusableSettingsError(f"{setting}: only root enters a network namespace, and the runner is not root")
    if settings.address is None:
        raise UnusableSettingsError(
            f"{setting}: where workers on other nodes reach this one there is not known; set TURNBUCKLE_RUNNER__ADDRESS"
        )
    path = str(netns_path(settings.network_namespace))
    try:
        with inside(path):
            device = device_with(settings.address)
    except OSError as error:
        raise UnusableSettingsError(f"{setting}: {path} cannot be entered: {error.strerror}") from error
    if device is None:
        raise UnusableSettingsError(
            f"{setting}: no device in it has the IPv4 address of TURNBUCKLE_RUNNER__ADDRESS, {settings.address}"
        )
    return WorkerNetwork(path, device)


def device_with(address: str) -> str | None:
    """The device of the calling thread's namespace that has an IPv4 address; None: there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as probe:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # a device without an address
                answer = fcntl.ioctl(probe, _SIOCGIFADDR, _IFREQ.pack(name.encode(), bytes(4)))
                if socket.inet_ntoa(_IFREQ.unpack(answer)[1]) == address:
                    return name
    return None
