"""Drains uplinks before maintenance, and undoes it: through FRR's running configuration, without packet loss.

FRR keeps a drain until it is restarted: then the uplink carries traffic again, and `status` shows it. Its configuration
files are not changed.
"""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from services._edge.frr import Frr, FrrError
from services._edge.frr_drain import RUNNING, attached, drained
from services._runtime.command.errors import CommandError, UnavailableError
from services.fabric.drain_plan import drain_steps
from services.fabric.model import HostFile, Uplink
from services.fabric.paths import FabricPaths

DRAIN_TIMEOUT_S: Final = 15.0
CONVERGENCE_WAIT_S: Final = 2.0
"""For other routers to converge, which is not observable from here. In the lab they take 50 to 150 ms."""
_POLL_INTERVAL_S: Final = 0.2
_VTYSH_TIMEOUT_S: Final = 10.0
_REPLY_TIMEOUT_S: Final = 10.0
"""On a busy machine bgpd takes more than a second."""


@dataclass(frozen=True, slots=True)
class UplinkState:
    """An uplink's state in FRR."""

    uplink: str
    drained: bool
    routes: int
    """Of zebra's selected BGP routes, how many forward over it."""


def select_uplinks(host: HostFile, names: Sequence[str]) -> tuple[Uplink, ...]:
    """The uplinks of these names; all of them for none.

    Raises:
        CommandError: the host has no such uplink.
    """
    known = {uplink.name: uplink for uplink in host.uplinks}
    if unknown := [name for name in names if name not in known]:
        raise CommandError(f"{host.name} has no uplink {unknown[0]}: there are {', '.join(known)}")
    return tuple(known[name] for name in names) or host.uplinks


def status(host: HostFile, paths: FabricPaths | None = None) -> list[UplinkState]:
    """Every uplink as FRR has it.

    Raises:
        UnavailableError: FRR does not answer.
    """
    return asyncio.run(_status(host, paths or FabricPaths()))


def drain(
    host: HostFile,
    uplinks: Sequence[Uplink],
    paths: FabricPaths | None = None,
    *,
    progress: Callable[[str], None] = lambda _: None,
) -> list[UplinkState]:
    """Drain, and wait until no BGP route forwards over these, unless all uplinks are drained.

    Takes `CONVERGENCE_WAIT_S` for each step (`drain_plan`); ``progress`` gets a sentence before each wait.

    Raises:
        CommandError: FRR refuses.
        UnavailableError: FRR does not answer, or routes still forward over one after `DRAIN_TIMEOUT_S`.
    """
    paths = paths or FabricPaths()
    names = {uplink.name for uplink in uplinks}
    _apply_steps(host, paths, progress, add=names)
    deadline_s = time.monotonic() + DRAIN_TIMEOUT_S
    progress(f"waiting until no route forwards over {', '.join(sorted(names))}, at most {DRAIN_TIMEOUT_S:g} s")
    while True:
        found = status(host, paths)
        undrained = [state for state in found if state.uplink in names and not (state.drained and not state.routes)]
        if not undrained or all(state.drained for state in found):
            return found
        if time.monotonic() > deadline_s:
            remaining = ", ".join(f"{state.uplink} ({state.routes} routes)" for state in undrained)
            raise UnavailableError(
                f"after {DRAIN_TIMEOUT_S:g} s routes still forward over {remaining}: are there other ways?"
            )
        time.sleep(_POLL_INTERVAL_S)


def undrain(
    host: HostFile,
    uplinks: Sequence[Uplink],
    paths: FabricPaths | None = None,
    *,
    progress: Callable[[str], None] = lambda _: None,
) -> list[UplinkState]:
    """Take the drain back; takes as long as `drain`.

    Raises:
        CommandError: FRR refuses, or an uplink is still drained.
        UnavailableError: FRR does not answer.
    """
    paths = paths or FabricPaths()
    names = {uplink.name for uplink in uplinks}
    _apply_steps(host, paths, progress, remove=names)
    found = status(host, paths)
    if left := [state.uplink for state in found if state.drained and state.uplink in names]:
        raise CommandError(f"FRR still drains {', '.join(left)}: vtysh -c 'show running-config'")
    return found


def _apply_steps(
    host: HostFile,
    paths: FabricPaths,
    progress: Callable[[str], None],
    *,
    add: Collection[str] = (),
    remove: Collection[str] = (),
) -> None:
    running = asyncio.run(_running_config(host, paths))
    before = {uplink.name for uplink in host.uplinks if uplink.neighbour in drained(running)}
    steps = drain_steps(host, attached(running), before.union(add).difference(remove))
    for number, step in enumerate(steps, 1):
        _vtysh(host, step)
        progress(f"step {number} of {len(steps)}: waiting {CONVERGENCE_WAIT_S:g} s for other routers to converge")
        time.sleep(CONVERGENCE_WAIT_S)


async def _running_config(host: HostFile, paths: FabricPaths) -> str:
    try:
        return await Frr(host.pathspace, directory=Path(paths.frr.runtime), within_s=_REPLY_TIMEOUT_S).ask(
            "bgpd", RUNNING
        )
    except FrrError as error:
        raise UnavailableError(str(error)) from error


async def _status(host: HostFile, paths: FabricPaths) -> list[UplinkState]:
    frr = Frr(host.pathspace, directory=Path(paths.frr.runtime), within_s=_REPLY_TIMEOUT_S)
    try:
        held = drained(await frr.ask("bgpd", RUNNING))
        routes = await frr.show_json("zebra", "show ip route bgp json")
    except FrrError as error:
        raise UnavailableError(str(error)) from error
    counted = _routes_by_interface(routes)
    return [UplinkState(uplink.name, uplink.neighbour in held, counted.get(uplink.name, 0)) for uplink in host.uplinks]


def _routes_by_interface(answer: Any) -> dict[str, int]:
    counted: dict[str, int] = {}
    for routes in answer.values() if isinstance(answer, dict) else ():
        for route in routes:
            if route.get("selected"):
                for name in {hop.get("interfaceName") for hop in route.get("nexthops", ()) if hop.get("fib")}:
                    counted[str(name)] = counted.get(str(name), 0) + 1
    return counted


def _vtysh(host: HostFile, commands: Sequence[str]) -> None:
    pathspace = ["-N", host.pathspace] if host.pathspace else []
    words = [word for command in commands for word in ("-c", command)]
    try:
        said = subprocess.run(  # noqa: S603 - FRR's own shell, with names that the host file has checked
            ["vtysh", *pathspace, *words],  # noqa: S607 - where the system has it
            capture_output=True,
            text=True,
            check=False,
            timeout=_VTYSH_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnavailableError(f"vtysh does not run: {error}") from error
    refused = [line for line in (said.stdout + said.stderr).splitlines() if line.startswith("%")]
    if said.returncode or refused:
        raise CommandError(f"FRR refuses: {'; '.join(refused) or said.stderr.strip() or said.returncode}")
