"""Checks of the network edge for `turnbuckle doctor`: kernel features, privileges, FRR, fast path."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from services._edge.fast_path_heartbeat import GROUP
from services._edge.frr import DIRECTORY, Frr, FrrError
from services._edge.kernel_support import FEATURES, CannotTryError, Feature, missing_features
from services._host.instance_lock import namespace_lock_path
from services._host.netns import inside
from services._runtime.command.finding import Finding, Level
from services.fabric.access import SOCKET, access_of, exposure_of
from services.fabric.paths import STATE_DIRECTORY
from services.fastpath.settings import SHORTEST_KEY, FastPathSettings
from services.reconciler.settings import ReconcilerSettings

PATHSPACE_VARIABLE: Final = ReconcilerSettings.variable("frr_pathspace")
OLDEST_FRR: Final = (8, 0)
DAEMONS: Final = ("zebra", "bgpd", "bfdd")
_PROGRAMS: Final = (Path("/usr/lib/frr"), Path("/usr/libexec/frr"), Path("/usr/local/sbin"))
_NET_ADMIN: Final = 12
_NET_RAW: Final = 13
_PREFIXES: Final = (ReconcilerSettings.variable(""), FastPathSettings.variable(""))
"""Of the variables of a reconciler and a fast path."""
_NETLINK_SOCKETS: Final = Path("/proc/thread-self/net/netlink")
_ROUTE: Final = "0"
"""NETLINK_ROUTE."""
_BRIDGED_FRAMES: Final = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")
_VERSION: Final = re.compile(r"FRRouting (?P<text>(?P<major>\d+)\.(?P<minor>\d+)\S*)")
_NO_NEXTHOPS: Final = "no zebra nexthop kernel enable"


def check_kernel(find: Callable[[], Mapping[Feature, str]] = missing_features) -> list[Finding]:
    """Bridge, VXLAN, clsact, flower, tunnel_key, mirred: tried in a scratch network namespace."""
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
    if _capabilities(status) >> _NET_ADMIN & 1:
        return Finding("network rights", Level.OK, "CAP_NET_ADMIN")
    mend = "sudo, or AmbientCapabilities=CAP_NET_ADMIN in the reconciler's unit"
    return Finding("network rights", Level.MISSING, "no CAP_NET_ADMIN: no tc rule can be written", mend)


def _capabilities(status: str | None) -> int:
    text = Path("/proc/self/status").read_text(encoding="ascii") if status is None else status
    line = next((line for line in text.splitlines() if line.startswith("CapEff:")), "CapEff: 0")
    return int(line.split()[1], 16)


def check_fast_path_rights(status: str | None = None) -> Finding:
    """Whether overrides may be written, and switches be watched."""
    held = _capabilities(status)
    problems = {
        "no CAP_NET_ADMIN: no override can be written": held >> _NET_ADMIN & 1,
        "no CAP_NET_RAW: a switch that closes its BGP session is not noticed": held >> _NET_RAW & 1,
    }
    lacking = [problem for problem, there in problems.items() if not there]
    if not lacking:
        return Finding("fast path rights", Level.OK, "CAP_NET_ADMIN, CAP_NET_RAW")
    mend = "sudo, or AmbientCapabilities=CAP_NET_ADMIN CAP_NET_RAW in the fast path's unit"
    return Finding("fast path rights", Level.MISSING, "; ".join(lacking), mend)


def check_fabric_key(environ: Mapping[str, str]) -> Finding:
    """Whether this host can receive signals of other hosts' faults, and whether others could forge them."""
    name, variable = "fabric key", FastPathSettings.variable("fabric_key")
    if environ.get(variable):
        found = f"{variable} stands in the environment, which every child process inherits"
        return Finding(name, Level.NOTE, found, f"put it into a file of mode 600, and set {variable}_FILE")
    if not environ.get(f"{variable}_FILE"):
        found = f"{variable}_FILE is not set here: without it hosts do not signal faults to each other"
        return Finding(name, Level.NOTE, found, "openssl rand -hex 32 > fabric.key, the same on all hosts, mode 600")
    path = Path(environ[f"{variable}_FILE"]).expanduser()
    try:
        key, mode = path.read_text(encoding="utf-8").strip(), path.stat().st_mode & 0o777
    except (OSError, UnicodeDecodeError) as error:
        mend = f"copy another host's, or openssl rand -hex 32 > {path}; chmod 600 {path}"
        return Finding(name, Level.MISSING, f"{path} cannot be read: {getattr(error, 'strerror', error)}", mend)
    if len(key.encode()) < SHORTEST_KEY:
        found = f"{path} holds fewer than {SHORTEST_KEY} characters: the fast path does not start"
        return Finding(name, Level.MISSING, found, f"openssl rand -hex 32 > {path}, the same on all hosts")
    if mode & 0o077:
        found = f"{path} has mode {mode:03o}: others than its owner can use it to signal false faults"
        return Finding(name, Level.NOTE, found, f"chmod 600 {path}")
    return Finding(name, Level.OK, f"{path}, mode {mode:03o}")


