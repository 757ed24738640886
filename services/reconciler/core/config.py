"""Forwarding configuration: managed ports, the encapsulation device, offload policy."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from services._host.netlink.objects import ACTION_SKIP_HW, ACTION_SKIP_SW

DEFAULT_PREF: Final = 21_000
"""Preference of managed filters; lower ones match first. Between manual ones (1 and up) and those that the kernel
assigns (49152 and down)."""
_PREF_MAX: Final = 0xFFFF
_UNICAST: Final = frozenset("02468ace")
"""Second digit: the group bit is the lowest of the first octet."""
_CANONICAL: Final = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}")


class OffloadPolicy(StrEnum):
    """Offload policy of tc rules."""

    NONE = "none"
    """Rules stay in software (skip_hw)."""
    PREFER = "prefer"
    """Hardware where it can, software where not (no flag). The only one with standalone actions."""
    REQUIRE = "require"
    """Hardware only (skip_sw); MACs of rejected rules go by bridge and VTEP."""

    @property
    def skip_hw(self) -> bool:
        """TCA_CLS_FLAGS_SKIP_HW."""
        return self is OffloadPolicy.NONE

    @property
    def skip_sw(self) -> bool:
        """TCA_CLS_FLAGS_SKIP_SW."""
        return self is OffloadPolicy.REQUIRE

    @property
    def action_flags(self) -> int:
        """Flags of the filters' actions."""
        return {OffloadPolicy.NONE: ACTION_SKIP_HW, OffloadPolicy.PREFER: 0, OffloadPolicy.REQUIRE: ACTION_SKIP_SW}[
            self
        ]


@dataclass(frozen=True, slots=True)
class ForwardingConfig:
    """Forwarding configuration of one host.

    Raises:
        ValueError: A MAC address is no unicast address in canonical form, one port has it twice, or the preference is
            out of range.
    """

    encapsulation_device: str
    """Name of the external vxlan device that packets are redirected to."""
    application_macs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Managed ports by name, each with the MACs of the application behind it; () where they are not known."""
    pref: int = DEFAULT_PREF
    offload: OffloadPolicy = OffloadPolicy.PREFER
    checksum: bool = True
    """UDP checksum of what is encapsulated over IPv4; over IPv6 there is always one."""

    def __post_init__(self) -> None:
        if not 0 < self.pref <= _PREF_MAX:
            raise ValueError(f"pref {self.pref} is not between 1 and {_PREF_MAX}")
        for port, macs in self.application_macs.items():
            if len(set(macs)) != len(macs):
                raise ValueError(f"port {port}: a MAC address is listed twice")
            for mac in macs:
                if not _CANONICAL.fullmatch(mac) or not is_unicast(mac):
                    raise ValueError(f"port {port}: {mac!r} is no unicast MAC address such as 02:00:00:00:00:01")


def is_unicast(mac: str) -> bool:
    """Whether a MAC address in canonical form is unicast and not zero."""
    return mac[1] in _UNICAST and mac != "00:00:00:00:00:00"
