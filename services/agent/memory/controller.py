"""Guards the memory of the node's containers: grants out of the reserve, asks for more, ends every wait in time.

The decisions are in `core.memory_guard`; here they meet the control files and the reserve book. No bus, no clock: what
has happened, and what has to be asked, waits in the `Journal`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import numpy as np

from schemas.limits import RowStatus
from schemas.oom import OomCause, OomKind
from services.agent.containers import Containers, Member, same_memory
from services.agent.limits.drift import DriftWatch
from services.agent.memory.fair_shares import FairShares
from services.agent.memory.growth import PAGE_BYTES, Need
from services.agent.memory.limit_hit_events import begin_to_count, kill_reason, limit_hits_mean, limit_hits_of
from services.agent.memory.oom_waits import WaitNotes
from services.agent.memory.policy import (
    POLL_NS,
    SETTLE_NS,
    Asking,
    Guarded,
    IntArray,
    cut_is_dangerous,
    wants_a_look,
)
from services.agent.memory.records import Answer, Asked, Journal, Occurrence, mib
from services.agent.memory.reserve import Reserves
from services.agent.ports import UNLIMITED, Alarm, AlarmKind, MemoryState, WriteOutcome

ARM_AGAIN_NS: Final = 20_000_000
"""While a container grows fast, its thresholds follow this often."""
LOOKAHEAD_S: Final = 0.2
"""A request asks for what growth will take in so many seconds, on top of what is missing."""
KILL_SEEN_NS: Final = 2 * SETTLE_NS
"""A container that ends this soon after the kernel got its kill back was killed."""


class _Look(NamedTuple):
    """One look at one container."""

    guarded: Guarded
    state: MemoryState
    cause: OomCause
    now_ns: int


class MemoryGuard:
    """All guarded containers of a node."""

    def __init__(self, containers: Containers, reserves: Reserves, drift: DriftWatch, pause_deadline_ns: int) -> None:
        self._containers = containers
        self._reserves = reserves
        self._drift = drift
        self._pause_deadline_ns = pause_deadline_ns
        self._guarded: dict[str, Guarded] = {}
        self._restless: dict[str, Guarded] = {}  # those that may be hot, or in an episode
        self._asking: dict[str, Asking] = {}
        self._waits = WaitNotes(containers)
        self._shares = FairShares(containers, reserves)
        self.journal: Journal = drift.journal

    # -- who is guarded ----------------------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """Containers that are guarded."""
        return len(self._guarded)

    def is_guarded(self, key: str) -> bool:
        """Whether its memory is ours to guard."""
        return key in self._guarded

    def guard(self, key: str, now_ns: int) -> None:
        """An order for it was accepted, so it is enforced; or an agent before us guarded it."""
        known = self._containers.book.containers[key]
        if key not in self._guarded and (known.limit_bytes != UNLIMITED or known.limit_ordered):
            known.limit_ordered = True
            self._guarded[key] = Guarded(key, known.app)
            self._waits.take_over(self._guarded[key])
            begin_to_count(self._guarded[key], self._containers.members[key].handle)
            self._arm(self._guarded[key], self._containers.members[key], now_ns)

    def look_soon(self, key: str, now_ns: int) -> None:
        """The next `poll` looks at it, if it is guarded."""
        if (guarded := self._guarded.get(key)) is not None:
            self._restless[key] = guarded
            guarded.stay_hot(now_ns)

    def _arm(self, guarded: Guarded, member: Member, now_ns: int) -> None:
        guarded.armed_ns = now_ns
        member.handle.arm()

    def arm_again(self, key: str, now_ns: int) -> bool:
        """Follow usage; returns whether other hands had undone the guard."""
        if (guarded := self._guarded.get(key)) is None or guarded.released:
            return False
        member = self._containers.members[key]
        undone = member.handle.guard_was_undone()
        self._arm(guarded, member, now_ns)
        return undone

    def forget(self, member: Member, now_ns: int) -> None:
        """It is gone. The kernel's counter may have gone with it before it could be read."""
        guarded = self._guarded.pop(member.found.key, None)
        self._restless.pop(member.found.key, None)
        self._waits.forget(member.found.key)
        state = guarded.state if guarded else None
        if guarded is None or state is None or not guarded.released or not guarded.was_paused_at_release:
            return
        if member.oom_kills <= guarded.kills_at_release and now_ns - guarded.released_ns < KILL_SEEN_NS:
            reason = f"{guarded.released}; the container ended at once, and the kernel's counter with it"
            look = _Look(guarded, state, OomCause.KERNEL, now_ns)
            self._tell(look, OomKind.KILL, OomCause.KERNEL, reason, oom_kills=member.kills + 1)

    def limit_was_raised(self, key: str, now_ns: int) -> None:
        """An order gave it more: tasks go on."""
        guarded = self._guarded.get(key)
        if guarded is not None:
            guarded.end_pause()
            self._waits.note(guarded)
            self.look_soon(key, now_ns)

    def refuses_cut(self, key: str, limit_bytes: int, now_ns: int) -> bool:
        """Whether a lower limit must not be written now: it was granted more lately, or uses too much of it."""
        member, held_bytes = self._containers.members[key], self._containers.book.containers[key].limit_bytes
        if held_bytes != UNLIMITED and limit_bytes >= held_bytes:
            return False
        guarded = self._guarded.get(key)
        if guarded is not None and guarded.granted_ns is not None and now_ns - guarded.granted_ns < SETTLE_NS:
            self.journal.counters.refused_cuts += 1
            return True
        state = member.handle.read_memory()
        if state is None or not cut_is_dangerous(limit_bytes, state.usage_bytes, 0):
            return False
        dangerous = cut_is_dangerous(limit_bytes, state.usage_bytes, member.handle.read_reclaimable())
        self.journal.counters.refused_cuts += dangerous
        return dangerous

    # -- when to look ------------------------------------------------------------------------------------------

    def take_alarms(self, alarms: Iterable[Alarm], now_ns: int) -> None:
        """Look at those that gave an alarm; late and doubled ones do no harm."""
        self._wake(now_ns)
        causes: dict[str, OomCause] = {}
        for alarm in alarms:
            paused = alarm.kind is AlarmKind.PAUSED
            causes[alarm.key] = OomCause.LIMIT if paused else causes.get(alarm.key, OomCause.THRESHOLD)
        for key, cause in causes.items():
            if (guarded := self._guarded.get(key)) is not None:
                guarded.stay_hot(now_ns)
                self.look(key, cause, now_ns)

    def tick(self, keys: list[str], usage_bytes: IntArray, rate: np.ndarray[Any, Any], now_ns: int) -> None:
        """The periodic sample of all containers, shape (N,)."""
        self._wake(now_ns)
        if not self._guarded:
            return
        self._shares.take_sample(keys, usage_bytes)
        book = self._containers.book.containers
        limit_bytes = np.array([book[key].limit_bytes for key in keys], dtype=np.int64)
        near = np.flatnonzero(wants_a_look(usage_bytes, limit_bytes, rate)).tolist()
        looks = {keys[row] for row in near if keys[row] in self._guarded}
        looks |= {key for key, guarded in self._restless.items() if guarded.has_an_episode}
        for key in sorted(looks):
            self.look(key, OomCause.SAMPLE, now_ns)

    def next_poll_ns(self, now_ns: int) -> int | None:
        """When `poll` is due; None: nothing grows fast, nobody waits."""
        self._restless = {one.key: one for one in self._restless.values() if one.is_hot(now_ns) or one.has_an_episode}
        return now_ns + POLL_NS if any(one.is_hot(now_ns) for one in self._restless.values()) else None

    def poll(self, now_ns: int) -> None:
        """Look at all that grow fast or wait."""
        self._wake(now_ns)
        for guarded in list(self._restless.values()):
            if not guarded.is_hot(now_ns):
                continue
            self.journal.counters.polls += 1
            self.look(guarded.key, OomCause.SAMPLE, now_ns)
            if now_ns - guarded.armed_ns >= ARM_AGAIN_NS and not guarded.released:
                self._arm(guarded, self._containers.members[guarded.key], now_ns)

    def _wake(self, now_ns: int) -> None:
        for guarded in self._waits.after_silence(self._guarded.values(), now_ns):
            self.look(guarded.key, OomCause.SAMPLE, now_ns)

    def reserve_came(self, app: str, now_ns: int) -> None:
        """A reserve order was carried out: those that wait get what they need."""
        for guarded in self._short_of(app):
            self.look(guarded.key, OomCause.ALLOCATOR_REPLY, now_ns)

    # -- what to do --------------------------------------------------------------------------------------------

    def look(self, key: str, cause: OomCause, now_ns: int) -> None:
        """Read a guarded container's memory and do what it needs."""
        guarded, member = self._guarded[key], self._containers.members[key]
        self._restless[key] = guarded
        state = member.handle.read_memory()
        if state is not None and not same_memory(state.limit_bytes, self._containers.book.containers[key].limit_bytes):
            self._drift.check(key)
            state = member.handle.read_memory()
        if state is None:
            return  # vanished: the next sample notices
        guarded.read(state, now_ns)
        self._count_kills(guarded, state)
        look = _Look(guarded, state, cause, now_ns)
        if hits := limit_hits_of(guarded, state, member.handle, now_ns):
            self._tell(look, OomKind.LIMIT_HITS, OomCause.LIMIT, limit_hits_mean(state, hits), limit_hits=hits)
        if not guarded.released:
            self._relieve(look)
        elif guarded.may_be_armed_again(now_ns):
            guarded.released = ""
            guarded.has_enough()
            self._arm(guarded, member, now_ns)
        self._waits.note(guarded)

    def _relieve(self, look: _Look) -> None:
        guarded, state = look.guarded, look.state
        if state.paused:
            self._begin_pause(look)
        else:
            guarded.end_pause()
        need = guarded.need(state, self._reserves.container_max_of(guarded.app), self._reserves.left_of(guarded.app))
        granted = self._grant(look, need.added_bytes)
        if granted < need.added_bytes:
            self._lack(look, need.added_bytes - granted)
        else:
            guarded.has_enough()
        if state.paused and not granted:
            self._end_a_wait(look, need)

    def _begin_pause(self, look: _Look) -> None:
        if look.guarded.begin_pause(look.now_ns, self._pause_deadline_ns):
            usage, limit = mib(look.state.usage_bytes), mib(look.state.limit_bytes)
            seen = OomCause.LIMIT if look.cause is OomCause.LIMIT else OomCause.SAMPLE
            self._tell(look, OomKind.OOM_WAIT, seen, f"usage {usage} reached the limit of {limit}: tasks wait")

    def _grant(self, look: _Look, wanted_bytes: int) -> int:
        """Raise the limit by what the reserve covers; returns by how much."""
        guarded, state, now_ns = look.guarded, look.state, look.now_ns
        spent = self._shares.spend(guarded, state.limit_bytes, wanted_bytes)
        granted = spent // PAGE_BYTES * PAGE_BYTES
        self._reserves.refund(guarded.app, spent - granted)
        if granted == 0:
            return 0
        limit_bytes = state.limit_bytes + granted
        if self._containers.write_memory(guarded.key, limit_bytes) is not RowStatus.APPLIED:
            self._reserves.refund(guarded.app, granted)
            return 0
        self._tell(
            look,
            OomKind.GRANT,
            OomCause.DEADLINE if guarded.overdue(now_ns) else look.cause,
            f"usage {mib(state.usage_bytes)} of {mib(state.limit_bytes)}, growing by {mib(guarded.growth.rate)}/s",
            limit_after_bytes=limit_bytes,
            known_ns=now_ns if guarded.short_since_ns is None else guarded.short_since_ns,
            paused_us=guarded.paused_us(now_ns),
        )
        guarded.was_granted(limit_bytes, now_ns)
        return granted

    def _lack(self, look: _Look, missing_bytes: int) -> None:
        """The reserve is empty: ask for more, unless that is under way."""
        guarded, state = look.guarded, look.state
        guarded.lack(missing_bytes, look.now_ns)
        if not guarded.near_told and guarded.granted_ns != look.now_ns and not state.paused:
            guarded.near_told = True
            usage, limit, missing = mib(state.usage_bytes), mib(state.limit_bytes), mib(missing_bytes)
            reason = f"usage {usage} is near the limit of {limit}: {missing} more are needed, the reserve has none"
            self._tell(look, OomKind.NEAR_LIMIT, look.cause, reason)
        asking = self._asking.setdefault(guarded.app, Asking())
        if asking.may_ask(look.now_ns, guarded.paused_since_ns):
            asking.ask(look.now_ns)
            short = self._short_of(guarded.app)
            self.journal.ask(
                Asked(
                    app=guarded.app,
                    key=short[0].key,
                    wanted_bytes=sum(one.missing_bytes + int(one.growth.rate * LOOKAHEAD_S) for one in short),
                    usage_bytes=short[0].state.usage_bytes if short[0].state else 0,
                    limit_bytes=short[0].state.limit_bytes if short[0].state else UNLIMITED,
                    paused=short[0].paused_since_ns is not None,
                )
            )

    def _short_of(self, app: str) -> list[Guarded]:
        """Containers of an application that lack memory, the most urgent first."""
        return self._shares.short_of(app, self._guarded.values())

    def _end_a_wait(self, look: _Look, need: Need) -> None:
        """Tasks wait and nothing could be granted: whether they may wait any longer."""
        guarded, state = look.guarded, look.state
        usage, limit = mib(state.usage_bytes), mib(state.limit_bytes)
        if need.added_bytes == 0 and need.capped:
            most = mib(self._reserves.container_max_of(guarded.app))
            reason = f"usage {usage} of {limit}: no container of {guarded.app} may have more than {most}"
            self._release(look, OomCause.LIMIT, reason)
        elif guarded.overdue(look.now_ns):
            why = guarded.refusal or "nothing more could be had"
            if need.added_bytes == 0:
                why = f"usage {usage} is below the limit of {limit}: a group above is full"
            self._release(look, OomCause.DEADLINE, f"tasks waited for {self._pause_deadline_ns / 1e9:g} s: {why}")
        elif need.added_bytes == 0 and guarded.wants_waking(look.now_ns):
            self._containers.wake(guarded.key, state.limit_bytes)

    def _release(self, look: _Look, cause: OomCause, reason: str) -> None:
        guarded = look.guarded
        if self._containers.members[guarded.key].handle.release() is not WriteOutcome.WRITTEN:
            return  # vanished; or refused: the next poll tries again
        self._tell(look, OomKind.OOM_KILLER_ENABLED, cause, reason, paused_us=guarded.paused_us(look.now_ns))
        guarded.let_go(reason, look.now_ns, look.state.oom_kills)
        self._asking.setdefault(guarded.app, Asking()).released_ns = look.now_ns
        self._waits.note(guarded)

    # -- what comes back ---------------------------------------------------------------------------------------

    def answered(self, request: Asked, answer: Answer, now_ns: int) -> None:
        """A request was answered, refused, or was not answered in time."""
        asking = self._asking.setdefault(request.app, Asking())
        asking.answered(now_ns, refused=bool(answer.refusal))
        reason = answer.refusal or answer.silence
        if not reason:
            return
        short = self._short_of(request.app)
        for guarded in short:
            guarded.refusal = reason
        asker = next((one for one in short if one.key == request.key), short[0] if short else None)
        if asker is not None and asker.state is not None and not asker.refusal_told:
            asker.refusal_told = True
            look = _Look(asker, asker.state, OomCause.ALLOCATOR_REPLY, now_ns)
            paused_us = asker.paused_us(now_ns)
            self._tell(
                look,
                OomKind.GRANT_DENIED,
                OomCause.ALLOCATOR_REPLY,
                reason,
                known_ns=asking.asked_ns,
                paused_us=paused_us,
            )
        if answer.refusal:
            for guarded in filter(lambda _: asking.may_release(now_ns), self._shares.by_size(short)):
                self._kill_as_is_standard(guarded, reason, now_ns)
            if any(guarded.paused_since_ns is not None for guarded in short):
                asking.ask_again_soon(now_ns)

    def _kill_as_is_standard(self, guarded: Guarded, reason: str, now_ns: int) -> None:
        """A refusal ends a wait at once (thesis 2.4.4.2), unless the reserve has got something meanwhile."""
        if guarded.paused_since_ns is not None:
            self.look(guarded.key, OomCause.ALLOCATOR_REPLY, now_ns)
        if guarded.paused_since_ns is not None and guarded.state is not None:
            self._release(
                _Look(guarded, guarded.state, OomCause.ALLOCATOR_REPLY, now_ns), OomCause.ALLOCATOR_REPLY, reason
            )

    def kills_read(self, key: str, oom_kills: int) -> None:
        """The kernel's own counter, as read with the limits."""
        member = self._containers.members[key]
        if oom_kills > member.oom_kills:
            limit_bytes = self._containers.book.containers[key].limit_bytes
            state = member.handle.read_memory() or MemoryState(0, limit_bytes, paused=False, oom_kills=oom_kills)
            guarded = self._guarded.get(key) or Guarded(key, member.found.app)
            self._count_kills(guarded, state._replace(oom_kills=max(oom_kills, state.oom_kills)))

    def _count_kills(self, guarded: Guarded, state: MemoryState) -> None:
        """Where the kernel's counter has risen: tell, and say why nothing could be done."""
        member = self._containers.members[guarded.key]
        if state.oom_kills <= member.oom_kills:
            return
        member.oom_kills, guarded.granted_ns = state.oom_kills, None  # what it leaves may be taken at once
        reason = guarded.released or kill_reason(guarded, state, is_guarded=self.is_guarded(guarded.key))
        look = _Look(guarded, state, OomCause.KERNEL, 0)
        self._tell(look, OomKind.KILL, OomCause.KERNEL, reason, oom_kills=member.kills)

    def release_all(self, now_ns: int) -> None:
        """The agent stops: whoever waits is left to the kernel (restoring the limits does it)."""
        for guarded in self._guarded.values():
            if guarded.paused_since_ns is not None and guarded.state is not None:
                look = _Look(guarded, guarded.state, OomCause.SHUTDOWN, now_ns)
                reason = "the agent stops: the kernel's own behaviour is restored"
                self._tell(
                    look, OomKind.OOM_KILLER_ENABLED, OomCause.SHUTDOWN, reason, paused_us=guarded.paused_us(now_ns)
                )

    def released_by_others(self, key: str, reason: str, now_ns: int) -> None:
        """The watchdog gave the kernel its kill back: armed again as after a release of our own."""
        guarded = self._guarded.get(key)
        if guarded is not None and not guarded.released:
            self._restless[key] = guarded
            guarded.let_go(reason, now_ns, self._containers.members[key].oom_kills)

    def _tell(self, look: _Look, kind: OomKind, cause: OomCause, reason: str, **details: int) -> None:
        state = look.state
        values = {"limit_after_bytes": state.limit_bytes} | details
        self.journal.tell(
            Occurrence(
                kind=kind,
                cause=cause,
                key=look.guarded.key,
                app=look.guarded.app,
                usage_bytes=state.usage_bytes,
                limit_before_bytes=state.limit_bytes,
                reserve_bytes=self._reserves.left_of(look.guarded.app),
                reason=reason,
                **values,
            )
        )
