"""The watchdog: ends waits at a memory limit while the agent does not live. Started by the agent, outlives it.

It reads a byte per tick from its standard input. When that ends (the agent has died) or stays silent (it is stopped),
it looks after the containers whose memory is guarded, which it knows from the state directory: who waits at the limit
is granted memory out of the reserve of its application; where none is left, the kernel gets its kill back after the
deadline. It stands back when bytes come again, ends when another agent has taken over or when it is told to, and ends
after a minute without an agent, with the kernel's own behaviour restored everywhere and the limits as they are.

Knows the standard library only, so that it starts fast, stays small, and nothing that it needs can break.
"""

from __future__ import annotations

import os
import select
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from services.agent.adapters.state_files import (
    FoundValues,
    ReserveFile,
    StateDirectory,
    append_report,
    is_locked,
    read_holder,
    take_out,
)

POLL_S: Final = 0.025
GRANTING_POLL_S: Final = 0.005
"""While somebody who was granted memory grows on."""
GRANTING_S: Final = 0.1
MISSED_BEAT_S: Final = 0.15
"""Beats come every 100 ms."""
RESCAN_S: Final = 1.0
LOCK_CHECK_S: Final = 0.25
ORPHANED_S: Final = 60.0
GRANT_BYTES: Final = 32 << 20
NEAR_BYTES: Final = 2 << 20
"""Closer to the limit than this, with nothing to reclaim, counts as waiting: reclaim may spin without an event."""
CROWDED_S: Final = 1.0
"""Pages refused at the limit for so long, although reclaim finds some each time: granted, too, out of the reserve."""
WAKE_S: Final = 0.1
"""Between two attempts to wake tasks that sleep although there is room."""
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_READ_ONLY: Final = frozenset({"memory.events"})
_UNLIMITED: Final = 1 << 62
_BYE: Final = b"q"


class Memory(NamedTuple):
    """One look at a group."""

    usage_bytes: int
    limit_bytes: int
    near: bool
    """Reclaim is all that makes room."""
    asleep: bool
    """Version 1: tasks wait as if the limit had been reached (under_oom)."""
    waiting: bool
    """Reclaim makes none."""
    refusals: int
    """How often pages were refused at the limit, ever."""


