"""Settings of the reconciler. Every field is a variable ``TURNBUCKLE_RECONCILER__<FIELD>``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from services._edge.edge_settings import EdgeSettings
from services.reconciler.core.config import DEFAULT_PREF, ForwardingConfig, OffloadPolicy


def _check_port(text: str) -> str:
    name, _, mac = text.partition("=")
    if not name or "/" in name or len(name) > 15:
        raise ValueError(f"{text!r} is no port: write such as rep0=02:00:00:00:00:07")
    return f"{name}={mac.lower()}" if mac else name


class ReconcilerSettings(EdgeSettings):
    """Settings of one reconciler."""

    service: ClassVar[str] = "reconciler"
    renamed: ClassVar[Mapping[str, str]] = {
        "timer_s": "resync_interval_s",
        "idle_share": "resync_cpu_share",
    }

    ports: Annotated[
        tuple[Annotated[str, AfterValidator(_check_port)], ...],
        Field(
            description="bridge ports of applications, each as name=MAC of the application (rep0=02:00:00:00:00:07); "
            "a port with several MACs is listed with each; without =MAC no static entry is kept"
        ),
    ] = ()
    encapsulation_device: Annotated[
        str, Field(min_length=1, max_length=15, description="external vxlan device that rules redirect to")
    ] = "vxenc0"
    pref: Annotated[
        int, Field(ge=1, le=65_535, description="preference of the managed tc filters; lower ones come first")
    ] = DEFAULT_PREF
    offload: Annotated[
        Literal["none", "prefer", "require"],
        Field(
            description="none: rules in software; prefer: in the NIC where it can; require: in the NIC (skip_sw), "
            "what it refuses goes by the bridge"
        ),
    ] = "prefer"
    checksum: Annotated[bool, Field(description="UDP checksum of encapsulated packets over IPv4")] = True
    resync_interval_s: Annotated[
        float,
        Field(
            ge=0.05, le=3600, description="seconds between resyncs without an event, as far as resync_cpu_share allows"
        ),
    ] = 1.0
    resync_cpu_share: Annotated[
        float,
        Field(gt=0, le=1, description="share of a core for resyncs without an event; they become rarer beyond it"),
    ] = 0.004
    on_shutdown: Annotated[
        Literal["keep", "flush"], Field(description="keep: rules stay and forward; flush: they are removed at the end")
    ] = "keep"
    path_audit: Annotated[
        Literal["on", "off"], Field(description="compare the kernel's next hops with FRR's and BFD's")
    ] = "on"
    path_audit_s: Annotated[float, Field(ge=0.1, le=60, description="seconds between queries to FRR")] = 0.5
    fast_path_table: Annotated[
        int,
        Field(ge=1, le=4_294_967_295, description="first routing table of the fast path, shown beside FRR's routes"),
    ] = 100

    @model_validator(mode="after")
    def _check_ports(self) -> Self:
        self.forwarding()
        return self

    def forwarding(self) -> ForwardingConfig:
        """The forwarding part of the settings.

        Raises:
            ValueError: a MAC address is no unicast address, or listed twice.
        """
        macs: dict[str, tuple[str, ...]] = {}
        for port in self.ports:
            name, _, mac = port.partition("=")
            macs[name] = (*macs.get(name, ()), *((mac,) if mac else ()))
        return ForwardingConfig(
            encapsulation_device=self.encapsulation_device,
            application_macs=macs,
            pref=self.pref,
            offload=OffloadPolicy(self.offload),
            checksum=self.checksum,
        )
