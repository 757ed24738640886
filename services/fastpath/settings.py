"""Settings of the fast path. Every field is a variable ``TURNBUCKLE_FAST_PATH__<FIELD>``."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, SecretStr, model_validator

from services._edge.edge_settings import EdgeSettings
from services._edge.override_tables import BACKUP_TABLES, OverrideTables
from services.fastpath.config import Config
from services.fastpath.protocol import PORT
from services.fastpath.values import Limits

SHORTEST_KEY: int = 16
_KERNEL_TABLES = range(253, 256)
"""default, main, local."""


def _check_address(text: str) -> str:
    return str(ipaddress.ip_address(text))


def _check_prefix(text: str) -> str:
    return str(ipaddress.ip_network(text))


class FastPathSettings(EdgeSettings):
    """Settings of one fast path."""

    service: ClassVar[str] = "fast_path"
    renamed: ClassVar[Mapping[str, str]] = {
        "standby_above": "backup_table_above",
        "damper_faults": "flap_damping_faults",
        "damper_window_s": "flap_damping_window_s",
        "damper_hold_s": "flap_damping_hold_s",
        "watchdog_silence_s": "watchdog_timeout_s",
    }

    uplinks: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=15)], ...],
        Field(min_length=1, max_length=BACKUP_TABLES, description="links to the switches, such as p1,p2"),
    ]
    vtep: Annotated[
        str, AfterValidator(_check_address), Field(description="this host's tunnel address, as the other hosts see it")
    ]
    vtep_prefixes: Annotated[
        tuple[Annotated[str, AfterValidator(_check_prefix)], ...],
        Field(description="prefixes that the other hosts' tunnel addresses are in; unset: every host route of BGP"),
    ] = ()
    fabric_key: Annotated[
        SecretStr | None,
        Field(description="key of 16 characters or more, the same on all hosts; unset: no signalling between hosts"),
    ] = None
    peer_port: Annotated[int, Field(ge=1, le=65_535, description="UDP port of the signalling between hosts")] = PORT
    table: Annotated[
        int,
        Field(
            ge=1, le=4_294_967_000, description="routing table of overrides; the eight after it are reserved as well"
        ),
    ] = OverrideTables().table
    rule_priority: Annotated[
        int,
        Field(ge=1, le=32_764, description="priority of the ip rule for that table; the next one is reserved as well"),
    ] = OverrideTables().priority
    backup_table_above: Annotated[
        int,
        Field(
            ge=0,
            description="with more destinations than this on an uplink, their routes without it are kept ready in a "
            "table of their own, so that one write overrides all",
        ),
    ] = 500
    bgp_watch: Annotated[
        Literal["on", "off"],
        Field(description="on: an uplink whose switch closes its BGP session is withdrawn at once"),
    ] = "on"
    hold_s: Annotated[
        float, Field(ge=0.1, le=60, description="seconds that an override lives without a locally detected fault")
    ] = Limits().t_max_s
    flap_damping_faults: Annotated[
        int,
        Field(
            ge=1,
            le=1000,
            description="flap damping: more faults than this of one uplink within flap_damping_window_s suspend "
            "overrides",
        ),
    ] = Limits().damper_triggers
    flap_damping_window_s: Annotated[
        float, Field(ge=0.1, le=3600, description="flap damping: seconds in which faults are counted")
    ] = Limits().damper_window_s
    flap_damping_hold_s: Annotated[
        float, Field(ge=0.1, le=3600, description="flap damping: seconds for which overrides are suspended")
    ] = Limits().damper_hold_s
    watchdog_timeout_s: Annotated[
        float, Field(ge=0.2, le=60, description="seconds without a heartbeat after which overrides are removed")
    ] = 0.5
    realtime_priority: Annotated[
        int,
        Field(ge=0, le=98, description="SCHED_RR priority; below that of bfdd, above bgpd's; 0: default scheduling"),
    ] = 25

    @model_validator(mode="after")
    def _check(self) -> Self:
        key = self.fabric_key
        if key is not None and len(key.get_secret_value().encode()) < SHORTEST_KEY:
            raise ValueError(
                f"fabric_key is shorter than {SHORTEST_KEY} characters: make one with `openssl rand -hex 32`"
            )
        if set(OverrideTables(self.table, self.rule_priority).numbers) & set(_KERNEL_TABLES):
            raise ValueError(f"table {self.table} and the {BACKUP_TABLES} after it meet the kernel's 253, 254, 255")
        if len(set(self.uplinks)) < len(self.uplinks):
            raise ValueError("an uplink is listed twice")
        return self

    @property
    def frr_sockets(self) -> Path:
        """The directory of the daemons' sockets."""
        return self.frr_directory / self.frr_pathspace if self.frr_pathspace else self.frr_directory

    def config(self) -> Config:
        """Configuration of the data-plane process."""
        return Config(
            netns=self.netns,
            uplinks=self.uplinks,
            vtep=self.vtep,
            vtep_prefixes=self.vtep_prefixes,
            bfd_socket=str(self.frr_sockets / "bfdd.sock"),
            port=self.peer_port,
            key=self.fabric_key.get_secret_value().encode() if self.fabric_key is not None else b"",
            override_tables=OverrideTables(self.table, self.rule_priority),
            limits=Limits(self.hold_s, self.flap_damping_faults, self.flap_damping_window_s, self.flap_damping_hold_s),
            backup_table_above=self.backup_table_above,
            bgp_watch=self.bgp_watch == "on",
            event_buffer_bytes=self.event_buffer_bytes,
            silence_s=self.watchdog_timeout_s,
            realtime_priority=self.realtime_priority,
        )