class Group:
    """One guarded group's control files, kept open. Methods raise OSError once it has vanished."""

    def __init__(self, found: FoundValues, waiting_since_s: float | None, unwatched_since_s: float) -> None:
        """Open nothing yet.

        Args:
            found: the group.
            waiting_since_s: since when its tasks wait, as the agent noted.
            unwatched_since_s: when the agent was last known to look after it.
        """
        self.key = found.key
        self.app = found.app
        self.inode = found.inode
        self.version = found.version
        self.original_trap = found.values.get("memory.oom_control", "0")
        self.waiting_since_s = waiting_since_s
        self.unwatched_since_s = unwatched_since_s
        """When it was last known that nobody waited."""
        self.released = False
        self.woken_s = 0.0
        self._near_since_s: float | None = None
        self._refusals = 0
        self._directory = found.directories["memory"]
        self._descriptors: dict[str, int] = {}

    def _descriptor(self, name: str) -> int:
        if name not in self._descriptors:
            mode = os.O_RDONLY if name in _READ_ONLY else os.O_RDWR
            self._descriptors[name] = os.open(f"{self._directory}/{name}", mode | os.O_CLOEXEC)
        return self._descriptors[name]

    def _read(self, name: str) -> int:
        text = os.pread(self._descriptor(name), 64, 0).strip()
        return _UNLIMITED if text == b"max" else int(text)

    def _write(self, name: str, value: str) -> None:
        os.pwrite(self._descriptor(name), value.encode(), 0)

    def _reclaimable_bytes(self) -> int:
        """Inactive page cache of the group and those below it."""
        key = "total_inactive_file " if self.version == 1 else "inactive_file "
        for line in Path(f"{self._directory}/memory.stat").read_text(encoding="ascii").splitlines():
            if line.startswith(key):
                return int(line.removeprefix(key))
        return 0

    def _read_high_events(self) -> int:
        for line in os.pread(self._descriptor("memory.events"), 512, 0).splitlines():
            if line.startswith(b"high "):
                return int(line.removeprefix(b"high "))
        return 0

    def look(self) -> Memory:
        """Usage, limit, and whether anybody waits."""
        if self.version == 1:
            usage, limit = self._read("memory.usage_in_bytes"), self._read("memory.limit_in_bytes")
            text = os.pread(self._descriptor("memory.oom_control"), 256, 0).split()
            near, asleep, refusals = usage + NEAR_BYTES >= limit, text[3] == b"1", self._read("memory.failcnt")
            waiting = near and (asleep or usage - self._reclaimable_bytes() + 2 * NEAR_BYTES >= limit)
        else:
            usage, limit, high = self._read("memory.current"), self._read("memory.max"), self._read("memory.high")
            near, asleep, refusals = usage >= high, False, self._read_high_events()
            waiting = near and usage - self._reclaimable_bytes() + 2 * NEAR_BYTES >= high
        return Memory(usage, limit, near, asleep, waiting, refusals)

    def crowded(self, seen: Memory, now_s: float) -> bool:
        """Whether it has been near the limit for long, and refused pages, though nobody waits for good."""
        if not seen.near:
            self._near_since_s = None
        elif self._near_since_s is None:
            self._near_since_s, self._refusals = now_s, seen.refusals
        elif now_s - self._near_since_s >= CROWDED_S:
            crowded = seen.refusals > self._refusals
            self._near_since_s, self._refusals = now_s, seen.refusals
            return crowded
        return False

    def grant(self, seen: Memory, granted_bytes: int) -> int:
        """Raise the limit by so much; returns the new one."""
        limit = seen.limit_bytes + granted_bytes
        if self.version == 1:
            with suppress(FileNotFoundError):  # the kernel does not account for swap
                if self._read("memory.memsw.limit_in_bytes") < limit:
                    self._write("memory.memsw.limit_in_bytes", str(limit))
            self._write("memory.limit_in_bytes", str(limit))
        else:
            high = self._read("memory.high")
            self._write("memory.max", str(limit))
            self._write("memory.high", str(high + granted_bytes))
        return limit

    def wake(self) -> None:
        """Let tasks try again that sleep although there is room. Version 1.

        The kernel wakes who sleeps when a limit is raised, but not a task that was refused memory before that and lies
        down after it (mem_cgroup_oom_synchronize in mm/memcontrol-v1.c). Where a group above is full, they lie down
        again.
        """
        for name in ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"):
            with suppress(OSError):  # the first may not exceed the second
                held = self._read(name)
                self._write(name, str(held + _PAGE_BYTES))
                self._write(name, str(held))
                return

    def release(self) -> None:
        """Give the kernel its kill back."""
        if self.version == 1:
            self._write("memory.oom_control", self.original_trap)
        else:
            self._write("memory.high", "max")
        self.released = True

    def force_release(self) -> None:
        """Like `release`, also where the container came with its kill taken away: somebody waits now."""
        self.original_trap = "0"
        self.release()

    def close(self) -> None:
        """Close the files."""
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()


class Options(NamedTuple):
    """The command line."""

    state: StateDirectory
    lock: Path
    agent_pid: int
    pause_deadline_s: float
    silence_s: float


