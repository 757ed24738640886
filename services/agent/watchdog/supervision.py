"""What the watchdog does: it controls memory while the agent does not run. Started by the agent, outlives it.

It reads a byte per period from its standard input. When that ends (the agent has died) or is silent (it is stopped),
it supervises the containers under OOM control, which it knows from the state directory. Each is granted free memory at
once; then a container that grows is granted memory by the agent's own rule (`services.agent.memory.growth`), out of the
reserve of its application and nothing else, so the accounts stay true; where none is left, the OOM killer is enabled
after the deadline. It stops when bytes come again, ends when another agent has taken over or on the agent's command,
and ends after a minute without an agent, with the kernel's own behaviour restored everywhere; the limits stay.

Knows the standard library only, so that it starts fast, stays small, and nothing that it needs can break.
"""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from services._runtime.file_lock import is_locked
from services.agent.memory.growth import LEAST_POLL_S, MOST_POLL_S, PAGE_BYTES, FreeMemory, initial_grants, next_poll_s
from services.agent.memory.reserve_file import ReserveFile, take_out
from services.agent.state_files import Loaded, StateDirectory, read_holder
from services.agent.watchdog.group import Group, Memory
from services.agent.watchdog.reports import append_reports

BUSY_SHARE: Final = 3
"""Where many containers are read, at least this many times what that takes lies between two passes."""
MISSED_HEARTBEAT_S: Final = 0.15
"""Heartbeats come every 100 ms."""
RESCAN_S: Final = 1.0
PRELOAD_S: Final = 5.0
"""While the agent lives, changed state files are read this often: little is left to be read at its death."""
LOCK_CHECK_S: Final = 0.25
EMPTY_S: Final = 0.1
"""An empty reserve is read again after this long: only an agent fills it."""
ORPHANED_S: Final = 60.0
THRASHING_BYTES: Final = 32 << 20
"""Granted to a container that thrashes (`Group.is_thrashing`), up to its greatest limit."""
WAKE_S: Final = 0.1
"""Between two attempts to wake tasks that sleep although there is room."""
_NO_MAXIMUM: Final = 1 << 62
_BYE: Final = b"q"


class Options(NamedTuple):
    """The command line."""

    state: StateDirectory
    lock: Path
    agent_pid: int
    oom_wait_timeout_s: float
    timeout_s: float


