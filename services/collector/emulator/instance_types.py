"""Instance types of the emulated cloud: what one machine of each kind gets of this one, and what it is said to cost.

The seven types follow those of the thesis (4.4.2) in name and in ratio, and are no measurement of them: a processor
core here stands for 32 vCPUs there, memory is divided by 75 (and capped at 1,024 MB). Prices are those types' list
prices as remembered, not looked up, and spot prices 30 % of them: synthetic. Network rates are ours: the cloud's
differ by less than it takes to see an effect.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import date
from typing import Final

from schemas.jobs import Configuration, Price

PROVIDER: Final = "emulated"
MEGABYTE: Final = 1_000_000
MEGABIT: Final = 1_000_000
PRICES_AS_OF: Final = date(2026, 11, 21)


@dataclass(frozen=True, slots=True)
class InstanceType:
    """What one machine gets."""

    name: str
    cpu_cores: float
    """Quota: this share of a processor's time in every period."""
    memory_mb: int
    """Limit of what training holds beyond the interpreter and its libraries, which all workers share."""
    network_mbps: float
    """Megabits per second, each way."""
    usd_per_hour: float
    spot_usd_per_hour: float | None = None

    @property
    def memory_bytes(self) -> int:
        """The limit for the kernel."""
        return self.memory_mb * MEGABYTE

    @property
    def network_bits_per_s(self) -> int:
        """The rate for the token bucket."""
        return round(self.network_mbps * MEGABIT)

    @property
    def threads(self) -> int:
        """Threads for torch: as many as the quota can keep busy."""
        return math.ceil(self.cpu_cores)

    def configuration(self, workers: int, batch_size: int) -> Configuration:
        """As it stands in a record."""
        return Configuration(
            instance_type=self.name,
            provider=PROVIDER,
            workers=workers,
            batch_size=batch_size,
            vcpu=self.cpu_cores,
            memory_gb=self.memory_mb / 1000,
            network_gbps=self.network_mbps / 1000,
        )


# Ratios: vCPU / 32; GB / 75; spot at 30 % of the list price, as is usual for these families.
CATALOGUE: Final = (
    InstanceType("em-standard-4", 0.125, 200, 25, 0.1900, 0.0570),
    InstanceType("em-standard-8", 0.25, 400, 50, 0.3800, 0.1140),
    InstanceType("em-highcpu-16", 0.5, 192, 100, 0.5670, 0.1701),
    InstanceType("em-highcpu-32", 1.0, 384, 400, 1.1340, 0.3402),
    InstanceType("em-wide-16", 0.5, 853, 200, 0.5360, 0.1608),
    InstanceType("em-highmem-8", 0.25, 853, 100, 0.3615, 0.1085),
    InstanceType("em-highmem-16", 0.5, 1024, 50, 0.7230, 0.2169),
)

LOCAL: Final = InstanceType("local", 0.125, 1024, 50, 0.0)
"""What each worker of a task's local run gets: the user's own machine, which costs nothing."""


def snapshot(types: Iterable[InstanceType]) -> str:
    """Digest of a set of prices: the same text is the same snapshot."""
    rows = sorted([kind.name, kind.usd_per_hour, kind.spot_usd_per_hour] for kind in types)
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:16]


def price(kind: InstanceType, snapshot_digest: str, as_of: date = PRICES_AS_OF) -> Price:
    """The price of a machine, with the catalogue that it is from."""
    return Price(
        usd_per_hour=kind.usd_per_hour,
        spot_usd_per_hour=kind.spot_usd_per_hour,
        as_of=as_of,
        source=PROVIDER,
        snapshot=snapshot_digest,
    )


def digest(kind: InstanceType) -> str:
    """Identifies a definition among those of one name."""
    return hashlib.sha256(json.dumps(asdict(kind), sort_keys=True).encode()).hexdigest()[:8]
