"""Settings of the kubeoperator. Every field is a variable ``TURNBUCKLE_KUBEOPERATOR__<FIELD>``."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from services._runtime.service.settings import CommonSettings


class KubeoperatorSettings(CommonSettings):
    """What the kubeoperator needs to know."""

    service: ClassVar[str] = "kubeoperator"

    namespace: Annotated[
        str,
        Field(
            pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$",
            description="its own: Applications there may select pods of other namespaces",
        ),
    ] = "turnbuckle"
    status_interval_s: Annotated[
        float, Field(gt=0, description="seconds between two reconciles of an object, which also refresh its status")
    ] = 10.0
