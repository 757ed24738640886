"""MLTCP by the routes of the workers' network namespace, where workers have no control groups of version 2.

All connections there over the device of the node's address have it then, whatever their job asks for. What the routes
were like is written down before they are changed, and put back when the runner stops, or by the next one where it was
killed: until then such a route names an algorithm that is gone, and the kernel gives its connections the default.
"""

from __future__ import annotations

import json
import socket
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from services._host.boot_records import boot_id
from services._host.netlink.attributes import NetlinkError
from services._host.netlink.constants import AF_INET, RT_TABLE_MAIN, RTN_UNICAST
from services._host.netlink.route_codec import decode_route, dump_routes
from services._host.netlink.route_congestion import congestion_control_of, replace_route, with_congestion_control
from services._host.netlink.socket import NetlinkSocket
from services._host.netns import inside
from services._runtime.atomic_file import write_atomically
from services._runtime.telemetry.logging import Logger
from services.runner.worker_network import WorkerNetwork

MARKER: Final = "routes.json"
"""In the node's directory, as long as routes are changed."""


class RoutesUnavailableError(Exception):
    """The workers' routes cannot be changed; the text says why."""


@dataclass(frozen=True, slots=True)
class _Changed:
    """What was changed."""

    boot: str
    namespace: str
    """Path."""
    inode: int
    name: str
    routes: list[str]
    """As they were; hexadecimal."""


class WorkerRoutes:
    """Of one runner."""

    def __init__(self, directory: Path, network: WorkerNetwork | None, log: Logger) -> None:
        """Change nothing yet.

        Args:
            directory: of the node's records.
            network: of the workers; None: the host's own, whose routes stay as they are.
            log: for what could not be put back.
        """
        self._marker = directory / MARKER
        self.network = network
        self._log = log

    def give(self, name: str) -> None:
        """Let the routes give this congestion control, by the name that it is registered by.

        Raises:
            RoutesUnavailableError: there are none, or the kernel refuses; nothing is changed.
        """
        network = self.network
        if network is None:
            raise RoutesUnavailableError("workers are in the host's own network")
        try:
            with inside(network.namespace):
                device = socket.if_nametoindex(network.device)
            with NetlinkSocket(network.namespace) as netlink:
                before = _routes(netlink, device)
                if not before:
                    raise RoutesUnavailableError(f"no route of {network.namespace} leads over {network.device}")
                self._note(network.namespace, name, before)
                _write(netlink, [with_congestion_control(route, name) for route in before])
        except (OSError, NetlinkError) as error:
            self.put_back()
            raise RoutesUnavailableError(f"the routes of {network.namespace} cannot be changed: {error}") from error

    def _note(self, namespace: str, name: str, before: list[bytes]) -> None:
        changed = _Changed(boot_id(), namespace, Path(namespace).stat().st_ino, name, [route.hex() for route in before])
        write_atomically(self._marker, json.dumps(asdict(changed)))

    def put_back(self) -> None:
        """Undo what this runner has changed, or one before it; routes that others have changed since are theirs."""
        try:
            changed = _Changed(**json.loads(self._marker.read_bytes()))
            if changed.boot == boot_id() and _inode(changed.namespace) == changed.inode:
                with NetlinkSocket(changed.namespace) as netlink:
                    _write(netlink, _still_changed(netlink, changed))
            self._marker.unlink()
        except FileNotFoundError:
            return
        except (OSError, NetlinkError, ValueError, TypeError) as error:
            self._log.error("routes_not_put_back", marker=str(self._marker), error=str(error))


def _inode(namespace: str) -> int:
    """0: it is gone."""
    try:
        return Path(namespace).stat().st_ino
    except FileNotFoundError:
        return 0


def _routes(netlink: NetlinkSocket, device: int | None = None) -> list[bytes]:
    """IPv4 routes of the main table, as dumped; None: over any device."""
    found = []
    for message in netlink.dump(dump_routes(AF_INET, table=RT_TABLE_MAIN, kind=RTN_UNICAST)):
        route = decode_route(message.payload)
        if route is not None and (device is None or any(hop.ifindex == device for hop in route.hops)):
            found.append(message.payload)
    return found


def _still_changed(netlink: NetlinkSocket, changed: _Changed) -> list[bytes]:
    """Those to write back: they differ from what is there in nothing but this congestion control."""
    present = {
        with_congestion_control(route, "")
        for route in _routes(netlink)
        if congestion_control_of(route) in {"", changed.name}  # of one that is gone the kernel tells no name
    }
    before = [bytes.fromhex(route) for route in changed.routes]
    return [
        with_congestion_control(route, congestion_control_of(route))
        for route in before
        if with_congestion_control(route, "") in present
    ]


def _write(netlink: NetlinkSocket, routes: list[bytes]) -> None:
    for ack in netlink.write([replace_route(route) for route in routes]):
        if ack.errno:
            raise OSError(ack.errno, ack.reason or "a route is refused")
