"""``python -m services.agent`` that does not know how idle its machine is.

On a machine whose processors are full nothing is decreased (decision 40): a test that waits for a decrease would wait
for other work on the machine to end. What is decided on a full machine is tested on given observations.
"""

from __future__ import annotations

from services._runtime.service.app import main
from services.agent.cgroup.host import CgroupHost
from services.agent.service import Agent


def _unknown(_host: CgroupHost) -> None:
    """As a host that does not tell."""


if __name__ == "__main__":
    CgroupHost.read_idle = _unknown  # type: ignore[method-assign]
    main(Agent)
