"""Fast-path decisions: which destinations are overridden, with which next hops, until when.

Pure: inputs and the time come in, writes and events go out. The rules are numbered as in section 5 of the measurements
that specified it:

5. An override is FRR's route without its dead hops. There is none without a dead hop in FRR's route, none without a
   live hop left, and never a hop that FRR does not have.
6. A remote failure signal affects only the route to its sender.
8. It ends as soon as FRR's route lacks the dead hops, or is withdrawn; else after T_max, unless the uplink is still
   dead locally. A remote signal always expires after T_max. An uplink that recovers causes no other write.
9. An override older than T_max raises an alarm.
11. Flap damping: too many faults of an uplink, or no live uplink, suspend overrides for some time.
2. With an input lost: no new overrides.

A fault is an event (a session leaves the state up, a carrier is lost). The state alone never causes an override: a
session that was never up may belong to a switch without BFD.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from services.fastpath.values import (
    DOWN,
    UP,
    Announce,
    Cause,
    FaultCount,
    FaultMark,
    FrrRoute,
    Hop,
    Limits,
    Outcome,
    Overridden,
    Override,
    RemovalReason,
    Removed,
    Status,
    Uplink,
    Write,
)

BFDD: Final = "bfdd"
"""The input of BFD sessions."""
REMOTE_SIGNALS: Final = frozenset({Cause.PEER, Cause.BGP})
"""Causes that others report: they expire at T_max."""
_NEVER: Final = float("inf")


class OverrideDecisions:
    """State machine of the fast path. Each input returns the resulting writes and events."""

    def __init__(self, uplinks: Iterable[str], limits: Limits) -> None:
        self.uplinks = {name: Uplink(name) for name in uplinks}
        self.routes: dict[str, FrrRoute] = {}
        """FRR's, by destination."""
        self.overrides: dict[str, Override] = {}
        self.lost_inputs: dict[str, str] = {}
        """Inputs that are lost, and why."""
        self.flap_damped_until_s = -_NEVER
        self._limits = limits
        self._by_index: dict[int, Uplink] = {}
        self._dead: frozenset[int] = frozenset()
        self._due_s = _NEVER
        self._remote_faults: dict[str, FaultCount] = {}
        self._ignored_until_s: dict[str, float] = {}
        self._out = Outcome.nothing()

    # -- inputs ------------------------------------------------------------------------------------------------

    def link(self, name: str, ifindex: int, *, carrier: bool, now_s: float) -> Outcome:
        """A link exists (ifindex 0: was deleted), with or without carrier."""
        uplink = self.uplinks[name]
        was_dead, had_carrier = uplink.dead, uplink.carrier
        uplink.carrier = carrier
        self._refresh_dead(now_s)
        if not carrier and had_carrier and not was_dead:
            self._fault(uplink, Cause.CARRIER, now_s)
        self._avoid_dead_hops(uplink, now_s)
        if ifindex != uplink.ifindex:
            self._by_index.pop(uplink.ifindex, None)
            uplink.ifindex = ifindex
            if ifindex:
                self._by_index[ifindex] = uplink
        self._refresh_dead(now_s)
        return self._output(now_s)

    def bfd(self, name: str, state: str | None, now_s: float) -> Outcome:
        """The state of an uplink's session; None: no session, or unknown."""
        uplink = self.uplinks[name]
        was_dead, before = uplink.dead, uplink.bfd
        uplink.session_is(state, now_s, self._limits)
        self._refresh_dead(now_s)
        if before == UP and state in DOWN and not was_dead:
            self._fault(uplink, Cause.BFD, now_s)
        self._avoid_dead_hops(uplink, now_s)
        return self._output(now_s)

    def update_routes(self, routes: Mapping[str, FrrRoute | None], now_s: float) -> Outcome:
        """FRR's routes to these destinations changed; None: withdrawn."""
        for destination, route in routes.items():
            self._route(destination, route, now_s)
        return self._output(now_s)

    def replace_routes(self, routes: Mapping[str, FrrRoute], now_s: float) -> Outcome:
        """FRR's complete routes, after a dump."""
        for destination in self.routes.keys() - routes.keys():
            self._route(destination, None, now_s)
        for destination, route in routes.items():
            if self.routes.get(destination) != route:
                self._route(destination, route, now_s)
        return self._output(now_s)

    def peer_fault(self, destination: str, tor: str, now_s: float) -> tuple[str, Outcome]:
        """The host ``destination`` signals that it is unreachable through a ToR; returns the result's counter."""
        return self._peer(destination, tor, now_s), self._output(now_s)

    def bgp_closed(self, name: str, now_s: float) -> Outcome:
        """The switch at an uplink closed its BGP session: it may not receive from here, and FRR will soon avoid it.

        Ignored on an uplink that FRR does not use: two connections of a new session may collide (RFC 4271, 6.8).
        """
        uplink = self.uplinks[name]
        early = now_s < max(self.flap_damped_until_s, uplink.closing_until_s)
        ignored = self.lost_inputs or early or uplink.dead or not uplink.ifindex
        used = any(hop.ifindex == uplink.ifindex for route in self.routes.values() for hop in route.hops)
        if used and not ignored and not self._exceeds_rate(f"the switch at {name}", now_s):
            self._override_uplink(uplink, FaultMark(now_s, Cause.BGP), now_s)
        return self._output(now_s)

    def set_router_ids(self, router_ids: Mapping[str, str]) -> None:
        """Set the router id of the ToR at each uplink; uplinks not named keep theirs."""
        for name, router_id in router_ids.items():
            if name in self.uplinks:
                self.uplinks[name].tor = router_id

    def input_lost(self, what: str, reason: str, now_s: float) -> Outcome:
        """An input is lost (rule 2); with `BFDD` all sessions become unknown."""
        if what == BFDD:
            for uplink in self.uplinks.values():
                uplink.bfd = None
            self._refresh_dead(now_s)
        if what not in self.lost_inputs:
            self._out.statuses.append(Status("input_lost", f"{what}: {reason}", alarm=True))
        self.lost_inputs[what] = reason
        return self._output(now_s)

    def input_restored(self, what: str, now_s: float) -> Outcome:
        """An input is restored, with its complete state."""
        if self.lost_inputs.pop(what, None) is not None:
            rest = f"; still without {', '.join(self.lost_inputs)}" if self.lost_inputs else ""
            self._out.statuses.append(Status("input_restored", f"{what} is back{rest}"))
        return self._output(now_s)

    def override_rejected(self, destination: str, reason: str, now_s: float) -> Outcome:
        """The kernel rejected an override."""
        if destination in self.overrides:
            self._remove(destination, RemovalReason.REFUSED, now_s)
            self._out.statuses.append(Status("refused", f"override of {destination}: {reason}", alarm=True))
        return self._output(now_s)

    def routes_deleted(self, destinations: Iterable[str], reason: RemovalReason, now_s: float) -> Outcome:
        """These overrides were deleted externally; no write follows."""
        for destination in destinations:
            if destination in self.overrides:
                self._remove(destination, reason, now_s)
        outcome = self._output(now_s)
        outcome.writes.clear()
        return outcome

    def all_routes_deleted(self, reason: RemovalReason, now_s: float) -> Outcome:
        """All overrides were deleted externally; no write follows."""
        self._remove_all(reason, now_s)
        outcome = self._output(now_s)
        outcome.writes.clear()
        return outcome

    def tick(self, now_s: float) -> Outcome:
        """Time has passed."""
        return self._output(now_s)

    @property
    def due_s(self) -> float:
        """When the next `tick` is due."""
        return self._due_s

    @property
    def flap_damped(self) -> bool:
        """Whether overrides are suspended by flap damping, as of the last input."""
        return self.flap_damped_until_s > -_NEVER

    # -- faults ------------------------------------------------------------------------------------------------

    def _refresh_dead(self, now_s: float) -> None:
        dead = frozenset(u.ifindex for u in self.uplinks.values() if u.dead and u.ifindex)
        if self._dead - dead:
            self._due_s = now_s  # an override for this uplink may have expired
        self._dead = dead

    def _fault(self, uplink: Uplink, cause: Cause, now_s: float) -> None:
        if uplink.faults.add(now_s, self._limits):
            times = f"{len(uplink.faults.times_s)} faults within {self._limits.damper_window_s:g} s"
            self._damp(f"{uplink.name}: {times}", uplink.name, now_s)
        elif all(other.dead for other in self.uplinks.values()):
            self._damp("no uplink is alive", uplink.name, now_s)
        elif now_s < self.flap_damped_until_s:
            self._suppress(uplink, cause, "flap damped")
        elif self.lost_inputs:
            self._suppress(uplink, cause, f"input lost: {', '.join(self.lost_inputs)}")
        else:
            self._override_uplink(uplink, FaultMark(now_s, cause), now_s)
            self._out = self._out._replace(announce=Announce(uplink.name, uplink.tor))

    def _override_uplink(self, uplink: Uplink, mark: FaultMark, now_s: float) -> None:
        """Override wherever FRR uses the uplink."""
        for destination, route in self.routes.items():
            if any(hop.ifindex == uplink.ifindex for hop in route.hops):
                self._mark(destination, route, {uplink.ifindex: mark}, now_s)

    def _avoid_dead_hops(self, uplink: Uplink, now_s: float) -> None:
        """Whatever the cause, also with an input lost: no override keeps a dead hop."""
        if not uplink.dead or not uplink.ifindex:
            return
        for destination, override in list(self.overrides.items()):
            if any(hop.ifindex == uplink.ifindex for hop in override.route.hops):
                self._reconsider(destination, self.routes[destination], override.marks, now_s)

    def _suppress(self, uplink: Uplink, cause: Cause, why: str) -> None:
        reason = f"{uplink.name} is down ({cause}), left to FRR: {why}"
        self._out.statuses.append(Status("suppressed", reason, alarm=True, uplink=uplink.name))

    def _damp(self, why: str, uplink: str, now_s: float) -> None:
        until_s = now_s + self._limits.damper_hold_s
        reason = f"{why}: no overrides for {self._limits.damper_hold_s:g} s, FRR alone is in charge"
        self._out.statuses.append(Status("flap_damped", reason, alarm=True, uplink=uplink))
        self.flap_damped_until_s = until_s
        self._due_s = min(self._due_s, until_s)
        self._remove_all(RemovalReason.FLAP_DAMPED, now_s)

    def _peer(self, destination: str, tor: str, now_s: float) -> str:
        marks = {u.ifindex: FaultMark(now_s, Cause.PEER) for u in self.uplinks.values() if u.ifindex and u.tor == tor}
        route = self.routes.get(destination)
        if not tor or not marks:
            return "unknown_tor"
        if route is None:
            return "no_route"
        if self.lost_inputs:
            return "input_lost"
        if now_s < self.flap_damped_until_s:
            return "flap_damped"
        if self._exceeds_rate(destination, now_s):
            return "flap_damped"
        named = {hop.ifindex for hop in route.hops}
        known = self._marks_of(destination)
        # A repeated signal does not extend an override: an earlier mark keeps its time.
        marks = {index: mark for index, mark in marks.items() if index in named and index not in known}
        return "applied" if marks and self._mark(destination, route, marks, now_s) else "nothing_to_do"

    def _exceeds_rate(self, source: str, now_s: float) -> bool:
        """Rule 11 for remote signals."""
        if now_s < self._ignored_until_s.get(source, -_NEVER):
            return True
        if not self._remote_faults.setdefault(source, FaultCount()).add(now_s, self._limits):
            return False
        self._ignored_until_s[source] = now_s + self._limits.damper_hold_s
        reason = f"{source} signalled too many faults: ignored for {self._limits.damper_hold_s:g} s"
        self._out.statuses.append(Status("peer_flap_damped", reason, alarm=True, peer=source))
        return True

    def _marks_of(self, destination: str) -> Mapping[int, FaultMark]:
        return self.overrides[destination].marks if destination in self.overrides else {}

    # -- overrides ---------------------------------------------------------------------------------------------

    def _mark(self, destination: str, route: FrrRoute, marks: dict[int, FaultMark], now_s: float) -> bool:
        """Override with these hops marked as well; False: nothing was written."""
        override = self.overrides.get(destination)
        if override is not None:
            marks = override.marks | marks
        live = self._live(route.hops, marks)
        if live is None:
            if override is not None:
                self._remove(destination, RemovalReason.NO_LIVE_HOP, now_s)
            return False
        self._due_s = min(self._due_s, now_s + self._limits.t_max_s)
        return self._install(destination, route._replace(hops=live), marks, now_s)

    def _live(self, hops: tuple[Hop, ...], marks: Mapping[int, FaultMark]) -> tuple[Hop, ...] | None:
        """Next hops of an override; None: no override is possible."""
        dead = self._dead
        live = tuple(hop for hop in hops if hop.ifindex not in marks and hop.ifindex not in dead)
        if not live:  # a local fault takes precedence over expired faults and remote signals
            live = tuple(hop for hop in hops if hop.ifindex not in dead)
        return live if live and len(live) < len(hops) else None

    def _install(self, destination: str, route: FrrRoute, marks: dict[int, FaultMark], now_s: float) -> bool:
        override = self.overrides.get(destination)
        if override is None:
            self.overrides[destination] = Override(marks, route, now_s)
        else:
            override.marks = marks
            if override.route == route:
                return False
            override.route = route
        self._out.writes.append(Write(destination, route))
        self._out.overridden.append(Overridden(destination, self.routes[destination].hops, route.hops))
        return True

    def _route(self, destination: str, route: FrrRoute | None, now_s: float) -> None:
        if route is None:
            self.routes.pop(destination, None)
        else:
            self.routes[destination] = route
        override = self.overrides.get(destination)
        if override is None:
            return
        if route is None:
            self._remove(destination, RemovalReason.FRR_WITHDREW, now_s)
            return
        named = {hop.ifindex for hop in route.hops}
        self._reconsider(
            destination, route, {index: mark for index, mark in override.marks.items() if index in named}, now_s
        )

    def _reconsider(self, destination: str, route: FrrRoute, marks: dict[int, FaultMark], now_s: float) -> None:
        """Recompute an override after its marks or FRR's route changed."""
        live = self._live(route.hops, marks) if marks else None
        if not marks:
            self._remove(destination, RemovalReason.FRR_CONVERGED, now_s)
        elif live is None:
            self._remove(destination, RemovalReason.NO_LIVE_HOP, now_s)
        else:
            self._install(destination, route._replace(hops=live), marks, now_s)

    def _remove(self, destination: str, reason: RemovalReason, now_s: float) -> None:
        override = self.overrides.pop(destination)
        names = tuple(self._by_index[index].name for index in override.marks if index in self._by_index)
        causes = "+".join(sorted({str(mark.cause) for mark in override.marks.values()}))
        route = self.routes.get(destination)
        self._out.writes.append(Write(destination, None))
        self._out.removed.append(
            Removed(
                destination,
                names,
                causes,
                reason,
                now_s - override.since_s,
                override.route.hops,
                route.hops if route is not None else (),
            )
        )

    def _remove_all(self, reason: RemovalReason, now_s: float) -> None:
        for destination in list(self.overrides):
            self._remove(destination, reason, now_s)

    # -- time --------------------------------------------------------------------------------------------------

    def _output(self, now_s: float) -> Outcome:
        """Collect the pending output."""
        if now_s >= self._due_s:
            self._expire(now_s)
        outcome, self._out = self._out, Outcome.nothing()
        return outcome

    def _expire(self, now_s: float) -> None:
        """Apply rule 8's T_max, rule 9's alarm, the end of rule 11's suspension."""
        if self.flap_damped and now_s >= self.flap_damped_until_s:
            self.flap_damped_until_s = -_NEVER
            self._out.statuses.append(Status("flap_damping_ended", "no faults any more: overrides are installed again"))
        due_s = self.flap_damped_until_s if self.flap_damped else _NEVER
        not_converging: list[str] = []
        for destination, override in list(self.overrides.items()):
            marks = {index: mark for index, mark in override.marks.items() if not self._is_expired(index, mark, now_s)}
            if not marks:
                self._remove(destination, RemovalReason.TIMEOUT, now_s)
                continue
            if len(marks) < len(override.marks):
                self._reconsider(destination, self.routes[destination], marks, now_s)
            ends_s = [mark.since_s + self._limits.t_max_s for mark in marks.values()]
            due_s = min([due_s, *(end_s for end_s in ends_s if end_s > now_s)])
            if min(ends_s) <= now_s and not override.alarmed:
                override.alarmed = True
                not_converging.append(destination)
        self._due_s = due_s
        if not_converging:
            self._out.statuses.append(self._not_converging(not_converging))

    def _not_converging(self, destinations: list[str]) -> Status:
        some = ", ".join(destinations[:3]) + (f" and {len(destinations) - 3} more" if len(destinations) > 3 else "")
        return Status(
            "not_converging", f"FRR still uses a dead hop after {self._limits.t_max_s:g} s: {some}", alarm=True
        )

    def _is_expired(self, index: int, mark: FaultMark, now_s: float) -> bool:
        if now_s < mark.since_s + self._limits.t_max_s:
            return False
        return mark.cause in REMOTE_SIGNALS or index not in self._dead