def check_bfdd_socket(environ: Mapping[str, str]) -> Finding:
    """Whether the fast path receives BFD state, and which other users reach bfdd's socket."""
    pathspace = FastPathSettings.variable("frr_pathspace")
    directory = Path(environ.get(FastPathSettings.variable("frr_directory")) or DIRECTORY)
    directory /= environ.get(pathspace) or ""
    try:
        exposure = exposure_of(directory)
    except OSError as error:
        mend = f"turnbuckle fabric up, systemctl start frr, or set {pathspace} or ..._DIRECTORY"
        found = f"{error.filename}: {error.strerror}: the fast path has no BFD input until bfdd runs"
        return Finding("bfdd socket", Level.MISSING, found, mend)
    if exposure is not None:
        found = f"{exposure.who} may shut BFD sessions at {directory / SOCKET}, directory {exposure.found}"
        return Finding("bfdd socket", Level.NOTE, found, f"turnbuckle fabric up, or {exposure.remedy}")
    return Finding("bfdd socket", Level.OK, f"{directory / SOCKET}, directory {access_of(directory)}")


def check_fast_path_guard(environ: Mapping[str, str], sockets: str | None = None) -> list[Finding]:
    """Whether a reconciler would empty the table of a fast path that is frozen or killed as a whole.

    Args:
        environ: this process' variables.
        sockets: content of ``/proc/net/netlink``; None: that of the fast path's network namespace.
    """
    name, configured = "fast path guard", FastPathSettings.variable("uplinks") in environ
    try:
        if sockets is None:
            with inside(environ.get(FastPathSettings.variable("netns"))):
                sockets = _NETLINK_SOCKETS.read_text(encoding="ascii")
    except OSError as error:
        return [Finding(name, Level.NOTE, f"not examined: {error.strerror}")] if configured else []
    rows = (line.split() for line in sockets.splitlines()[1:])
    if any(row[1] == _ROUTE and int(row[3], 16) >> (GROUP - 1) & 1 for row in rows if len(row) > 3):
        return [Finding(name, Level.OK, "a reconciler listens to the fast path's heartbeat")]
    found = "no reconciler listens to the fast path's heartbeat: overrides stay where all its processes freeze or die"
    return [Finding(name, Level.NOTE, found, "start a reconciler in the same network namespace")] if configured else []


def check_bridged_frames(setting: Path = _BRIDGED_FRAMES) -> Finding:
    """Whether frames that cross the fabric's bridge are filtered on their way."""
    try:
        filtered = setting.read_text(encoding="ascii").strip() != "0"
    except OSError:
        return Finding("bridged frames", Level.OK, "pass no iptables (br_netfilter is not loaded)")
    if not filtered:
        return Finding("bridged frames", Level.OK, f"pass no iptables ({setting.name}=0)")
    found = f"pass iptables ({setting.name}=1): a FORWARD policy of DROP, as Docker sets, ends what crosses the bridge"
    return Finding("bridged frames", Level.NOTE, found, f"sysctl -w net.bridge.{setting.name}=0")


def check_frr_installed(directories: tuple[Path, ...] = _PROGRAMS) -> Finding:
    """Whether the daemons that THORN needs are there."""
    lacking = [
        daemon for daemon in DAEMONS if not any(os.access(candidate / daemon, os.X_OK) for candidate in directories)
    ]
    if lacking:
        return Finding("frr", Level.MISSING, f"not installed: {', '.join(lacking)}", "apt-get install frr")
    return Finding("frr", Level.OK, f"{', '.join(DAEMONS)} are installed")


async def check_frr_running(frr: Frr) -> list[Finding]:
    """Which daemons answer, FRR's version, and the setting that a kernel route's next hops depend on."""
    answers: dict[str, str] = {}
    problems: list[str] = []
    for daemon in DAEMONS:
        try:
            answers[daemon] = await frr.ask(daemon, "show version")
        except FrrError as error:
            problems.append(str(error))
    if not answers:
        mend = f"turnbuckle fabric up, systemctl start frr, or set {PATHSPACE_VARIABLE}"
        return [Finding("frr daemons", Level.MISSING, f"none answers at {frr.directory}", mend)]
    findings = [_version(next(iter(answers.values())))]
    if problems:
        mend = "enable them in /etc/frr/daemons, then systemctl restart frr"
        findings.append(Finding("frr daemons", Level.MISSING, "; ".join(problems), mend))
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
    fast_path = [check_fast_path_rights(), check_fabric_key(os.environ)]
    if installed.level is Level.OK:
        fast_path.append(check_bfdd_socket(os.environ))
    fast_path += check_fast_path_guard(os.environ)
    return [*kernel, check_net_admin(), check_bridged_frames(), installed, *running, *fast_path]


def network_edge_evidence(
    environ: Mapping[str, str], fabric_state: Path, locks: Path, *, frr_installed: bool
) -> list[str]:
    """What says that a fabric, a reconciler or a fast path is set up here; empty: nothing does."""
    found = [name for name in sorted(environ) if name.startswith(_PREFIXES)]
    found += [str(directory) for directory in (fabric_state, locks) if _has_entries(directory)]
    return [*found, "FRR is installed"] if frr_installed else found


def _has_entries(directory: Path) -> bool:
    try:
        return any(directory.iterdir())
    except OSError:
        return False


async def check_network_edge(*, requested: bool) -> list[Finding]:
    """The checks of the network edge where there is one, or where they are requested; else one line."""
    frr = check_frr_installed().level is Level.OK
    if requested or network_edge_evidence(os.environ, STATE_DIRECTORY, _lock_directory(), frr_installed=frr):
        return await run_network_checks()
    found = "not used here (no fabric, no FRR, no reconciler): not examined; `turnbuckle doctor --network` does"
    return [Finding("network edge", Level.OK, found)]


def _lock_directory() -> Path:
    """Of reconcilers and fast paths."""
    given = os.environ.get(ReconcilerSettings.variable("state_directory"))
    return namespace_lock_path(Path(given or ReconcilerSettings.model_fields["state_directory"].default), None).parent
