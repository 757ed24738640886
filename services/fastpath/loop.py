"""The hot loop: events of bfdd, the kernel and other hosts in, routes of our table out. One thread, no waiting.

After an event come, in this order: one batch of routes to the kernel, datagrams to the other hosts, and only then
anything else (rule 4). Whatever goes wrong with the kernel ends the process: the watchdog empties the table, and a new
process begins with a look at everything.
"""

from __future__ import annotations

import time
from typing import Final

from services._host.netlink.constants import Group, Rtm
from services._host.netlink.rule_codec import decode_rule
from services._host.netlink.socket import Message, Subscription
from services.fastpath.audit import Audit, Trigger
from services.fastpath.beats import Beats
from services.fastpath.bfd import BfdClient, BfdError, Sessions, Subscribed, admin_down_news
from services.fastpath.bgp_watch import BgpWatch
from services.fastpath.config import Config
from services.fastpath.control import ControlLink, Order
from services.fastpath.core import BFDD
from services.fastpath.group import GroupedCore
from services.fastpath.heartbeat import Beat, HeartbeatSender
from services.fastpath.kernel import FastPathKernel
from services.fastpath.mirror import RouteMirror, Row
from services.fastpath.peer_watch import PeerWatch
from services.fastpath.peers import Announcement, PeerLink
from services.fastpath.poller import Poller
from services.fastpath.routes import LinkRow, OwnRow, read_link, read_route
from services.fastpath.values import UP, FrrRoute, Outcome, Release, Status, Tell, Write

BEAT_S: Final = 0.1
STATE_S: Final = 1.0
RECONNECT_S: Final = 0.25
RESYNC_S: Final = 0.05
"""After a link has gone down, the kernel drops routes without a word: a new look, once it is quiet."""
EVENTS_AT_ONCE: Final = 256
PREPARE_ROWS: Final = 64
PREPARE_EVERY_S: Final = 0.005
_NETLINK: Final = "netlink"


