"""Settings of the allocator. Every field is a variable ``TURNBUCKLE_ALLOCATOR__<FIELD>``."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from services._runtime.settings import CommonSettings


class AllocatorSettings(CommonSettings):
    """What an allocator needs to know; limits and policies come with each application."""

    service: ClassVar[str] = "allocator"

    reclaim_every_s: Annotated[float, Field(gt=0, description="seconds between memory reclaims (thesis 2.4.3: 5)")] = (
        5.0
    )
    warm_up_s: Annotated[
        float, Field(ge=0, description="seconds after taking an application over in which nothing of it is raised")
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
    store_away_s: Annotated[
        float,
        Field(
            ge=0,
            le=20,
            description="seconds beyond lease_ttl_s that an owner goes on deciding while JetStream answers nothing: "
            "a cluster that has lost a server needs 4 to 9 for another leader",
        ),
    ] = 12.0
    stale_after_s: Annotated[
        float, Field(gt=0, description="seconds after which a silent agent's containers are no longer decided about")
    ] = 2.0
    forget_node_after_s: Annotated[
        float, Field(gt=0, description="seconds after which a silent agent's containers no longer count")
    ] = 30.0
