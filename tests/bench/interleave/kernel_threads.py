"""Nodes of emulated racks that take packets in threads of the kernel's, not beneath whatever task is interrupted.

A kernel that runs no programs beneath some tasks, as that of the machine of our measurements, skips those of a
congestion control for the acknowledgements that come then (decision 71). The kernel's own threads are none of these
tasks. Segments are not put together there (GRO), so that TCP sees each.

Sources: https://docs.kernel.org/networking/napi.html (threaded), veth_skb_is_eligible_for_gro() of the kernel.
"""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Final

from pyroute2.ethtool.ioctl import IoctlEthtool

from services._host.netns import command_in, inside
from services._jobs.sandbox.network import DEVICE

_LESS_THAN_TWO_SEGMENTS: Final = "1000"
_COMMANDS: Final = (
    ("ip", "link", "set", DEVICE, "gro_max_size", _LESS_THAN_TWO_SEGMENTS),
    ("unshare", "-m", "sh", "-c", f"mount -t sysfs none /sys && echo 1 >/sys/class/net/{DEVICE}/threaded"),
)


def receive_in_threads(nodes: Mapping[str, Path]) -> None:
    """Let nodes take packets in threads.

    Args:
        nodes: of racks, by name: their network namespaces, as descriptors of the process that has made them.

    Raises:
        OSError: the kernel refuses.
        subprocess.CalledProcessError: likewise; its output says why.
    """
    for directory in {path.parent for path in nodes.values()}:
        for descriptor in directory.iterdir():
            if _is_network(descriptor):
                _pass_single_segments(descriptor, nodes)
    for path in nodes.values():
        _set(path, DEVICE, "generic-receive-offload", 1)
        for command in _COMMANDS:
            subprocess.run(command_in(str(path), command), check=True)


def _is_network(descriptor: Path) -> bool:
    try:
        return descriptor.readlink().name.startswith("net:")
    except FileNotFoundError:  # closed since
        return False


def _pass_single_segments(namespace: Path, nodes: Mapping[str, Path]) -> None:
    """Where the switches are: what could be several segments does not go to a node's thread."""
    with inside(str(namespace)):
        devices = {name for _, name in socket.if_nameindex()}
    for name in devices & nodes.keys():
        _set(namespace, name, "tcp-segmentation-offload", 0)


def _set(namespace: Path, device: str, feature: str, value: int) -> None:
    with inside(str(namespace)), closing(IoctlEthtool(device)) as control:
        control.set_offload_flag(feature, value)
