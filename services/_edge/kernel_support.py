"""What this kernel can do for the network edge, tried out in a network namespace of its own.

Asking does not tell: modules are loaded when first used, and a kernel that lacks one says so only at the write. So the
devices, actions and the filter of one rule are made in a new namespace of a thread of its own, which ends with it.

The few messages are written out here; a test holds them against the codec of `services._host.netlink`.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
import threading
from dataclasses import dataclass
from typing import Final

_CLONE_NEWNET: Final = 0x40000000
_ANSWER_WITHIN_S: Final = 5.0
_REQUEST_ACK_CREATE_EXCLUSIVE: Final = 0x1 | 0x4 | 0x200 | 0x400
_NEWLINK, _NEWQDISC, _NEWTFILTER, _NEWACTION = 16, 36, 44, 48
_LOOPBACK: Final = 1
_CLSACT_PARENT, _CLSACT_HANDLE, _CLSACT_INGRESS = 0xFFFFFFF1, 0xFFFF0000, 0xFFFFFFF2
_NESTED: Final = 0x8000
_ALL_PROTOCOLS: Final = socket.htons(3)
_PIPE, _STOLEN = 3, 4


@dataclass(frozen=True, slots=True)
class Feature:
    """Something of the kernel that the network edge is made of."""

    name: str
    module: str
    option: str
    purpose: str


FEATURES: Final = (
    Feature("bridge", "bridge", "CONFIG_BRIDGE", "where the applications' ports and the tunnel meet"),
    Feature("vxlan", "vxlan", "CONFIG_VXLAN", "the tunnel, and its external twin that tc rules redirect to"),
    Feature("clsact", "sch_ingress", "CONFIG_NET_SCH_INGRESS", "where filters hang"),
    Feature("tunnel_key", "act_tunnel_key", "CONFIG_NET_ACT_TUNNEL_KEY", "sets a packet's tunnel"),
    Feature("mirred", "act_mirred", "CONFIG_NET_ACT_MIRRED", "redirects a packet into the tunnel"),
    Feature("flower", "cls_flower", "CONFIG_NET_CLS_FLOWER", "finds an application's packets, in hardware if it can"),
)


class CannotTryError(Exception):
    """Nothing could be tried: no right to make a network namespace."""


def missing_features() -> dict[Feature, str]:
    """What this kernel lacks, each with its own words for it; empty: nothing.

    Loads modules that are there. Takes some 10 ms.

    Raises:
        CannotTryError: needs CAP_SYS_ADMIN and CAP_NET_ADMIN.
    """
    outcome: list[dict[Feature, str] | OSError] = []

    def attempt() -> None:
        try:
            _enter_new_namespace()
            outcome.append(_try_all())
        except OSError as error:
            outcome.append(error)

    # Not a pooled one: the namespace belongs to the thread, and ends with it.
    thread = threading.Thread(target=attempt, name="kernel support")
    thread.start()
    thread.join()
    (result,) = outcome
    if isinstance(result, OSError):
        raise CannotTryError(f"a network namespace to try in cannot be made: {result.strerror or result}") from result
    return result


def _enter_new_namespace() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _try_all() -> dict[Feature, str]:
    attempts = {
        "bridge": (_NEWLINK, _link("t0", "bridge", b"")),
        "vxlan": (_NEWLINK, _link("t1", "vxlan", _attribute(25, b"\1"))),  # IFLA_VXLAN_COLLECT_METADATA
        "clsact": (_NEWQDISC, _traffic(_CLSACT_PARENT, _CLSACT_HANDLE, 0) + _attribute(1, b"clsact\0")),
        "tunnel_key": (_NEWACTION, bytes(4) + _nested(1, _nested(1, _tunnel_key()))),
        "mirred": (_NEWACTION, bytes(4) + _nested(1, _nested(1, _mirred()))),
        "flower": (_NEWTFILTER, _traffic(_CLSACT_INGRESS, 1, 1 << 16 | _ALL_PROTOCOLS) + _flower()),
    }
    found: dict[Feature, str] = {}
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE) as connection:
        connection.settimeout(_ANSWER_WITHIN_S)
        for feature in FEATURES:
            kind, payload = attempts[feature.name]
            number = _write(connection, kind, payload)
            if number in {errno.EPERM, errno.EACCES}:
                raise OSError(number, os.strerror(number))
            if number:
                found[feature] = os.strerror(number)
    return found


def _write(connection: socket.socket, kind: int, payload: bytes) -> int:
    """The errno of one request."""
    header = struct.pack("=IHHII", 16 + len(payload), kind, _REQUEST_ACK_CREATE_EXCLUSIVE, 1, 0)
    connection.send(header + payload)
    while True:
        data = connection.recv(1 << 16)
        if struct.unpack_from("=IH", data)[1] == 2:  # NLMSG_ERROR, which an acknowledgement is too
            return -int(struct.unpack_from("=i", data, 16)[0])


def _attribute(kind: int, payload: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(payload), kind) + payload + bytes(-len(payload) % 4)


def _nested(kind: int, payload: bytes) -> bytes:
    return _attribute(kind | _NESTED, payload)


def _link(name: str, kind: str, settings: bytes) -> bytes:
    """A new device (struct ifinfomsg; IFLA_IFNAME, IFLA_LINKINFO)."""
    info = _attribute(1, kind.encode()) + (_nested(2, settings) if settings else b"")
    return bytes(16) + _attribute(3, name.encode() + b"\0") + _nested(18, info)


def _traffic(parent: int, handle: int, info: int) -> bytes:
    """Struct tcmsg, for the loopback device."""
    return struct.pack("=BxxxiIII", 0, _LOOPBACK, handle, parent, info)


def _tunnel_key() -> bytes:
    """TCA_ACT_KIND, TCA_ACT_OPTIONS: set 192.0.2.1 to 192.0.2.2, VNI 1."""
    options = _attribute(2, struct.pack("=IIiiii", 1, 0, _PIPE, 0, 0, 1))
    options += _attribute(3, bytes((192, 0, 2, 1))) + _attribute(4, bytes((192, 0, 2, 2)))
    options += _attribute(7, (1).to_bytes(4, "big"))
    return _attribute(1, b"tunnel_key\0") + _nested(2, options)


def _mirred() -> bytes:
    """Redirect to where the loopback device sends."""
    parameters = struct.pack("=IIiiiiI", 1, 0, _STOLEN, 0, 0, 1, _LOOPBACK)
    return _attribute(1, b"mirred\0") + _nested(2, _attribute(2, parameters))


def _flower() -> bytes:
    """TCA_KIND, TCA_OPTIONS: one destination MAC."""
    match = _attribute(4, bytes((2, 0, 0, 0, 0, 1))) + _attribute(5, b"\xff" * 6)
    return _attribute(1, b"flower\0") + _nested(2, match)