class Watchdog:
    """Listens to the agent, and acts instead of it."""

    def __init__(self, options: Options, heartbeats: int) -> None:
        self._options = options
        self._reserves = ReserveFile(options.state.reserves)
        self._heartbeats = heartbeats
        self._poll = select.poll()
        self._poll.register(heartbeats, select.POLLIN)
        self._ended = False
        """Whether the agent's end of the pipe is closed."""
        self._last_beat_s = time.monotonic()
        self._groups: dict[str, Group] = {}
        self._loaded: Loaded = {}
        self._preload_s = 0.0
        self._container_max: dict[str, int] = {}
        self._empty_until_s: dict[str, float] = {}
        """By application: its reserve had nothing."""
        self._unwritten: list[dict[str, Any]] = []
        self._acting = False
        self._rescan_s = 0.0
        self._lock_check_s = 0.0
        self._pass_s = 0.0
        """What the last pass over the groups took."""

    def run(self) -> None:
        """Until there is nothing more to watch."""
        while self._listen():
            now_s = time.monotonic()
            if not self._ended and now_s < self._act_at_s():
                self._stop_acting()
            elif not self._act(now_s, now_s - self._last_beat_s):
                break
        self._stop_acting()

    def _act_at_s(self) -> float:
        """When silence is not tolerated any longer: at one missed beat where a wait is beyond its deadline."""
        at_s = self._last_beat_s + self._options.timeout_s
        oldest_ns = self._options.state.oldest_wait_ns()
        if oldest_ns is None:
            return at_s
        overdue_s = oldest_ns / 1e9 + self._options.oom_wait_timeout_s
        return min(at_s, max(self._last_beat_s + MISSED_HEARTBEAT_S, overdue_s))

    def _listen(self) -> bool:
        """Wait for a byte, until the next action is due. False: the agent ended it."""
        pause_s = self._pause_s(time.monotonic())
        if self._ended:
            time.sleep(pause_s)
            return True
        if self._poll.poll(pause_s * 1000):
            received = os.read(self._heartbeats, 4096)
            if received.endswith(_BYE):
                return False
            self._ended = not received
            self._last_beat_s = time.monotonic()
        return True

    def _pause_s(self, now_s: float) -> float:
        """Until the next group is due; until silence is not tolerated any longer; at most a third of a processor."""
        if not self._acting:
            return max(self._act_at_s() - now_s, 0) + 0.001
        due_s = min((group.due_s for group in self._groups.values()), default=now_s + MOST_POLL_S)
        return max(due_s - now_s, LEAST_POLL_S, (BUSY_SHARE - 1) * self._pass_s)

    def _stop_acting(self) -> None:
        if self._acting:
            self._acting = False
            for group in self._groups.values():
                group.close()
            self._groups.clear()
        now_s = time.monotonic()
        if now_s >= self._preload_s:
            self._preload_s = now_s + PRELOAD_S
            self._options.state.load_all(self._loaded)

    def _act(self, now_s: float, gap_s: float) -> bool:
        """Supervise all groups that are due; False: there is nothing left to do here, ever."""
        if not self._acting:
            self._acting, self._rescan_s, self._lock_check_s = True, 0.0, 0.0
            self._empty_until_s.clear()
        if now_s >= self._lock_check_s:
            self._lock_check_s = now_s + LOCK_CHECK_S
            if self._is_replaced():
                return False
        if now_s >= self._rescan_s:
            self._rescan_s = now_s + RESCAN_S
            self._scan()
        if self._ended and not self._groups:
            return False
        if gap_s >= ORPHANED_S:
            self._try_each(self._groups.values(), Group.enable_oom_killer)
            return False
        self._grant_initial(now_s)
        due = [group for group in self._groups.values() if group.due_s <= now_s]
        self._try_each(due, lambda group: self._supervise(group, now_s))
        self._write_reports()
        self._pass_s = time.monotonic() - now_s
        return True

    def _try_each(self, groups: Iterable[Group], act: Callable[[Group], None]) -> None:
        for group in list(groups):
            try:
                act(group)
            except (OSError, ValueError, IndexError):  # it has vanished: the next scan proves it
                self._groups.pop(group.key).close()

    def _is_replaced(self) -> bool:
        """Whether another agent manages this host now; its own watchdog is in charge then."""
        if not is_locked(self._options.lock):
            return False
        holder = read_holder(self._options.lock)
        return holder is not None and holder.pid != self._options.agent_pid

    def _scan(self) -> None:
        self._container_max = self._reserves.read_container_max()
        all_found = self._options.state.load_all(self._loaded)
        guarded = {found.key: found for found in all_found if found.guarded and found.exists()}
        for key in self._groups.keys() - guarded.keys():
            self._groups.pop(key).close()
        for key in guarded.keys() - self._groups.keys():
            noted_ns = self._options.state.oom_wait_since_ns(key)
            self._groups[key] = Group(guarded[key], noted_ns and noted_ns / 1e9, self._last_beat_s)

    def _max_bytes(self, app: str) -> int:
        return self._container_max.get(app, _NO_MAXIMUM)

    def _left_bytes(self, app: str) -> int:
        given, used = self._reserves.read().get(app, (0, 0))
        return max(given - used, 0) // PAGE_BYTES * PAGE_BYTES

    def _grant_initial(self, now_s: float) -> None:
        """Once for each container: what it may grow by before it is read, the least free first."""
        by_app: dict[str, list[Group]] = {}
        for group in self._groups.values():
            if not group.initial_granted:
                group.initial_granted = True
                by_app.setdefault(group.app, []).append(group)
        for app, groups in by_app.items():
            self._grant_initial_of_app(app, groups, now_s)

    def _grant_initial_of_app(self, app: str, groups: list[Group], now_s: float) -> None:
        free: list[tuple[FreeMemory, Group, Memory]] = []

        def read(group: Group) -> None:
            memory = group.read(now_s)
            free.append((group.free_memory(memory, self._max_bytes(app)), group, memory))

        self._try_each(groups, read)
        free.sort(key=lambda row: row[0].free_bytes)
        added = initial_grants([free_memory for free_memory, _, _ in free], self._left_bytes(app))
        for (_, group, memory), size_bytes in zip(free, added, strict=True):
            if size_bytes:
                self._grant(group, memory, size_bytes, now_s)

    def _supervise(self, group: Group, now_s: float) -> None:
        if group.killer_enabled:
            group.due_s = now_s + MOST_POLL_S
            return
        memory = group.read(now_s)
        is_thrashing = group.is_thrashing(memory, now_s)
        group.due_s = now_s + (LEAST_POLL_S if memory.near else next_poll_s(memory.limit_bytes - memory.usage_bytes))
        wanted_bytes = 0
        if now_s >= self._empty_until_s.get(group.app, 0.0):
            max_bytes = self._max_bytes(group.app)
            wanted_bytes = group.need(memory, max_bytes, self._left_bytes(group.app)).added_bytes
            if is_thrashing and not wanted_bytes:
                wanted_bytes = max(min(THRASHING_BYTES, max_bytes - memory.limit_bytes), 0)
        granted = self._grant(group, memory, wanted_bytes, now_s) if wanted_bytes else False
        if granted or not memory.paused:
            group.unobserved_since_s = now_s
            self._record_oom_wait(group, None)
            if memory.blocked and not memory.near and now_s - group.woken_s >= WAKE_S:
                group.woken_s = now_s
                group.wake()
            return
        if group.oom_wait_since_s is None:
            self._record_oom_wait(group, group.unobserved_since_s)
        if now_s - (group.oom_wait_since_s or now_s) >= self._options.oom_wait_timeout_s:
            group.force_oom_killer()
            self._report(group, memory, memory.limit_bytes, now_s)
            self._record_oom_wait(group, None)

    def _record_oom_wait(self, group: Group, since_s: float | None) -> None:
        if group.oom_wait_since_s != since_s:
            group.oom_wait_since_s = since_s
            self._options.state.record_oom_wait(group.key, None if since_s is None else int(since_s * 1e9))

    def _grant(self, group: Group, memory: Memory, wanted_bytes: int, now_s: float) -> bool:
        """Raise its limit by as much as the reserve has: first spent, then raised, then reported."""
        changed = self._reserves.change(group.app, lambda amounts: take_out(amounts, wanted_bytes))
        if changed is None:
            return False
        spent_bytes = changed[1][1] - changed[0][1]
        granted_bytes = spent_bytes // PAGE_BYTES * PAGE_BYTES
        if not granted_bytes:
            self._empty_until_s[group.app] = now_s + EMPTY_S
            self._refund(group.app, spent_bytes)
            return False
        try:
            limit_bytes = group.grant(memory, granted_bytes)
        except OSError:
            self._refund(group.app, spent_bytes)
            return False
        self._refund(group.app, spent_bytes - granted_bytes)
        self._report(group, memory, limit_bytes, now_s)
        return True

    def _refund(self, app: str, unspent_bytes: int) -> None:
        if unspent_bytes:
            self._reserves.change(app, lambda amounts: (amounts[0], max(amounts[1] - unspent_bytes, 0)))

    def _report(self, group: Group, memory: Memory, limit_after_bytes: int, now_s: float) -> None:
        waited_s = now_s - group.oom_wait_since_s if memory.paused and group.oom_wait_since_s is not None else 0.0
        self._unwritten.append(
            {
                "key": group.key,
                "app": group.app,
                "time_ns": time.time_ns(),
                "granted": limit_after_bytes > memory.limit_bytes,
                "usage_bytes": memory.usage_bytes,
                "limit_before_bytes": memory.limit_bytes,
                "limit_after_bytes": limit_after_bytes,
                "paused_us": int(waited_s * 1e6),
            }
        )

    def _write_reports(self) -> None:
        if self._unwritten:
            with suppress(OSError):  # the state directory may be full: what was done is done
                append_reports(self._options.state.reports, self._unwritten)
            self._unwritten.clear()


def main(arguments: list[str]) -> None:
    """Run with: state directory of the managed root, its lock, the agent's pid, OOM wait and heartbeat timeouts (s).

    Started with the signals that end it blocked (`services.agent.watchdog.process`), all but SIGKILL.
    """
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("-900", encoding="ascii")
    state, lock, agent_pid, oom_wait_timeout_s, timeout_s = arguments
    options = Options(
        StateDirectory(Path(state)), Path(lock), int(agent_pid), float(oom_wait_timeout_s), float(timeout_s)
    )
    Watchdog(options, sys.stdin.fileno()).run()


if __name__ == "__main__":
    main(sys.argv[1:])
