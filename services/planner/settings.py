"""Settings of the planner. Every field is a variable ``TURNBUCKLE_PLANNER__<FIELD>``."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from schemas.devices import MAX_DEVICES
from services._runtime.service.settings import CommonSettings


class PlannerSettings(CommonSettings):
    """Settings of a planner."""

    service: ClassVar[str] = "planner"

    processes: Annotated[int, Field(ge=1, le=64, description="plans that are made at the same time")] = 1
    max_waiting: Annotated[
        int, Field(ge=0, le=10_000, description="requests that wait for them at most; further ones are refused")
    ] = 32
    timeout_s: Annotated[
        float, Field(gt=0, le=600, description="seconds for waiting, and as many for planning; then it is ended")
    ] = 20.0
    max_devices: Annotated[
        int, Field(ge=1, le=MAX_DEVICES, description="devices of a request at most; more are refused")
    ] = 128
    max_work: Annotated[
        int,
        Field(
            ge=1,
            description="devices times parts of the batch that are placed (up to 512) at most; more are refused. "
            "64 devices with a batch of 128 are 8,192 and take a second of a core",
        ),
    ] = 16_384
