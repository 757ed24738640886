"""The watchdog's process: ``python -m services.agent.watchdog``, which `services.agent.watchdog.process` starts."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

from services.agent.state_files import StateDirectory
from services.agent.watchdog.supervision import Options, Watchdog


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
