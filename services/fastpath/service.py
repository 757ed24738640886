"""Fast-path service: starts the data-plane process, sends it the switches' router ids, publishes its events."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Collection, Mapping
from importlib.metadata import version
from typing import Any, ClassVar

from schemas.network import RouteEvent
from schemas.subjects import ROUTE_EVENTS
from services._edge.frr import Frr, FrrError
from services._host.netlink.attributes import NetlinkError
from services._runtime.service.app import Runtime
from services._runtime.service.settings import CommonSettings
from services._runtime.settings_error import UnusableSettingsError
from services.fastpath.kernel import FastPathKernel
from services.fastpath.settings import FastPathSettings
from services.fastpath.supervisor import Supervisor, take_lock
from services.fastpath.values import ADMIN_DOWN

_UNKNOWN = "0.0.0.0"  # noqa: S104 - bgpd's router id of a neighbour without a session
ROUTER_ID_INTERVAL_S: float = 30.0
ROUTER_ID_RETRY_S: float = 1.0
"""While the router id of an uplink's switch is unknown."""


class FastPath:
    """Takes dead next hops out of use ahead of FRR, and publishes what it did."""

    name: ClassVar[str] = "fast_path"
    version: ClassVar[str] = version("turnbuckle")
    settings_class: ClassVar[type[CommonSettings]] = FastPathSettings
    bus_wait_s: ClassVar[float] = 0.0
    """The fast path works without a server."""

    def __init__(self, runtime: Runtime[FastPathSettings]) -> None:
        self._runtime = runtime
        self._settings = runtime.settings
        self._log = runtime.log
        self._bus = runtime.bus
        self._incarnation = runtime.clock.time_ns()
        self._seq = 0
        self._state: dict[str, Any] = {}
        self._router_ids_wanted = asyncio.Event()
        self._router_ids: dict[str, str] = {}
        self.supervisor: Supervisor | None = None

    async def start(self) -> None:
        """Remove what an earlier instance left, start the data-plane process."""
        settings = self._settings
        lock = await take_lock(settings.state_directory, settings.netns, settings.node)
        config = settings.config()
        try:
            with FastPathKernel(settings.netns, config.override_tables) as kernel:
                left = kernel.clear()
        except (OSError, NetlinkError) as error:
            raise UnusableSettingsError(f"routes cannot be written ({error}): run as root") from error
        if left:
            self._log.warning("stale_routes_flushed", routes=left)
        if settings.fabric_key is None:
            remedy = "set TURNBUCKLE_FAST_PATH__FABRIC_KEY_FILE, the same on all hosts"
            self._log.warning("peer_signalling_disabled", remedy=remedy)
        self.supervisor = Supervisor(config, lock, self._on_message)
        self._register_metrics()
        self._runtime.spawn(self.supervisor.run(), name="supervisor")
        self._runtime.spawn(self._poll_router_ids(self.supervisor), name="router ids")

    async def stop(self) -> None:
        """Hand everything back to FRR."""
        await self._runtime.cancel_tasks()
        if self.supervisor is not None:
            await self.supervisor.stop("the service stops")

    def not_ready(self) -> str | None:
        """Why no override would be installed now, or None."""
        if not self._state:
            return "the data-plane process has not reported yet"
        if self._state["lost_inputs"]:
            return "input lost: " + "; ".join(f"{what}: {why}" for what, why in self._state["lost_inputs"].items())
        if self._state["flap_damped"]:
            return "flap damping: too many faults, FRR alone is in charge"
        return None

    # -- the data-plane process -------------------------------------------------------------------------------

    def _on_message(self, message: dict[str, Any]) -> None:
        if "event" in message:
            self._publish(message["event"])
        elif "state" in message:
            self._state = message["state"]
            if self._state["wants_router_ids"]:
                self._router_ids_wanted.set()
        elif "ended" in message:
            self._state = {}
            code = message["ended"]
            self._log.error("data_plane_process_exited", code=code)
            reason = (
                f"the data-plane process has exited ({code}); the watchdog has emptied its table; it is started again"
            )
            now_ns = self._runtime.clock.time_ns()
            self._publish(
                {"kind": "fast_path", "cause": "restarted", "time_ns": now_ns, "alarm": True, "reason": reason}
            )

        elif "not_emptied" in message:
            remedy = "run python -I -m services.fastpath.flush; the reconciler deletes active overrides, too"
            self._log.error("override_table_not_emptied", error=message["not_emptied"], remedy=remedy)

    def _publish(self, fields: dict[str, Any]) -> None:
        self._seq += 1
        settings = self._settings
        event = RouteEvent.model_validate(
            {
                **fields,
                "node": settings.node,
                "incarnation": self._incarnation,
                "seq": self._seq,
                "source": self.name,
                "time_ns": fields["time_ns"],
            }
        )
        subject = ROUTE_EVENTS.subject(self._bus.root, node=settings.node)
        self._bus.publish_event(
            subject, event, message_id=f"{self.name}-{settings.node}-{self._incarnation}-{self._seq}"
        )
        log = self._log.warning if event.alarm else self._log.info
        log(
            str(event.kind),
            cause=event.cause,
            destination=event.destination,
            interface=event.interface,
            latency_us=event.latency_us,
            reason=event.reason,
        )

    async def _poll_router_ids(self, supervisor: Supervisor) -> None:
        """Query bgpd for the switch at each uplink: at the start, when an uplink comes up, periodically."""
        frr = Frr(self._settings.frr_pathspace, directory=self._settings.frr_directory)
        while True:
            try:
                neighbours = await frr.show_json("bgpd", "show bgp neighbors json")
            except FrrError as error:
                self._log.debug("bgpd_query_failed", error=str(error))
            else:
                found = router_ids(neighbours, self._settings.uplinks, self._state.get("sessions", {}))
                if found != self._router_ids:
                    self._router_ids = self._router_ids | found
                    self._log.info("switch_router_ids", **self._router_ids)
                    supervisor.send_router_ids(self._router_ids)
            all_known = set(self._settings.uplinks) <= self._router_ids.keys()
            pause_s = ROUTER_ID_INTERVAL_S if all_known else ROUTER_ID_RETRY_S
            self._router_ids_wanted.clear()
            try:
                async with asyncio.timeout(pause_s):
                    await self._router_ids_wanted.wait()
            except TimeoutError:
                continue
            await asyncio.sleep(ROUTER_ID_RETRY_S)  # the BGP session follows the BFD session

    def _admin_down(self) -> int:
        """Uplinks whose BFD session was closed administratively."""
        return sum(row[2] in ADMIN_DOWN for row in self._state.get("uplinks", {}).values())

    def _register_metrics(self) -> None:
        observe = self._runtime.telemetry.observe

        def count(name: str) -> float:
            return float(self._state.get("counts", {}).get(name, 0))

        observe("turnbuckle_fast_path_overrides_total", lambda: count("overrides"))
        observe("turnbuckle_fast_path_removed_overrides_total", lambda: count("removals"))
        observe("turnbuckle_fast_path_faults_total", lambda: count("faults"))
        observe("turnbuckle_fast_path_refused_writes_total", lambda: count("refused"))
        observe("turnbuckle_fast_path_loop_stalls_total", lambda: count("stalls"))
        observe("turnbuckle_fast_path_active_overrides", lambda: float(self._state.get("active_overrides", 0)))
        observe("turnbuckle_fast_path_routes", lambda: float(self._state.get("routes", 0)))
        observe("turnbuckle_fast_path_input_lost_info", lambda: float(bool(self._state.get("lost_inputs", True))))
        observe("turnbuckle_fast_path_admin_down_sessions", lambda: float(self._admin_down()))
        observe("turnbuckle_fast_path_flap_damped_info", lambda: float(bool(self._state.get("flap_damped", False))))
        self._runtime.telemetry.observe_by_label(
            "turnbuckle_fast_path_peer_messages_total", "kind", lambda: self._state.get("peers", {})
        )


def router_ids(neighbours: Any, uplinks: Collection[str], sessions: Mapping[str, str]) -> dict[str, str]:
    """Known router ids of the switches by uplink, from bgpd's ``show bgp neighbors json``.

    Args:
        neighbours: the parsed answer: an object by neighbour, named by interface (unnumbered) or address.
        uplinks: names of the links.
        sessions: uplink by the address of a BFD peer, by which numbered neighbours are identified.
    """
    found: dict[str, str] = {}
    if not isinstance(neighbours, dict):
        return found
    for name, neighbour in neighbours.items():
        uplink = name if name in uplinks else sessions.get(name)
        router_id = neighbour.get("remoteRouterId") if isinstance(neighbour, dict) else None
        if uplink is None or not isinstance(router_id, str) or router_id == _UNKNOWN:
            continue
        try:
            found[uplink] = str(ipaddress.IPv4Address(router_id))
        except ValueError:
            continue
    return found
