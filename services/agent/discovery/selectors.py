"""Which pods join an application that Kubernetes declares: read from the bucket `pod_selectors` now and then.

Apart from `pods`, which needs the package of gRPC.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from schemas.kubeoperator import SELECTORS_KEY, PodSelectors
from schemas.streams import POD_SELECTORS
from services._runtime.bus.api import Bus, BusError
from services._runtime.clock import Clock
from services._runtime.telemetry.logging import get_logger

READ_INTERVAL_S: Final = 5.0


async def follow_selectors(bus: Bus, clock: Clock, select: Callable[[PodSelectors], None]) -> None:
    """Hand what is read to the discovery of pods, until cancelled. Without the bus: what was read last stays."""
    while True:
        try:
            entry = await bus.bucket(POD_SELECTORS).get(SELECTORS_KEY)
        except BusError as error:
            get_logger("agent").debug("pod_selectors_not_read", error=str(error))
        else:
            message = PodSelectors() if entry is None else entry.message
            if isinstance(message, PodSelectors):
                select(message)
        await clock.sleep_until(clock.monotonic() + READ_INTERVAL_S)
