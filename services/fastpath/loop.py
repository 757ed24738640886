"""Data-plane loop: events of bfdd, the kernel and other hosts in, override routes out. One thread, non-blocking.

After an event follow, in this order: one batch of routes to the kernel, datagrams to the other hosts, and only then
anything else (rule 4). A netlink error ends the process: the watchdog empties the table, and a new process starts with
a full dump.
"""

from __future__ import annotations

import time
from typing import Final

from services._edge.fast_path_heartbeat import Beat, HeartbeatSender
from services._host.netlink.constants import Group, Rtm
from services._host.netlink.route_codec import decode_rule
from services._host.netlink.socket import Message, Subscription
from services.fastpath.backup_tables import BackupTableDecisions
from services.fastpath.bfd import BfdClient, BfdError, Sessions, Subscribed, admin_down_status
from services.fastpath.bgp_watch import BgpWatch
from services.fastpath.config import Config
from services.fastpath.control import Command, ControlLink
from services.fastpath.events import EventRecorder, Trigger
from services.fastpath.kernel import FastPathKernel
from services.fastpath.mirror import RouteMirror, Row
from services.fastpath.override_decisions import BFDD
from services.fastpath.peer_watch import PeerWatch
from services.fastpath.peers import PeerLink
from services.fastpath.poller import Poller
from services.fastpath.protocol import Announcement
from services.fastpath.routes import LinkRow, OverrideRow, gateway_text, read_link, read_route
from services.fastpath.values import UP, Announce, FrrRoute, Hop, Outcome, RemovalReason, Status, Write
from services.fastpath.watchdog import Heartbeats

HEARTBEAT_INTERVAL_S: Final = 0.1
STATE_INTERVAL_S: Final = 1.0
RECONNECT_S: Final = 0.25
RESYNC_S: Final = 0.05
"""After a link goes down the kernel drops routes without events: dump again after this delay."""
MAX_EVENTS_PER_READ: Final = 256
BACKUP_ROWS_PER_WRITE: Final = 64
BACKUP_WRITE_INTERVAL_S: Final = 0.005
_NETLINK: Final = "netlink"


