"""Settings of the allocator. Every field is a variable ``TURNBUCKLE_ALLOCATOR__<FIELD>``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from services._runtime.service.settings import CommonSettings


class AllocatorSettings(CommonSettings):
    """What an allocator needs to know; limits and policies come with each application."""

    service: ClassVar[str] = "allocator"
    renamed: ClassVar[Mapping[str, str]] = {
        "store_away_s": "lease_store_outage_grace_s",
        "forget_node_after_s": "node_expiry_s",
    }

    reclaim_every_s: Annotated[float, Field(gt=0, description="seconds between memory reclaims (thesis 2.4.3: 5)")] = (
        5.0
    )
    warm_up_s: Annotated[
        float, Field(ge=0, description="seconds after acquiring an application's lease in which no limit is raised")
    ] = 0.5
    lease_ttl_s: Annotated[
        float,
        Field(
            ge=0.5,
            le=60,
            description="seconds without a heartbeat after which a replica stops deciding and others take over; "
            "the same for all replicas",
        ),
    ] = 2.0
    lease_store_outage_grace_s: Annotated[
        float,
        Field(
            ge=0,
            le=20,
            description="seconds beyond lease_ttl_s that an owner goes on deciding while JetStream answers nothing: "
            "a cluster that has lost a server needs 4 to 9 for another leader",
        ),
    ] = 12.0
    stale_after_s: Annotated[
        float,
        Field(gt=0, description="seconds without a report after which no decisions are made for a node's containers"),
    ] = 2.0
    node_expiry_s: Annotated[
        float,
        Field(
            gt=0, description="seconds without a report after which a node expires and its containers no longer count"
        ),
    ] = 30.0
    savings_every_s: Annotated[
        float, Field(ge=1, le=3600, description="seconds between two events on an application's savings")
    ] = 60.0
    core_hour_price: Annotated[
        float | None,
        Field(ge=0, le=1e9, allow_inf_nan=False, description="price of a core for an hour, told with savings"),
    ] = None
    gib_hour_price: Annotated[
        float | None,
        Field(ge=0, le=1e9, allow_inf_nan=False, description="price of a GiB of memory for an hour, told with savings"),
    ] = None
    price_currency: Annotated[
        str | None, Field(pattern=r"^[A-Z]{3}$", description="currency of both prices (ISO 4217), such as EUR")
    ] = None

    @model_validator(mode="after")
    def _check_prices(self) -> Self:
        prices = {name: getattr(self, name) for name in ("core_hour_price", "gib_hour_price", "price_currency")}
        missing = [self.variable(name) for name, value in prices.items() if value is None]
        if 0 < len(missing) < len(prices):
            raise ValueError(f"prices need both amounts and their currency: set {' and '.join(missing)}, too")
        return self
