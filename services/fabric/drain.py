"""Moves traffic away from uplinks before maintenance, and back: through FRR, without a lost packet.

FRR keeps what was said until it is restarted: then the uplink carries again, and `status` says so. Nothing is written
to its files.
"""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from services._host.frr import Frr, FrrError
from services._host.frr_drain import RUNNING, attached, drained
from services._runtime.command.failure import CommandError, UnavailableError
from services.fabric.drain_plan import drain_steps
from services.fabric.model import HostFile, Uplink
from services.fabric.places import Places

WITHIN_S: Final = 15.0
CONVERGED_AFTER_S: Final = 2.0
"""For other routers to choose other ways, which cannot be seen from here. In the lab they take 50 to 150 ms."""
_LOOK_EVERY_S: Final = 0.2
_VTYSH_WITHIN_S: Final = 10.0
_ANSWER_WITHIN_S: Final = 10.0
"""On a busy machine bgpd takes more than a second."""


@dataclass(frozen=True, slots=True)
class UplinkState:
    """One uplink, in FRR's eyes."""

    uplink: str
    drained: bool
    routes: int
    """Of zebra's selected BGP routes, how many forward over it."""


def chosen(host: HostFile, names: Sequence[str]) -> tuple[Uplink, ...]:
    """The uplinks of these names; all of them for none.

    Raises:
        CommandError: the host has no such uplink.
    """
    known = {uplink.name: uplink for uplink in host.uplinks}
    if unknown := [name for name in names if name not in known]:
        raise CommandError(f"{host.name} has no uplink {unknown[0]}: there are {', '.join(known)}")
    return tuple(known[name] for name in names) or host.uplinks


def status(host: HostFile, places: Places | None = None) -> list[UplinkState]:
    """Every uplink as FRR has it.

    Raises:
        UnavailableError: FRR does not answer.
    """
    return asyncio.run(_status(host, places or Places()))


def drain(host: HostFile, uplinks: Sequence[Uplink], places: Places | None = None) -> list[UplinkState]:
    """Drain, and wait until no BGP route forwards over these, unless all uplinks are drained.

    Takes `CONVERGED_AFTER_S` for each step (`drain_plan`).

    Raises:
        CommandError: FRR refuses.
        UnavailableError: FRR does not answer, or routes still forward over one after `WITHIN_S`.
    """
    places = places or Places()
    names = {uplink.name for uplink in uplinks}
    _change(host, places, add=names)
    ends_s = time.monotonic() + WITHIN_S
    while True:
        found = status(host, places)
        still = [state for state in found if state.uplink in names and not (state.drained and not state.routes)]
        if not still or all(state.drained for state in found):
            return found
        if time.monotonic() > ends_s:
            told = ", ".join(f"{state.uplink} ({state.routes} routes)" for state in still)
            raise UnavailableError(f"after {WITHIN_S:g} s routes still forward over {told}: are there other ways?")
        time.sleep(_LOOK_EVERY_S)


def undrain(host: HostFile, uplinks: Sequence[Uplink], places: Places | None = None) -> list[UplinkState]:
    """Take the drain back; takes as long as `drain`.

    Raises:
        CommandError: FRR refuses, or an uplink is still drained.
        UnavailableError: FRR does not answer.
    """
    places = places or Places()
    names = {uplink.name for uplink in uplinks}
    _change(host, places, remove=names)
    found = status(host, places)
    if left := [state.uplink for state in found if state.drained and state.uplink in names]:
        raise CommandError(f"FRR still drains {', '.join(left)}: vtysh -c 'show running-config'")
    return found


def _change(host: HostFile, places: Places, *, add: Collection[str] = (), remove: Collection[str] = ()) -> None:
    running = asyncio.run(_running(host, places))
    before = {uplink.name for uplink in host.uplinks if uplink.neighbour in drained(running)}
    for step in drain_steps(host, attached(running), before.union(add).difference(remove)):
        _vtysh(host, step)
        time.sleep(CONVERGED_AFTER_S)


async def _running(host: HostFile, places: Places) -> str:
    try:
        return await Frr(host.pathspace, directory=Path(places.frr.runtime), within_s=_ANSWER_WITHIN_S).ask(
            "bgpd", RUNNING
        )
    except FrrError as error:
        raise UnavailableError(str(error)) from error


async def _status(host: HostFile, places: Places) -> list[UplinkState]:
    frr = Frr(host.pathspace, directory=Path(places.frr.runtime), within_s=_ANSWER_WITHIN_S)
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
            timeout=_VTYSH_WITHIN_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnavailableError(f"vtysh does not run: {error}") from error
    refused = [line for line in (said.stdout + said.stderr).splitlines() if line.startswith("%")]
    if said.returncode or refused:
        raise CommandError(f"FRR refuses: {'; '.join(refused) or said.stderr.strip() or said.returncode}")