class FastPathLoop:
    """The event loop of the data-plane process."""

    def __init__(self, config: Config, control: ControlLink, beats: int) -> None:
        self._config = config
        self._control = control
        self._heartbeats = Heartbeats(
            beats, HeartbeatSender(config.netns, Beat(config.override_tables, config.silence_s))
        )
        self._core = BackupTableDecisions(config.uplinks, config.limits, config.backup_table_above)
        self._sessions = Sessions(frozenset(config.uplinks))
        self._mirror = RouteMirror(config.is_peer_vtep)
        self._names: dict[int, str] = {}
        self._recorder = EventRecorder(self._hop_text)
        self._kernel = FastPathKernel(config.netns, config.override_tables)
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
        self._counts = dict.fromkeys(("overrides", "removals", "faults", "stalls", "resyncs", "refused"), 0)

    # -- start and stop ---------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run until a stop command; leaves no override in the kernel."""
        self._start()
        while not self._stopping:
            ready = self._poller.wait(self._timeout_s())
            self._check_for_stall()
            self._poller.handle(ready)
            self._run_timers()
        self._shut_down()

    def _start(self) -> None:
        self._poller.on_terminate(lambda: self._stop("SIGTERM"))
        self._poller.watch(self._control, self._on_control)
        self._poller.watch(self._events, self._on_netlink)
        self._core.input_lost(BFDD, "not connected yet", time.monotonic())
        self._restart("started")
        self._connect_bfd()

    def _stop(self, why: str) -> None:
        self._stopping = why

    def _restart(self, why: str, details: str = "") -> None:
        """Delete all overrides, dump links and routes, add the rule."""
        self._kernel.clear()
        self._resync()
        self._kernel.add_rules()
        uplinks = ",".join(self._config.uplinks)
        reason = f"{details}{len(self._core.routes)} host routes of FRR, uplinks {uplinks}"
        self._record_status(why, reason, alarm=bool(details))

    def _shut_down(self) -> None:
        now_s = time.monotonic()
        outcome = self._core.all_routes_deleted(RemovalReason.SHUTDOWN, now_s)
        self._kernel.clear()
        self._record(outcome, self._trigger("shutdown", now_s), None)
        self._recorder.stop_waiting()
        self._record_status("stopped", self._stopping)
        self._control.send(self._recorder.ready, within_s=0.2)
        self._heartbeats.clean_exit()

    def _timeout_s(self) -> float:
        now_s = time.monotonic()
        due_s = min(self._beat_s + HEARTBEAT_INTERVAL_S, self._core.due_s, self._resync_s)
        if self._peers is not None:
            due_s = min(due_s, self._peers.due_s)
        if self._core.has_unwritten_rows:
            due_s = min(due_s, self._prepare_s)
        return max(due_s - now_s, 0.0)

    def _run_timers(self) -> None:
        """Run what is due, after the events."""
        now_s = time.monotonic()
        if self._peers is not None and now_s >= self._peers.due_s:
            for ended in self._peers.run_timers(now_s):
                self._recorder.acknowledged(ended)
        if now_s >= self._core.due_s:
            self._apply(self._core.tick(now_s), self._trigger("timeout", now_s))
        if now_s >= self._resync_s:
            self._resync()
        if self._core.has_unwritten_rows and now_s >= self._prepare_s:
            self._write_backup_rows(now_s)
        if self._recorder.ready and now_s < self._next_peer_s():
            self._control.send(self._recorder.ready)
        if now_s >= self._beat_s + HEARTBEAT_INTERVAL_S:
            self._send_heartbeat(now_s)

    def _write_backup_rows(self, now_s: float) -> None:
        """Write the next rows of the backup tables, at low priority."""
        self._prepare_s = now_s + BACKUP_WRITE_INTERVAL_S
        for failure in self._kernel.write(self._core.prepare(BACKUP_ROWS_PER_WRITE)):
            if isinstance(failure.write, Write):
                self._core.row_rejected(failure.write)

    def _next_peer_s(self) -> float:
        """When the next datagram is due: event records are sent before."""
        return self._peers.link.due_s if self._peers is not None else float("inf")

    def _send_heartbeat(self, now_s: float) -> None:
        self._beat_s = now_s
        if error := self._heartbeats.send():
            self.warn("heartbeat_not_sent", f"no heartbeat to the reconciler: {error}")
        if self._bfd is None and now_s >= self._reconnect_s:
            self._connect_bfd()
        if now_s >= self._state_s:
            self._state_s = now_s + STATE_INTERVAL_S
            self._control.send_state(self._state())

    def _state(self) -> dict[str, object]:
        core = self._core
        return {
            "routes": len(core.routes),
            "active_overrides": core.active_overrides,
            "lost_inputs": dict(core.lost_inputs),
            "flap_damped": core.flap_damped,
            "uplinks": {u.name: [u.ifindex, u.carrier, u.bfd, u.tor] for u in core.uplinks.values()},
            "sessions": self._sessions.peers(),
            "counts": self._counts,
            "dropped": self._recorder.dropped,
        } | (self._peers.state() if self._peers is not None else {})

    def _check_for_stall(self) -> None:
        """After a stall the watchdog may have emptied the table, and the state is outdated: start again."""
        now_s = time.monotonic()
        silent_s = now_s - self._beat_s
        if not self._beat_s or silent_s <= self._config.stalled_s:
            return
        self._counts["stalls"] += 1
        outcome = self._core.all_routes_deleted(RemovalReason.LOST, now_s)
        self._record(outcome, self._trigger("lost", now_s), None)
        while self._events.read().more:
            continue
        self._restart("loop_stalled", f"no iteration of the loop for {silent_s * 1e3:.0f} ms; ")
        self._send_heartbeat(time.monotonic())

    # -- inputs ------------------------------------------------------------------------------------------------

    def _connect_bfd(self) -> None:
        try:
            self._bfd = BfdClient(self._config.bfd_socket)
        except OSError as error:
            self._reconnect_s = time.monotonic() + RECONNECT_S
            reason = f"{self._config.bfd_socket}: {error.strerror or error}"
            outcome = self._core.input_lost(BFDD, reason, time.monotonic())
            self._apply(outcome, self._trigger("input_lost", time.monotonic()))
        else:
            self._poller.watch(self._bfd, self._on_bfd)

    def _on_bfd(self) -> None:
        if self._bfd is None:
            return
        try:
            messages = self._bfd.read()
        except (BfdError, OSError) as error:
            self._poller.unwatch(self._bfd)
            self._bfd.close()
            self._bfd = None
            self._sessions.clear()
            self._reconnect_s = time.monotonic() + RECONNECT_S
            now_s = time.monotonic()
            self._apply(self._core.input_lost(BFDD, str(error), now_s), self._trigger("input_lost", now_s))
            return
        now_s = time.monotonic()
        for each in messages:
            if isinstance(each, Subscribed):
                self._apply(self._core.input_restored(BFDD, now_s), self._trigger("input_restored", now_s))
                self._state_s = 0.0  # the service needs the state at once
                continue
            changed = self._sessions.update(each)
            if changed is not None:
                before = self._core.uplinks[changed[0]].bfd
                outcome = self._core.bfd(*changed, now_s)
                self._apply(outcome, self._trigger("bfd", now_s, changed[0]))
                if (status := admin_down_status(changed[0], before, changed[1])) is not None:
                    self._recorder.status(status, time.time_ns())
                if changed[1] == UP and before != UP:
                    self._control.wants_router_ids = True

    def _on_netlink(self) -> None:
        received = self._events.read(MAX_EVENTS_PER_READ)
        now_s = time.monotonic()
        if received.overrun:
            self._apply(self._core.input_lost(_NETLINK, "events were lost", now_s), self._trigger("input_lost", now_s))
            self._resync()
            self._apply(self._core.input_restored(_NETLINK, now_s), self._trigger("input_restored", now_s))
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
        rule, tables = decode_rule(message.payload), self._config.override_tables
        if (rule.table, rule.priority) == (tables.table, tables.priority):
            self._kernel.add_rules()
            self._record_status("rule_restored", "the rule had been deleted", alarm=True)
        elif rule.table in tables.numbers and rule.priority == tables.priority + 1:
            outcome = self._core.backup_rule_rejected(rule.table - tables.table, "it had been deleted", now_s)
            self._apply(outcome, self._trigger("lost", now_s))

    def _on_route(self, message: Message, now_s: float) -> str:
        """The destination whose row has changed, or an empty string."""
        row = read_route(message, self._config.override_tables)
        if isinstance(row, Row):
            apply = self._mirror.add if message.kind == Rtm.NEWROUTE else self._mirror.remove
            return row.destination if apply(row) else ""
        own_write = message.port_id == self._kernel.port_id
        if not isinstance(row, OverrideRow) or message.kind != Rtm.DELROUTE or own_write:
            return ""
        backup = row.table - self._config.override_tables.table
        if backup:
            self._core.row_deleted(backup, row.destination)
        else:
            outcome = self._core.routes_deleted([row.destination], RemovalReason.LOST, now_s)
            self._record(outcome, self._trigger("lost", now_s), None)
        return ""

    def _routes_changed(self, changed: dict[str, None], now_s: float) -> None:
        if changed:
            routes: dict[str, FrrRoute | None] = {name: self._mirror.of(name) for name in changed}
            changed.clear()
            self._apply(self._core.update_routes(routes, now_s), self._trigger("frr_changed", now_s))

    def _on_link(self, message: Message, now_s: float) -> None:
        link = read_link(message)
        if link is None:
            return
        uplink = self._core.uplinks.get(link.name)
        if message.kind == Rtm.NEWLINK:
            self._update_link(link, now_s)
        elif uplink is not None and link.ifindex == uplink.ifindex:
            self._update_link(link._replace(ifindex=0, carrier=False), now_s)
        if not (message.kind == Rtm.NEWLINK and link.carrier) and self._mirror.uses(link.ifindex):
            self._resync_s = now_s + RESYNC_S

    def _update_link(self, link: LinkRow, now_s: float) -> None:
        if link.ifindex:
            self._names[link.ifindex] = link.name
        if link.name in self._core.uplinks:
            outcome = self._core.link(link.name, link.ifindex, carrier=link.carrier, now_s=now_s)
            self._apply(outcome, self._trigger("carrier", now_s, link.name))
            refused = self._bgp.follow(link.name, link.ifindex) if self._bgp is not None else None
            if refused is not None:
                self.warn("bgp_not_watched", f"{link.name}: {refused}")

    def _on_closed(self, name: str) -> None:
        now_s = time.monotonic()
        self._apply(self._core.bgp_closed(name, now_s), self._trigger("bgp", now_s, name))

    def _resync(self) -> None:
        """Dump links and FRR's routes."""
        self._resync_s = float("inf")
        self._counts["resyncs"] += 1
        now_s = time.monotonic()
        links = self._kernel.links()
        absent = self._core.uplinks.keys() - {link.name for link in links}
        for link in [*links, *(LinkRow(name, 0, carrier=False) for name in absent)]:
            self._update_link(link, now_s)
        self._mirror.clear()
        for row in self._kernel.routes():
            self._mirror.add(row)
        self._apply(self._core.replace_routes(self._mirror.all(), now_s), self._trigger("frr_changed", now_s))

    def _on_peers(self) -> None:
        if self._peers is None:
            return
        noticed_s = time.monotonic()
        link = self._peers.link
        for fault in self._peers.read(noticed_s):
            result, outcome = self._core.peer_fault(fault.sender, fault.tor, noticed_s)
            link.counts[result] += 1
            self._apply(outcome, self._trigger("peer", noticed_s, self._uplink_to(fault.tor), fault.sender))
        link.send_replies()
        for denied in link.newly_denied():
            self.warn("source_denied", denied.reason)

    def _hop_text(self, hop: Hop) -> str:
        name = self._names.get(hop.ifindex, f"link {hop.ifindex}")
        gateway = gateway_text(hop)
        return f"{gateway}@{name}" if gateway else name

    def _uplink_to(self, tor: str) -> str:
        return ",".join(uplink.name for uplink in self._core.uplinks.values() if uplink.tor == tor)

    def _on_control(self) -> None:
        for command in self._control.receive():
            if command.kind is Command.STOP:
                self._stop(command.reason)
            elif command.kind is Command.TORS:
                self._core.set_router_ids(command.tors)
            elif command.kind is Command.WATCHDOG:
                self._heartbeats.replace(command.descriptor)

    # -- outputs -----------------------------------------------------------------------------------------------

    def _trigger(self, cause: str, now_s: float, uplink: str = "", peer: str = "") -> Trigger:
        if not peer and uplink in self._core.uplinks:
            peer = self._core.uplinks[uplink].tor
        return Trigger(cause, uplink, peer, time.time_ns(), now_s, now_s)

    def _apply(self, outcome: Outcome, trigger: Trigger) -> None:
        """Write routes, then send datagrams, then record events."""
        failures = self._kernel.write(outcome.writes) if outcome.writes else []
        if outcome.writes:
            trigger = trigger._replace(acked_s=time.monotonic())
        announcement = self._announce(outcome.announce, trigger.noticed_s) if outcome.announce is not None else None
        self._record(outcome, trigger, announcement)
        for write, reason in failures:
            self._counts["refused"] += 1
            now_s = time.monotonic()
            if not isinstance(write, Write):
                self._apply(self._core.backup_rule_rejected(write.table, reason, now_s), trigger)
            elif write.table:
                self._core.row_rejected(write)
            else:
                self._apply(self._core.override_rejected(write.destination, reason, now_s), trigger)

    def _announce(self, announce: Announce, noticed_s: float) -> Announcement | None:
        self._counts["faults"] += 1
        if self._peers is None or not announce.tor:
            return None
        tors = {uplink.tor for uplink in self._core.uplinks.values()}
        vteps = [name for name in self._core.routes if name not in tors]
        return self._peers.link.announce(announce.tor, vteps, noticed_s=noticed_s, now_s=time.monotonic())

    def _record(self, outcome: Outcome, trigger: Trigger, announcement: Announcement | None) -> None:
        for group in outcome.table_changes:
            self._counts["overrides" if group.reason is None else "removals"] += len(group.rows)
        self._counts["overrides"] += len(outcome.overridden)
        self._counts["removals"] += len(outcome.removed)
        self._recorder.add(outcome, trigger, announcement)

    def warn(self, cause: str, reason: str) -> None:
        """Record an alarm."""
        self._record_status(cause, reason, alarm=True)

    def _record_status(self, cause: str, reason: str, *, alarm: bool = False) -> None:
        self._recorder.status(Status(cause, reason, alarm=alarm), time.time_ns())
