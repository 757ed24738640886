"""Two hosts' namespaces with two uplinks each, routes as FRR would install them, and bfdd's control socket played."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import socket
import struct
import subprocess
import tempfile
import threading
from pathlib import Path

from services._host.netns import inside

_FRAME = struct.Struct("!IHBB")
_counter = itertools.count()


def run(*command: str, check: bool = True) -> str:
    """The output of a command."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise AssertionError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def overrides_in(netns: str, table: int = 100) -> dict[str, list[str]]:
    """Devices by destination in a namespace's table of overrides."""
    text = run("ip", "-n", netns, "-j", "route", "show", "table", str(table), check=False).strip()
    rows = json.loads(text) if text.endswith("]") else []  # "[" alone: there is no such table yet
    return {row["dst"]: [hop["dev"] for hop in row.get("nexthops", [row])] for row in rows}


class FakeBfdd:
    """Speaks bfdd's control protocol to whoever subscribes: the answer, every session, then each change."""

    def __init__(self, path: Path, states: dict[str, str]) -> None:
        self.path = path
        self.states = dict(states)
        self._connections: list[socket.socket] = []
        self._listener: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self.subscribers = 0

    def start(self) -> None:
        """Listen."""
        self.path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(self.path))
        self._listener.listen()
        self._thread = threading.Thread(target=self._accept, args=(self._listener,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Close everything, as when bfdd ends."""
        if self._listener is not None:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None
        if self._thread is not None:
            self._thread.join(5)
        with self._lock:
            for connection in self._connections:
                connection.close()
            self._connections.clear()
            self.subscribers = 0
        self.path.unlink(missing_ok=True)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            try:
                self._subscribe(connection)
            except OSError:  # that subscriber has ended
                connection.close()

    def _subscribe(self, connection: socket.socket) -> None:
        header = connection.recv(_FRAME.size, socket.MSG_WAITALL)
        if len(header) < _FRAME.size:
            connection.close()
            return
        length, identifier, kind, version = _FRAME.unpack(header)
        mask = connection.recv(length, socket.MSG_WAITALL)
        assert (kind, version, len(mask)) == (4, 1, 8), "not a subscription"
        with self._lock:
            connection.sendall(frame({"status": "ok"}, kind=1, identifier=identifier))
            for uplink, state in self.states.items():
                connection.sendall(frame(session("add", uplink)) + frame(session("status", uplink, state)))
            self._connections.append(connection)
            self.subscribers += 1

    def change(self, uplink: str, state: str | None) -> None:
        """A session has a new state; None: it is deleted."""
        with self._lock:
            if state is None:
                del self.states[uplink]
            else:
                self.states[uplink] = state
            data = frame(session("status", uplink, state) if state is not None else session("delete", uplink))
            for connection in list(self._connections):
                try:
                    connection.sendall(data)
                except OSError:  # that subscriber has ended
                    self._connections.remove(connection)
                    connection.close()


def session(op: str, uplink: str, state: str | None = None) -> dict[str, object]:
    """The JSON of a session of an unnumbered uplink."""
    said: dict[str, object] = {"op": op, "ipv6": True, "multihop": False, "peer-address": f"fe80::{uplink[-1]}"}
    said |= {"local-address": "fe80::ff", "local-interface": uplink, "id": 7, "remote-id": 7}
    if state == "remote-adm-down":
        return said | {"state": "down", "diagnostics": 3, "remote-diagnostics": 0}
    return said | ({"state": state, "diagnostics": 0} if state is not None else {"detect-multiplier": 3})


def frame(said: dict[str, object], *, kind: int = 4, identifier: int = 0) -> bytes:
    """One frame."""
    payload = json.dumps(said).encode()
    return _FRAME.pack(len(payload), identifier, kind, 1) + payload


class FakeBgpd:
    """Answers every question on its vty socket with the neighbours of an unnumbered fabric."""

    def __init__(self, path: Path, router_ids: dict[str, str]) -> None:
        self.path = path
        self.router_ids = router_ids
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):  # who asked does not wait for ever, and hangs up
                while command := connection.recv(4096):
                    neighbours = {name: {"remoteRouterId": found} for name, found in self.router_ids.items()}
                    text = json.dumps(neighbours) if b"json" in command else ""
                    connection.sendall(text.encode() + bytes(4))

    def stop(self) -> None:
        """Close the socket."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


class HostNamespace:
    """A host: loopback VTEP, uplinks p1 and p2 whose other ends lie in the same namespace as q1 and q2.

    Or in that of another host, under the same names: then p1 is one switch, and p2 another.
    """

    def __init__(self, number: int, uplinks: int = 2) -> None:
        self.number = number
        self.vtep = f"10.255.0.{number}"
        self.name = f"tbfp{os.getpid() % 100_000}-{next(_counter)}"
        self.uplinks = [f"p{index + 1}" for index in range(uplinks)]
        self.directory = Path(tempfile.mkdtemp(prefix="tbfp"))
        self.bfdd = FakeBfdd(self.directory / "bfdd.sock", dict.fromkeys(self.uplinks, "up"))
        self.bgpd: FakeBgpd | None = None

    def start(self, other: HostNamespace | None = None, *, connect: bool = True) -> None:
        """Make it, connected to another one that is there already, or to itself, or not yet."""
        run("ip", "netns", "add", self.name)
        self.ip("link", "set", "lo", "up")
        self.ip("addr", "add", f"{self.vtep}/32", "dev", "lo")
        router_ids = {name: f"10.255.0.{100 + index}" for index, name in enumerate(self.uplinks, 1)}
        self.bgpd = FakeBgpd(self.directory / "bgpd.vty", router_ids)
        for uplink in self.uplinks if other is not None else ():
            self.ip("link", "add", uplink, "type", "veth", "peer", "name", uplink, "netns", other.name)
            for one, far in ((self, other), (other, self)):
                one.ip("link", "set", uplink, "up")
                mac = json.loads(far.ip("-j", "link", "show", uplink))[0]["address"]
                one.ip("neigh", "replace", "169.254.0.1", "lladdr", mac, "dev", uplink)
        for uplink in self.uplinks if other is None and connect else ():
            far = uplink.replace("p", "q")
            self.ip("link", "add", uplink, "type", "veth", "peer", "name", far)
            self.ip("link", "set", uplink, "up")
            self.ip("link", "set", far, "up")
        self.bfdd.start()

    def stop(self) -> None:
        """Undo."""
        self.bfdd.stop()
        if self.bgpd is not None:
            self.bgpd.stop()
        run("ip", "netns", "del", self.name, check=False)
        for path in self.directory.iterdir():
            path.unlink()
        self.directory.rmdir()

    def ip(self, *arguments: str, check: bool = True) -> str:
        """Output of ip in the namespace."""
        return run("ip", "-n", self.name, *arguments, check=check)

    def frr_route(self, destination: str, *uplinks: str) -> None:
        """What zebra installs; no uplinks: it withdraws."""
        if not uplinks:
            self.ip("route", "del", destination, "proto", "bgp", "metric", "20")
            return
        hops = [word for name in uplinks for word in ("nexthop", "via", "169.254.0.1", "dev", name, "onlink")]
        self.ip("route", "replace", destination, "proto", "bgp", "src", self.vtep, "metric", "20", *hops)

    def overrides(self, table: int = 100) -> dict[str, list[str]]:
        """Devices by destination in our table."""
        return overrides_in(self.name, table)

    def rules(self) -> list[str]:
        """The lines of our rules."""
        return [line for line in self.ip("rule").splitlines() if "proto 200" in line]

    def inside(self) -> contextlib.AbstractContextManager[None]:
        """This thread in the namespace."""
        return inside(self.name)
