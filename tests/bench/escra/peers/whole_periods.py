"""Batches as peers know them: one per period. What agents tell between two samples is added to the next one.

An early batch says which containers have just been throttled; the sample after it covers the whole period but does not
count that throttling again (`schemas.cfs.SampleFlag.EARLY`). Peers were made for samples of whole periods: without the
early ones they would be blind to most throttling, and by them they would count periods twice.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

import numpy as np

from schemas.cfs import CfsBatch


class WholePeriods:
    """Remembers early throttling until the sample to which it belongs."""

    def __init__(self) -> None:
        self._told: defaultdict[tuple[str, str, int], Counter[str]] = defaultdict(Counter)
        """By application, node and the agent's incarnation: throttled periods by container."""

    def of(self, batches: Iterable[CfsBatch]) -> list[CfsBatch]:
        """The samples among these, with what was told early added; early ones are kept for the next call."""
        whole = []
        for batch in batches:
            origin = (batch.app, batch.node, batch.incarnation)
            if batch.is_early:
                counts = zip(batch.keys, batch.column("throttled").tolist(), strict=True)
                self._told[origin].update({key: count for key, count in counts if count})
            elif told := self._told.pop(origin, None):
                added = np.array([told[key] for key in batch.keys], dtype=CfsBatch.column_types["throttled"])
                whole.append(batch.model_copy(update={"throttled": (batch.column("throttled") + added).tobytes()}))
            else:
                whole.append(batch)
        return whole

    def forget(self) -> None:
        """Another policy begins."""
        self._told.clear()