class FastPathLoop:
    """Everything of the hot process."""

    def __init__(self, config: Config, control: ControlLink, beats: int) -> None:
        self._config = config
        self._control = control
        self._beats = Beats(beats, HeartbeatSender(config.netns, Beat(config.ownership, config.silence_s)))
        self._core = GroupedCore(config.uplinks, config.limits, config.standby_above)
        self._sessions = Sessions(frozenset(config.uplinks))
        self._mirror = RouteMirror(config.wanted)
        self._names: dict[int, str] = {}
        self._audit = Audit(lambda index: self._names.get(index, f"link {index}"))
        self._kernel = FastPathKernel(config.netns, config.ownership)
        self._events = Subscription(
            (Group.LINK, Group.IPV4_ROUTE, Group.IPV6_ROUTE, Group.IPV4_RULE, Group.IPV6_RULE),
            config.netns,
            receive_bytes=config.event_buffer_bytes,
        )
        self._bfd: BfdClient | None = None
        self._stopping = ""
        self._poller = Poller()
        self._peers: PeerWatch | None = None
        if config.key:
            link = PeerLink(config.netns, config.vtep, config.port, key=config.key, boot=time.time_ns())
            self._peers = PeerWatch(link, self._poller, self._on_peers)
        self._bgp = BgpWatch(config.netns, self._poller, self._on_closed) if config.bgp_watch else None
        self._beat_s = self._state_s = self._reconnect_s = 0.0
        self._resync_s = float("inf")
        self._prepare_s = 0.0
        self._counts = dict.fromkeys(("overrides", "releases", "triggers", "stalls", "resyncs", "refused"), 0)

    # -- life --------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Until told to stop; nothing of ours is left in the kernel then."""
        self._prepare()
        while not self._stopping:
            ready = self._poller.wait(self._pause_s())
            self._notice_standstill()
            self._poller.handle(ready)
            self._follow_up()
        self._end()

    def _prepare(self) -> None:
        self._poller.on_terminate(lambda: self._stop("SIGTERM"))
        self._poller.watch(self._control, self._on_control)
        self._poller.watch(self._events, self._on_netlink)
        self._core.lose(BFDD, "not connected yet", time.monotonic())
        self._start_clean("started")
        self._connect_bfd()

    def _stop(self, why: str) -> None:
        self._stopping = why

    def _start_clean(self, why: str, details: str = "") -> None:
        """Leave no override, look at everything, let packets look into our table."""
        self._kernel.clear()
        self._look_at_everything()
        self._kernel.add_rules()
        uplinks = ",".join(self._config.uplinks)
        reason = f"{details}{len(self._core.routes)} host routes of FRR, uplinks {uplinks}"
        self._say(why, reason, alarm=bool(details))

    def _end(self) -> None:
        now_s = time.monotonic()
        outcome = self._core.all_gone(Release.SHUTDOWN, now_s)
        self._kernel.clear()
        self._note(outcome, self._trigger("shutdown", now_s), None)
        self._audit.release_held()
        self._say("stopped", self._stopping)
        self._control.send(self._audit.ready, within_s=0.2)
        self._beats.bye()

    def _pause_s(self) -> float:
        now_s = time.monotonic()
        due_s = min(self._beat_s + BEAT_S, self._core.due_s, self._resync_s)
        if self._peers is not None:
            due_s = min(due_s, self._peers.due_s)
        if self._core.unprepared:
            due_s = min(due_s, self._prepare_s)
        return max(due_s - now_s, 0.0)

    def _follow_up(self) -> None:
        """What is due by time, after events."""
        now_s = time.monotonic()
        if self._peers is not None and now_s >= self._peers.due_s:
            for ended in self._peers.turn(now_s):
                self._audit.told(ended)
        if now_s >= self._core.due_s:
            self._carry_out(self._core.tick(now_s), self._trigger("timeout", now_s))
        if now_s >= self._resync_s:
            self._look_at_everything()
        if self._core.unprepared and now_s >= self._prepare_s:
            self._keep_ready(now_s)
        if self._audit.ready and now_s < self._soonest_peer_s():
            self._control.send(self._audit.ready)
        if now_s >= self._beat_s + BEAT_S:
            self._beat(now_s)

    def _keep_ready(self, now_s: float) -> None:
        """The next rows of the tables that are kept ready; at leisure, as everything else comes first."""
        self._prepare_s = now_s + PREPARE_EVERY_S
        for failure in self._kernel.write(self._core.prepare(PREPARE_ROWS)):
            if isinstance(failure.write, Write):
                self._core.unready(failure.write)

    def _soonest_peer_s(self) -> float:
        """Records are written when no datagram is due."""
        return self._peers.link.due_s if self._peers is not None else float("inf")

    def _beat(self, now_s: float) -> None:
        self._beat_s = now_s
        if trouble := self._beats.beat():
            self.warn("heartbeat_not_sent", f"no heartbeat to the reconciler: {trouble}")
        if self._bfd is None and now_s >= self._reconnect_s:
            self._connect_bfd()
        if now_s >= self._state_s:
            self._state_s = now_s + STATE_S
            self._control.send_state(self._state())

    def _state(self) -> dict[str, object]:
        core = self._core
        return {
            "routes": len(core.routes),
            "held": core.held,
            "blind": dict(core.blind),
            "damped": core.damped,
            "uplinks": {u.name: [u.ifindex, u.carrier, u.bfd, u.tor] for u in core.uplinks.values()},
            "sessions": self._sessions.peers(),
            "counts": self._counts,
            "dropped": self._audit.dropped,
        } | (self._peers.state() if self._peers is not None else {})

    def _notice_standstill(self) -> None:
        """We may have been stopped: then the watchdog has emptied the table, and what we know is old."""
        now_s = time.monotonic()
        silent_s = now_s - self._beat_s
        if not self._beat_s or silent_s <= self._config.stalled_s:
            return
        self._counts["stalls"] += 1
        outcome = self._core.all_gone(Release.LOST, now_s)
        self._note(outcome, self._trigger("lost", now_s), None)
        while self._events.read().more:
            continue
        self._start_clean("loop_stalled", f"no iteration of the loop for {silent_s * 1e3:.0f} ms; ")
        self._beat(time.monotonic())

    # -- inputs ------------------------------------------------------------------------------------------------

    def _connect_bfd(self) -> None:
        try:
            self._bfd = BfdClient(self._config.bfd_socket)
        except OSError as error:
            self._reconnect_s = time.monotonic() + RECONNECT_S
            outcome = self._core.lose(BFDD, f"{self._config.bfd_socket}: {error.strerror or error}", time.monotonic())
            self._carry_out(outcome, self._trigger("input_lost", time.monotonic()))
        else:
            self._poller.watch(self._bfd, self._on_bfd)

    def _on_bfd(self) -> None:
        if self._bfd is None:
            return
        try:
            said = self._bfd.read()
        except (BfdError, OSError) as error:
            self._poller.unwatch(self._bfd)
            self._bfd.close()
            self._bfd = None
            self._sessions.clear()
            self._reconnect_s = time.monotonic() + RECONNECT_S
            now_s = time.monotonic()
            self._carry_out(self._core.lose(BFDD, str(error), now_s), self._trigger("input_lost", now_s))
            return
        now_s = time.monotonic()
        for each in said:
            if isinstance(each, Subscribed):
                self._carry_out(self._core.regain(BFDD, now_s), self._trigger("input_restored", now_s))
                self._state_s = 0.0  # the service wants to know at once
                continue
            changed = self._sessions.update(each)
            if changed is not None:
                before = self._core.uplinks[changed[0]].bfd
                outcome = self._core.bfd(*changed, now_s)
                self._carry_out(outcome, self._trigger("bfd", now_s, changed[0]))
                if (news := admin_down_news(changed[0], before, changed[1])) is not None:
                    self._audit.status(news, time.time_ns())
                if changed[1] == UP and before != UP:
                    self._control.ask_for_tors = True

    def _on_netlink(self) -> None:
        received = self._events.read(EVENTS_AT_ONCE)
        now_s = time.monotonic()
        if received.overrun:
            self._carry_out(self._core.lose(_NETLINK, "events were lost", now_s), self._trigger("input_lost", now_s))
            self._look_at_everything()
            self._carry_out(self._core.regain(_NETLINK, now_s), self._trigger("input_restored", now_s))
            return
        changed: dict[str, None] = {}
        for message in received.messages:
            if message.kind in {Rtm.NEWROUTE, Rtm.DELROUTE}:
                destination = self._on_route(message, now_s)
                if destination:
                    changed[destination] = None
            elif message.kind in {Rtm.NEWLINK, Rtm.DELLINK}:
                self._routes_changed(changed, now_s)
                self._on_link(message, now_s)
            elif message.kind == Rtm.DELRULE and message.port_id != self._kernel.port_id:
                self._on_deleted_rule(message, now_s)
        self._routes_changed(changed, now_s)

    def _on_deleted_rule(self, message: Message, now_s: float) -> None:
        rule, own = decode_rule(message.payload), self._config.ownership
        if (rule.table, rule.priority) == (own.table, own.priority):
            self._kernel.add_rules()
            self._say("rule_restored", "the rule had been deleted", alarm=True)
        elif rule.table in own.tables and rule.priority == own.priority + 1:
            outcome = self._core.switch_refused(rule.table - own.table, "it had been deleted", now_s)
            self._carry_out(outcome, self._trigger("lost", now_s))

    def _on_route(self, message: Message, now_s: float) -> str:
        """The destination whose row has changed, or nothing."""
        row = read_route(message, self._config.ownership)
        if isinstance(row, Row):
            apply = self._mirror.add if message.kind == Rtm.NEWROUTE else self._mirror.remove
            return row.destination if apply(row) else ""
        ours = message.port_id == self._kernel.port_id
        if not isinstance(row, OwnRow) or message.kind != Rtm.DELROUTE or ours:
            return ""
        standby = row.table - self._config.ownership.table
        if standby:
            self._core.lost_row(standby, row.destination)
        else:
            outcome = self._core.gone([row.destination], Release.LOST, now_s)
            self._note(outcome, self._trigger("lost", now_s), None)
        return ""

    def _routes_changed(self, changed: dict[str, None], now_s: float) -> None:
        if changed:
            routes: dict[str, FrrRoute | None] = {name: self._mirror.of(name) for name in changed}
            changed.clear()
            self._carry_out(self._core.some_routes(routes, now_s), self._trigger("frr_changed", now_s))

    def _on_link(self, message: Message, now_s: float) -> None:
        link = read_link(message)
        if link is None:
            return
        uplink = self._core.uplinks.get(link.name)
        if message.kind == Rtm.NEWLINK:
            self._link_is(link, now_s)
        elif uplink is not None and link.ifindex == uplink.ifindex:
            self._link_is(link._replace(ifindex=0, carrier=False), now_s)
        if not (message.kind == Rtm.NEWLINK and link.carrier) and self._mirror.uses(link.ifindex):
            self._resync_s = now_s + RESYNC_S

    def _link_is(self, link: LinkRow, now_s: float) -> None:
        if link.ifindex:
            self._names[link.ifindex] = link.name
        if link.name in self._core.uplinks:
            outcome = self._core.link(link.name, link.ifindex, carrier=link.carrier, now_s=now_s)
            self._carry_out(outcome, self._trigger("carrier", now_s, link.name))
            refused = self._bgp.follow(link.name, link.ifindex) if self._bgp is not None else None
            if refused is not None:
                self.warn("bgp_not_watched", f"{link.name}: {refused}")

    def _on_closed(self, name: str) -> None:
        now_s = time.monotonic()
        self._carry_out(self._core.closed(name, now_s), self._trigger("bgp", now_s, name))

    def _look_at_everything(self) -> None:
        """Links and FRR's routes as they are now."""
        self._resync_s = float("inf")
        self._counts["resyncs"] += 1
        now_s = time.monotonic()
        links = self._kernel.links()
        absent = self._core.uplinks.keys() - {link.name for link in links}
        for link in [*links, *(LinkRow(name, 0, carrier=False) for name in absent)]:
            self._link_is(link, now_s)
        self._mirror.clear()
        for row in self._kernel.routes():
            self._mirror.add(row)
        self._carry_out(self._core.all_routes(self._mirror.all(), now_s), self._trigger("frr_changed", now_s))

    def _on_peers(self) -> None:
        if self._peers is None:
            return
        noticed_s = time.monotonic()
        link = self._peers.link
        for fault in self._peers.read(noticed_s):
            verdict, outcome = self._core.peer(fault.sender, fault.tor, noticed_s)
            link.counts[verdict] += 1
            self._carry_out(outcome, self._trigger("peer", noticed_s, self._uplink_to(fault.tor), fault.sender))
        link.answer()
        for denied in link.newly_denied():
            self.warn("source_denied", denied.reason)

    def _uplink_to(self, tor: str) -> str:
        return ",".join(uplink.name for uplink in self._core.uplinks.values() if uplink.tor == tor)

    def _on_control(self) -> None:
        for order in self._control.receive():
            if order.kind is Order.STOP:
                self._stop(order.reason)
            elif order.kind is Order.TORS:
                self._core.tors(order.tors)
            elif order.kind is Order.WATCHDOG:
                self._beats.replace(order.descriptor)

    # -- outputs -----------------------------------------------------------------------------------------------

    def _trigger(self, cause: str, now_s: float, uplink: str = "", peer: str = "") -> Trigger:
        if not peer and uplink in self._core.uplinks:
            peer = self._core.uplinks[uplink].tor
        return Trigger(cause, uplink, peer, time.time_ns(), now_s, now_s)

    def _carry_out(self, outcome: Outcome, trigger: Trigger) -> None:
        """Routes to the kernel, then datagrams, then the record."""
        failures = self._kernel.write(outcome.writes) if outcome.writes else []
        if outcome.writes:
            trigger = trigger._replace(acked_s=time.monotonic())
        announcement = self._tell(outcome.tell, trigger.noticed_s) if outcome.tell is not None else None
        self._note(outcome, trigger, announcement)
        for write, reason in failures:
            self._counts["refused"] += 1
            now_s = time.monotonic()
            if not isinstance(write, Write):
                self._carry_out(self._core.switch_refused(write.table, reason, now_s), trigger)
            elif write.table:
                self._core.unready(write)
            else:
                self._carry_out(self._core.refused(write.destination, reason, now_s), trigger)

    def _tell(self, tell: Tell, noticed_s: float) -> Announcement | None:
        self._counts["triggers"] += 1
        if self._peers is None or not tell.tor:
            return None
        tors = {uplink.tor for uplink in self._core.uplinks.values()}
        vteps = [name for name in self._core.routes if name not in tors]
        return self._peers.link.tell(tell.tor, vteps, noticed_s=noticed_s, now_s=time.monotonic())

    def _note(self, outcome: Outcome, trigger: Trigger, announcement: Announcement | None) -> None:
        for group in outcome.groups:
            self._counts["overrides" if group.reason is None else "releases"] += len(group.rows)
        self._counts["overrides"] += len(outcome.overridden)
        self._counts["releases"] += len(outcome.released)
        self._audit.add(outcome, trigger, announcement)

    def warn(self, cause: str, reason: str) -> None:
        """Have something told that somebody should look at."""
        self._say(cause, reason, alarm=True)

    def _say(self, cause: str, reason: str, *, alarm: bool = False) -> None:
        self._audit.status(Status(cause, reason, alarm=alarm), time.time_ns())