class Watchdog:
    """Listens to the agent, and acts instead of it."""

    def __init__(self, options: Options, beats: int) -> None:
        self._options = options
        self._reserves = ReserveFile(options.state.reserves)
        self._beats = beats
        self._poll = select.poll()
        self._poll.register(beats, select.POLLIN)
        self._ended = False
        """Whether the agent's end of the pipe is closed."""
        self._last_beat_s = time.monotonic()
        self._groups: dict[str, Group] = {}
        self._acting = False
        self._rescan_s = 0.0
        self._lock_check_s = 0.0
        self._granted_s = 0.0

    def run(self) -> None:
        """Until there is nothing more to watch."""
        while self._listen():
            now_s = time.monotonic()
            if not self._ended and now_s < self._act_at_s():
                self._stand_back()
            elif not self._act(now_s, now_s - self._last_beat_s):
                break
        self._stand_back()

    def _act_at_s(self) -> float:
        """When silence is not tolerated any longer: at one missed beat where a wait is beyond its deadline."""
        at_s = self._last_beat_s + self._options.silence_s
        oldest_ns = self._options.state.oldest_wait_ns()
        if oldest_ns is None:
            return at_s
        overdue_s = oldest_ns / 1e9 + self._options.pause_deadline_s
        return min(at_s, max(self._last_beat_s + MISSED_BEAT_S, overdue_s))

    def _listen(self) -> bool:
        """Wait for a byte, for as long as nothing else is to be done. False: told to end."""
        now_s = time.monotonic()
        pause_s = GRANTING_POLL_S if now_s - self._granted_s < GRANTING_S else POLL_S
        if self._ended:
            time.sleep(pause_s)
            return True
        if not self._acting:
            pause_s = max(self._act_at_s() - now_s, 0) + 0.001
        if self._poll.poll(pause_s * 1000):
            said = os.read(self._beats, 4096)
            if said.endswith(_BYE):
                return False
            self._ended = not said
            self._last_beat_s = time.monotonic()
        return True

    def _stand_back(self) -> None:
        self._acting = False
        for group in self._groups.values():
            group.close()
        self._groups.clear()

    def _act(self, now_s: float, silent_s: float) -> bool:
        """Look after all groups once; False: there is nothing left to do here, ever."""
        if not self._acting:
            self._acting, self._rescan_s, self._lock_check_s = True, 0.0, 0.0
        if now_s >= self._lock_check_s:
            self._lock_check_s = now_s + LOCK_CHECK_S
            if self._replaced():
                return False
        if now_s >= self._rescan_s:
            self._rescan_s = now_s + RESCAN_S
            self._scan()
        if self._ended and not self._groups:
            return False
        orphaned = silent_s >= ORPHANED_S
        for group in list(self._groups.values()):
            try:
                if orphaned:
                    group.release()
                elif not group.released:
                    self._look_after(group, now_s)
            except (OSError, ValueError, IndexError):  # it has vanished: the next scan proves it
                self._groups.pop(group.key).close()
        return not orphaned

    def _replaced(self) -> bool:
        """Whether another agent than ours manages this host now; its own watchdog is in charge then."""
        if not is_locked(self._options.lock):
            return False
        holder = read_holder(self._options.lock)
        return holder is not None and holder.pid != self._options.agent_pid

    def _scan(self) -> None:
        guarded = {found.key: found for found in self._options.state.load_all() if found.guarded and found.exists()}
        for key in self._groups.keys() - guarded.keys():
            self._groups.pop(key).close()
        for key in guarded.keys() - self._groups.keys():
            noted_ns = self._options.state.waiting_since_ns(key)
            self._groups[key] = Group(guarded[key], noted_ns and noted_ns / 1e9, self._last_beat_s)

    def _look_after(self, group: Group, now_s: float) -> None:
        seen = group.look()
        crowded = group.crowded(seen, now_s)
        if not seen.waiting:
            if seen.asleep and now_s - group.woken_s >= WAKE_S:
                group.woken_s = now_s
                group.wake()
            if crowded and self._grant(group, seen, 0):
                self._granted_s = now_s
            self._note_wait(group, None)
            group.unwatched_since_s = now_s
            return
        if group.waiting_since_s is None:
            self._note_wait(group, group.unwatched_since_s)
        waited_s = now_s - (group.waiting_since_s or now_s)
        if self._grant(group, seen, waited_s):
            self._granted_s = group.unwatched_since_s = now_s
            self._note_wait(group, None)
        elif waited_s >= self._options.pause_deadline_s:
            group.force_release()
            self._report(group, seen, seen.limit_bytes, waited_s)
            self._note_wait(group, None)

    def _note_wait(self, group: Group, since_s: float | None) -> None:
        if group.waiting_since_s != since_s:
            group.waiting_since_s = since_s
            self._options.state.note_wait(group.key, None if since_s is None else int(since_s * 1e9))

    def _grant(self, group: Group, seen: Memory, waited_s: float) -> bool:
        changed = self._reserves.change(group.app, lambda amounts: take_out(amounts, GRANT_BYTES))
        granted_bytes = (changed[1][1] - changed[0][1]) // _PAGE_BYTES * _PAGE_BYTES if changed is not None else 0
        if not granted_bytes:
            return False
        try:
            limit_bytes = group.grant(seen, granted_bytes)
        except OSError:
            self._reserves.change(group.app, lambda amounts: (amounts[0], max(amounts[1] - granted_bytes, 0)))
            return False
        self._report(group, seen, limit_bytes, waited_s)
        return True

    def _report(self, group: Group, seen: Memory, limit_after_bytes: int, waited_s: float) -> None:
        report = {
            "key": group.key,
            "app": group.app,
            "time_ns": time.time_ns(),
            "granted": limit_after_bytes > seen.limit_bytes,
            "usage_bytes": seen.usage_bytes,
            "limit_before_bytes": seen.limit_bytes,
            "limit_after_bytes": limit_after_bytes,
            "paused_us": int(waited_s * 1e6),
        }
        with suppress(OSError):  # the state directory may be full: what was done is done
            append_report(self._options.state.reports, report)


def main(arguments: list[str]) -> None:
    """Run with: state directory of the managed root, its lock, pid of the agent, pause deadline, silence (seconds).

    Started with the signals that end it blocked (`services.agent.adapters.watchdog_process`), all but SIGKILL.
    """
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("-900", encoding="ascii")
    state, lock, agent_pid, pause_deadline_s, silence_s = arguments
    options = Options(
        StateDirectory(Path(state)), Path(lock), int(agent_pid), float(pause_deadline_s), float(silence_s)
    )
    Watchdog(options, sys.stdin.fileno()).run()


if __name__ == "__main__":
    main(sys.argv[1:])
