"""The fast path's decisions: which destinations are overridden, with which hops, until when.

Pure: inputs and the time come in, writes and things to tell go out. The rules are numbered as in section 5 of the
measurements that it was specified by:

5. An override is FRR's route without its dead hops. There is none without a dead hop in FRR's route, none without a
   live hop left, and never a hop that FRR does not have.
6. Another host's word counts for the route to that host only.
8. It ends as soon as FRR's route lacks the dead hops, or is gone; else after T_max, unless the uplink is still dead
   here. What another host said always ends after T_max. An uplink that recovers causes no write but that.
9. Held for longer than T_max: alarm.
11. Too many faults of an uplink, or no live uplink: no overrides for some time.
2. Blind, that is with an input lost: no new overrides.

A fault is an event (a session that leaves the state up, a carrier that vanishes). The state alone never makes an
override: a session that was never up may belong to a switch that does not know BFD.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from services.fastpath.values import (
    DOWN,
    UP,
    Cause,
    FaultCount,
    FrrRoute,
    Hop,
    Limits,
    Mark,
    Outcome,
    Overridden,
    Override,
    Release,
    Released,
    Status,
    Tell,
    Uplink,
    Write,
)

BFDD: Final = "bfdd"
"""The input that sessions come from."""
WORDS: Final = frozenset({Cause.PEER, Cause.BGP})
"""What others say: it dies at T_max, whatever happens."""
_NEVER: Final = float("inf")


class FastPathCore:
    """All state of the fast path. Each input returns what is due because of it."""

    def __init__(self, uplinks: Iterable[str], limits: Limits) -> None:
        self.uplinks = {name: Uplink(name) for name in uplinks}
        self.routes: dict[str, FrrRoute] = {}
        """FRR's, by destination."""
        self.overrides: dict[str, Override] = {}
        self.blind: dict[str, str] = {}
        """Inputs that are lost, and why."""
        self.damped_until_s = -_NEVER
        self._limits = limits
        self._by_index: dict[int, Uplink] = {}
        self._dead: frozenset[int] = frozenset()
        self._due_s = _NEVER
        self._peers: dict[str, FaultCount] = {}
        self._ignored: dict[str, float] = {}
        self._out = Outcome.nothing()

    # -- inputs ------------------------------------------------------------------------------------------------

    def link(self, name: str, ifindex: int, *, carrier: bool, now_s: float) -> Outcome:
        """A link is there (ifindex 0: has gone), with or without carrier."""
        uplink = self.uplinks[name]
        was_dead, had_carrier = uplink.dead, uplink.carrier
        uplink.carrier = carrier
        self._refresh_dead(now_s)
        if not carrier and had_carrier and not was_dead:
            self._fault(uplink, Cause.CARRIER, now_s)
        self._leave_the_dead(uplink, now_s)
        if ifindex != uplink.ifindex:
            self._by_index.pop(uplink.ifindex, None)
            uplink.ifindex = ifindex
            if ifindex:
                self._by_index[ifindex] = uplink
        self._refresh_dead(now_s)
        return self._take(now_s)

    def bfd(self, name: str, state: str | None, now_s: float) -> Outcome:
        """The state of an uplink's session; None: there is none (any more), or it is not known."""
        uplink = self.uplinks[name]
        was_dead, before = uplink.dead, uplink.bfd
        uplink.session_is(state, now_s, self._limits)
        self._refresh_dead(now_s)
        if before == UP and state in DOWN and not was_dead:
            self._fault(uplink, Cause.BFD, now_s)
        self._leave_the_dead(uplink, now_s)
        return self._take(now_s)

    def some_routes(self, routes: Mapping[str, FrrRoute | None], now_s: float) -> Outcome:
        """FRR's routes to these destinations are now these; None: it has none."""
        for destination, route in routes.items():
            self._route(destination, route, now_s)
        return self._take(now_s)

    def all_routes(self, routes: Mapping[str, FrrRoute], now_s: float) -> Outcome:
        """FRR's routes are these, and no others."""
        for destination in self.routes.keys() - routes.keys():
            self._route(destination, None, now_s)
        for destination, route in routes.items():
            if self.routes.get(destination) != route:
                self._route(destination, route, now_s)
        return self._take(now_s)

    def peer(self, destination: str, tor: str, now_s: float) -> tuple[str, Outcome]:
        """Another host, ``destination``, says that it cannot be reached through a ToR; returns what came of it."""
        return self._peer(destination, tor, now_s), self._take(now_s)

    def closed(self, name: str, now_s: float) -> Outcome:
        """The switch at an uplink has closed its BGP session: it may not hear us, and FRR will leave it soon.

        One that FRR does not use says nothing, as when two connections of a new session collide (RFC 4271, 6.8).
        """
        uplink = self.uplinks[name]
        early = now_s < max(self.damped_until_s, uplink.closing_until_s)
        deaf = self.blind or early or uplink.dead or not uplink.ifindex
        used = any(hop.ifindex == uplink.ifindex for route in self.routes.values() for hop in route.hops)
        if used and not deaf and not self._too_many_words(f"the switch at {name}", now_s):
            self._answer(uplink, Mark(now_s, Cause.BGP), now_s)
        return self._take(now_s)

    def tors(self, router_ids: Mapping[str, str]) -> None:
        """Which ToR is at the other end of each uplink; those not named keep theirs."""
        for name, router_id in router_ids.items():
            if name in self.uplinks:
                self.uplinks[name].tor = router_id

    def lose(self, what: str, reason: str, now_s: float) -> Outcome:
        """An input is lost (rule 2); with `BFDD` every session is unknown."""
        if what == BFDD:
            for uplink in self.uplinks.values():
                uplink.bfd = None
            self._refresh_dead(now_s)
        if what not in self.blind:
            self._out.statuses.append(Status("input_lost", f"{what}: {reason}", alarm=True))
        self.blind[what] = reason
        return self._take(now_s)

    def regain(self, what: str, now_s: float) -> Outcome:
        """It is back, with everything that it knows."""
        if self.blind.pop(what, None) is not None:
            rest = f"; still without {', '.join(self.blind)}" if self.blind else ""
            self._out.statuses.append(Status("input_restored", f"{what} is back{rest}"))
        return self._take(now_s)

    def refused(self, destination: str, reason: str, now_s: float) -> Outcome:
        """The kernel did not take an override."""
        if destination in self.overrides:
            self._release(destination, Release.REFUSED, now_s)
            self._out.statuses.append(Status("refused", f"override of {destination}: {reason}", alarm=True))
        return self._take(now_s)

    def gone(self, destinations: Iterable[str], reason: Release, now_s: float) -> Outcome:
        """These are not in our table any more, whoever deleted them; no write is due."""
        for destination in destinations:
            if destination in self.overrides:
                self._release(destination, reason, now_s)
        outcome = self._take(now_s)
        outcome.writes.clear()
        return outcome

    def all_gone(self, reason: Release, now_s: float) -> Outcome:
        """Nothing of ours is in the kernel any more, whoever deleted it; no write is due."""
        self._release_all(reason, now_s)
        outcome = self._take(now_s)
        outcome.writes.clear()
        return outcome

    def tick(self, now_s: float) -> Outcome:
        """Time has passed."""
        return self._take(now_s)

    @property
    def due_s(self) -> float:
        """When `tick` has something to do."""
        return self._due_s

    @property
    def damped(self) -> bool:
        """Whether the damper holds, as of the last input."""
        return self.damped_until_s > -_NEVER

    # -- faults ------------------------------------------------------------------------------------------------

    def _refresh_dead(self, now_s: float) -> None:
        dead = frozenset(u.ifindex for u in self.uplinks.values() if u.dead and u.ifindex)
        if self._dead - dead:
            self._due_s = now_s  # an override that was held for this may be over
        self._dead = dead

    def _fault(self, uplink: Uplink, cause: Cause, now_s: float) -> None:
        if uplink.faults.add(now_s, self._limits):
            times = f"{len(uplink.faults.times_s)} faults within {self._limits.damper_window_s:g} s"
            self._damp(f"{uplink.name}: {times}", uplink.name, now_s)
        elif all(other.dead for other in self.uplinks.values()):
            self._damp("no uplink is alive", uplink.name, now_s)
        elif now_s < self.damped_until_s:
            self._suppress(uplink, cause, "flap damped")
        elif self.blind:
            self._suppress(uplink, cause, f"input lost: {', '.join(self.blind)}")
        else:
            self._answer(uplink, Mark(now_s, cause), now_s)
            self._out = self._out._replace(tell=Tell(uplink.name, uplink.tor))

    def _answer(self, uplink: Uplink, mark: Mark, now_s: float) -> None:
        """Override wherever FRR uses the uplink."""
        for destination, route in self.routes.items():
            if any(hop.ifindex == uplink.ifindex for hop in route.hops):
                self._mark(destination, route, {uplink.ifindex: mark}, now_s)

    def _leave_the_dead(self, uplink: Uplink, now_s: float) -> None:
        """Whatever a death counts as, blind or not: no override goes on through what is dead."""
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
        self.damped_until_s = until_s
        self._due_s = min(self._due_s, until_s)
        self._release_all(Release.FLAP_DAMPED, now_s)

    def _peer(self, destination: str, tor: str, now_s: float) -> str:
        marks = {u.ifindex: Mark(now_s, Cause.PEER) for u in self.uplinks.values() if u.ifindex and u.tor == tor}
        route = self.routes.get(destination)
        if not tor or not marks:
            return "unknown_tor"
        if route is None:
            return "no_route"
        if self.blind:
            return "input_lost"
        if now_s < self.damped_until_s:
            return "flap_damped"
        if self._too_many_words(destination, now_s):
            return "flap_damped"
        named = {hop.ifindex for hop in route.hops}
        known = self._marks_of(destination)
        # Said twice is not said longer: an earlier mark keeps its time, and so its end.
        marks = {index: mark for index, mark in marks.items() if index in named and index not in known}
        return "applied" if marks and self._mark(destination, route, marks, now_s) else "nothing_to_do"

    def _too_many_words(self, source: str, now_s: float) -> bool:
        """Rule 11 for what others say."""
        if now_s < self._ignored.get(source, -_NEVER):
            return True
        if not self._peers.setdefault(source, FaultCount()).add(now_s, self._limits):
            return False
        self._ignored[source] = now_s + self._limits.damper_hold_s
        reason = f"{source} signalled too many faults: ignored for {self._limits.damper_hold_s:g} s"
        self._out.statuses.append(Status("peer_flap_damped", reason, alarm=True, peer=source))
        return True

    def _marks_of(self, destination: str) -> Mapping[int, Mark]:
        return self.overrides[destination].marks if destination in self.overrides else {}

    # -- overrides ---------------------------------------------------------------------------------------------

    def _mark(self, destination: str, route: FrrRoute, marks: dict[int, Mark], now_s: float) -> bool:
        """Override with these hops dead too; False: nothing was written."""
        override = self.overrides.get(destination)
        if override is not None:
            marks = override.marks | marks
        live = self._live(route.hops, marks)
        if live is None:
            if override is not None:
                self._release(destination, Release.NO_LIVE_HOP, now_s)
            return False
        self._due_s = min(self._due_s, now_s + self._limits.t_max_s)
        return self._install(destination, route._replace(hops=live), marks, now_s)

    def _live(self, hops: tuple[Hop, ...], marks: Mapping[int, Mark]) -> tuple[Hop, ...] | None:
        """What an override would have; None: there is none to be made."""
        dead = self._dead
        live = tuple(hop for hop in hops if hop.ifindex not in marks and hop.ifindex not in dead)
        if not live:  # a fault that is over, and another host's word, give way to one that we see
            live = tuple(hop for hop in hops if hop.ifindex not in dead)
        return live if live and len(live) < len(hops) else None

    def _install(self, destination: str, route: FrrRoute, marks: dict[int, Mark], now_s: float) -> bool:
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
            self._release(destination, Release.FRR_WITHDREW, now_s)
            return
        named = {hop.ifindex for hop in route.hops}
        self._reconsider(
            destination, route, {index: mark for index, mark in override.marks.items() if index in named}, now_s
        )

    def _reconsider(self, destination: str, route: FrrRoute, marks: dict[int, Mark], now_s: float) -> None:
        """FRR's route or the marks of an overridden destination have changed."""
        live = self._live(route.hops, marks) if marks else None
        if not marks:
            self._release(destination, Release.FRR_CONVERGED, now_s)
        elif live is None:
            self._release(destination, Release.NO_LIVE_HOP, now_s)
        else:
            self._install(destination, route._replace(hops=live), marks, now_s)

    def _release(self, destination: str, reason: Release, now_s: float) -> None:
        override = self.overrides.pop(destination)
        names = tuple(self._by_index[index].name for index in override.marks if index in self._by_index)
        causes = "+".join(sorted({str(mark.cause) for mark in override.marks.values()}))
        route = self.routes.get(destination)
        self._out.writes.append(Write(destination, None))
        self._out.released.append(
            Released(
                destination,
                names,
                causes,
                reason,
                now_s - override.since_s,
                override.route.hops,
                route.hops if route is not None else (),
            )
        )

    def _release_all(self, reason: Release, now_s: float) -> None:
        for destination in list(self.overrides):
            self._release(destination, reason, now_s)

    # -- time --------------------------------------------------------------------------------------------------

    def _take(self, now_s: float) -> Outcome:
        """Everything that is due, in one."""
        if now_s >= self._due_s:
            self._expire(now_s)
        outcome, self._out = self._out, Outcome.nothing()
        return outcome

    def _expire(self, now_s: float) -> None:
        """Rule 8's T_max, rule 9's alarm, the end of rule 11's pause."""
        if self.damped and now_s >= self.damped_until_s:
            self.damped_until_s = -_NEVER
            self._out.statuses.append(Status("flap_damping_ended", "no faults any more: overrides are installed again"))
        due_s = self.damped_until_s if self.damped else _NEVER
        stuck: list[str] = []
        for destination, override in list(self.overrides.items()):
            marks = {index: mark for index, mark in override.marks.items() if not self._over(index, mark, now_s)}
            if not marks:
                self._release(destination, Release.TIMEOUT, now_s)
                continue
            if len(marks) < len(override.marks):
                self._reconsider(destination, self.routes[destination], marks, now_s)
            ends_s = [mark.since_s + self._limits.t_max_s for mark in marks.values()]
            due_s = min([due_s, *(end_s for end_s in ends_s if end_s > now_s)])
            if min(ends_s) <= now_s and not override.alarmed:
                override.alarmed = True
                stuck.append(destination)
        self._due_s = due_s
        if stuck:
            self._out.statuses.append(self._stuck(stuck))

    def _stuck(self, destinations: list[str]) -> Status:
        some = ", ".join(destinations[:3]) + (f" and {len(destinations) - 3} more" if len(destinations) > 3 else "")
        return Status(
            "not_converging", f"FRR still uses a dead hop after {self._limits.t_max_s:g} s: {some}", alarm=True
        )

    def _over(self, index: int, mark: Mark, now_s: float) -> bool:
        if now_s < mark.since_s + self._limits.t_max_s:
            return False
        return mark.cause in WORDS or index not in self._dead
