"""The reconciler's core and kernel adapter without its service: a pass at every event, for machines without a bus.

python -m tests.lab.vm.guest_reconcile <network namespace>
"""

from __future__ import annotations

import select
import sys
from collections.abc import Sequence

from services._host.netlink.objects import Snapshot
from services.reconciler.adapters.kernel import Kernel
from services.reconciler.core.config import ForwardingConfig
from services.reconciler.core.desired import desired
from services.reconciler.core.errno_actions import ErrnoAction, errno_action
from services.reconciler.core.operation import Operation
from services.reconciler.core.plan import plan

EVERY_S = 1.0
SETTLE_S = 0.05
PASSES_MAX = 10


class Passes:
    """Passes over one host."""

    def __init__(self, netns: str | None, config: ForwardingConfig) -> None:
        self.kernel = Kernel(netns)
        self.config = config

    def look(self) -> Snapshot:
        """What the kernel holds now."""
        ports = [link.ifindex for link in self.kernel.links() if link.name in self.config.application_macs]
        return self.kernel.snapshot(ports)

    def plan(self) -> tuple[Operation, ...]:
        """What is to be written."""
        snapshot = self.look()
        return plan(snapshot, desired(snapshot, self.config)).operations

    def settle(self) -> Sequence[Operation]:
        """Passes until there is nothing to write; everything that was written.

        The kernel lets go of a deleted filter's actions some time later, so deleting those is refused at first.

        Raises:
            AssertionError: the kernel refused something for good.
        """
        done: list[Operation] = []
        for _ in range(PASSES_MAX):
            operations = self.plan()
            if not operations:
                return done
            errnos = self.kernel.apply(operations)
            for operation, code in zip(operations, errnos, strict=True):
                assert errno_action(operation, code) in {ErrnoAction.DONE, ErrnoAction.DRIFT}, (operation, code)
            done += [operation for operation, code in zip(operations, errnos, strict=True) if not code]
        raise AssertionError(f"still something to write after {PASSES_MAX} passes: {operations}")


def main() -> None:
    """For ever."""
    netns = sys.argv[1]
    passes = Passes(netns, ForwardingConfig("vxenc0", {"rep0": (f"02:00:00:00:00:0{netns[1:]}",)}))
    with passes.kernel.subscribe() as events:
        while True:
            operations = passes.plan()
            errnos = passes.kernel.apply(operations)
            for operation, code in zip(operations, errnos, strict=True):
                print(operation.kind, *operation.key, operation.reason, code, flush=True)  # noqa: T201 - its log
            if select.select([events], [], [], EVERY_S)[0]:
                select.select([], [], [], SETTLE_S)
                events.read()


if __name__ == "__main__":
    main()
