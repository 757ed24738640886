"""The doctor's checks of the network edge: what the kernel can do, who may, and how FRR is set up."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from services._runtime.frr import DIRECTORY, Frr, FrrError
from services._runtime.kernel_support import FEATURES, CannotTryError, Feature, missing_features
from services.cli.doctor_finding import Finding, Level

PATHSPACE_VARIABLE: Final = "TURNBUCKLE_RECONCILER__FRR_PATHSPACE"
OLDEST_FRR: Final = (8, 0)
DAEMONS: Final = ("zebra", "bgpd", "bfdd")
_PROGRAMS: Final = (Path("/usr/lib/frr"), Path("/usr/libexec/frr"), Path("/usr/local/sbin"))
_NET_ADMIN: Final = 12
_VERSION: Final = re.compile(r"FRRouting (?P<text>(?P<major>\d+)\.(?P<minor>\d+)\S*)")
_NO_NEXTHOPS: Final = "no zebra nexthop kernel enable"


def check_kernel(find: Callable[[], Mapping[Feature, str]] = missing_features) -> list[Finding]:
    """Bridge, VXLAN, clsact, flower, tunnel_key, mirred: tried in a network namespace that nobody else sees."""
    try:
        missing = find()
    except CannotTryError as error:
        return [Finding("network edge", Level.MISSING, f"not tried: {error}", "sudo turnbuckle doctor")]
    names = ", ".join(feature.module for feature in FEATURES if feature not in missing)
    findings = [Finding("network edge", Level.OK, names)] if names else []
    for feature, reason in missing.items():
        found = f"not in this kernel ({reason}): {feature.purpose}; packets go by bridge and VTEP without it"
        mend = f"modprobe {feature.module}, or a kernel with {feature.option}"
        findings.append(Finding(feature.module, Level.MISSING, found, mend))
    return findings


def check_net_admin(status: str | None = None) -> Finding:
    """Whether tc rules may be written."""
    text = Path("/proc/self/status").read_text(encoding="ascii") if status is None else status
    line = next((line for line in text.splitlines() if line.startswith("CapEff:")), "CapEff: 0")
    if int(line.split()[1], 16) >> _NET_ADMIN & 1:
        return Finding("network rights", Level.OK, "CAP_NET_ADMIN")
    mend = "sudo, or AmbientCapabilities=CAP_NET_ADMIN in the reconciler's unit"
    return Finding("network rights", Level.MISSING, "no CAP_NET_ADMIN: no tc rule can be written", mend)


def check_frr_installed(places: tuple[Path, ...] = _PROGRAMS) -> Finding:
    """Whether the daemons that THORN needs are there."""
    lacking = [daemon for daemon in DAEMONS if not any(os.access(place / daemon, os.X_OK) for place in places)]
    if lacking:
        return Finding("frr", Level.MISSING, f"not installed: {', '.join(lacking)}", "apt-get install frr")
    return Finding("frr", Level.OK, f"{', '.join(DAEMONS)} are installed")


async def check_frr_running(frr: Frr) -> list[Finding]:
    """Which daemons answer, FRR's version, and the setting that a kernel route's next hops depend on."""
    answers: dict[str, str] = {}
    troubles: list[str] = []
    for daemon in DAEMONS:
        try:
            answers[daemon] = await frr.ask(daemon, "show version")
        except FrrError as error:
            troubles.append(str(error))
    if not answers:
        mend = f"turnbuckle fabric up, systemctl start frr, or set {PATHSPACE_VARIABLE}"
        return [Finding("frr daemons", Level.MISSING, f"none answers at {frr.directory}", mend)]
    findings = [_version(next(iter(answers.values())))]
    if troubles:
        mend = "enable them in /etc/frr/daemons, then systemctl restart frr"
        findings.append(Finding("frr daemons", Level.MISSING, "; ".join(troubles), mend))
    else:
        findings.append(Finding("frr daemons", Level.OK, f"{', '.join(answers)} answer at {frr.directory}"))
    if "zebra" in answers:
        findings.append(await _nexthops(frr))
    return findings


def _version(text: str) -> Finding:
    match = _VERSION.search(text)
    if match is None:
        return Finding("frr version", Level.NOTE, f"not told: {text.strip()[:60]!r}")
    if (int(match["major"]), int(match["minor"])) < OLDEST_FRR:
        return Finding("frr version", Level.NOTE, f"{match['text']}: older than 8.0", "apt-get install frr")
    return Finding("frr version", Level.OK, match["text"])


async def _nexthops(frr: Frr) -> Finding:
    try:
        text = await frr.ask("zebra", "show running-config")
    except FrrError as error:
        return Finding("nexthop objects", Level.NOTE, str(error))
    if _NO_NEXTHOPS in text:
        return Finding("nexthop objects", Level.OK, f"off ({_NO_NEXTHOPS})")
    found = "zebra writes kernel nexthop groups: FRR 8.4 leaves them shrunk after a link has flapped"
    return Finding("nexthop objects", Level.NOTE, found, f"vtysh -c 'configure terminal' -c '{_NO_NEXTHOPS}'")


async def run_network_checks() -> list[Finding]:
    """Everything about the network edge of this host."""
    kernel = await asyncio.to_thread(check_kernel)
    installed = await asyncio.to_thread(check_frr_installed)
    frr = Frr(os.environ.get(PATHSPACE_VARIABLE) or None, directory=DIRECTORY)
    running = await check_frr_running(frr) if installed.level is Level.OK else []
    return [*kernel, check_net_admin(), installed, *running]
