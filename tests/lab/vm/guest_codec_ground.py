"""What guest_thorn_codec.py stands on: a port with clsact, a device to redirect to, and a kernel adapter on them."""

from __future__ import annotations

import json
import subprocess
import time
from collections import Counter
from dataclasses import replace
from typing import Any

from services._host.netlink.objects import Action, ActionKind, Clsact, Filter, Tunnel
from services._host.netlink.socket import Ack
from services.reconciler.adapters.kernel import Kernel
from services.reconciler.core.operation import Operation, OperationKind, Phase, Target

NETNS = "codec"
MODULES = ("veth", "vxlan", "cls_flower", "act_tunnel_key", "act_mirred", "act_gact", "sch_ingress")
ADD, REPLACE, DELETE = OperationKind.ADD, OperationKind.REPLACE, OperationKind.DELETE
PREF = 100
MAC = "02:00:00:00:00:02"
OTHER = "02:00:00:00:00:03"
V6 = Tunnel("2001:db8::1", "2001:db8::2", 0xFFFFFF, 4790, checksum=False)


def tc(*arguments: str) -> str:
    """What tc printed.

    Raises:
        AssertionError: it failed.
    """
    done = subprocess.run(["tc", "-n", NETNS, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"tc {' '.join(arguments)}: {done.stdout}{done.stderr}"
    return done.stdout


def shown(*arguments: str) -> list[dict[str, Any]]:
    """What `tc -j` shows, without what stands for a whole preference and the count of actions."""
    return [row for row in json.loads(tc("-j", *arguments) or "[]") if "options" in row or "actions" in row]


class Ground:
    """A port with clsact, a device to redirect to, and a kernel adapter on them."""

    def __init__(self) -> None:
        subprocess.run(["modprobe", "--all", *MODULES], check=True)
        subprocess.run(["ip", "netns", "add", NETNS], check=True)
        self.kernel = Kernel(NETNS)

    def close(self) -> None:
        self.kernel.close()
        subprocess.run(["ip", "netns", "del", NETNS], check=True)

    def reset(self) -> None:
        """No filter, no action, whatever the test before has left."""
        names = {link.name for link in self.kernel.links()}
        commands = [
            *(["link add rep0 type veth peer name app", "link set rep0 up", "link set app up"] * ("rep0" not in names)),
            *(["link add vxenc0 type vxlan external dstport 4790", "link set vxenc0 up"] * ("vxenc0" not in names)),
        ]
        if commands:
            lines = "\n".join(commands) + "\n"
            subprocess.run(["ip", "-n", NETNS, "-batch", "-"], input=lines, text=True, check=True)
        self.port = self.ifindex("rep0")
        self.told(DELETE, Clsact(self.port))
        assert self.told(ADD, Clsact(self.port)) == Ack(0)
        settle(self)
        for action in self.kernel.actions():
            assert self.told(DELETE, action) == Ack(0)

    def ifindex(self, name: str) -> int:
        return next(link.ifindex for link in self.kernel.links() if link.name == name)

    def told(self, kind: OperationKind, target: Target) -> Ack:
        return self.kernel.apply_acknowledged([Operation(kind, target, Phase.MISSING)])[0]

    def errno(self, kind: OperationKind, target: Target) -> int:
        return self.told(kind, target).errno

    def filters(self) -> tuple[Filter, ...]:
        return self.kernel.filters([self.port])

    def action(self, index: int) -> Action:
        return next(action for action in self.kernel.actions() if action.index == index)

    def key(self, index: int = 1, destination: str = "10.255.0.2", **changes: Any) -> Action:
        tunnel = Tunnel("10.255.0.1", destination, 100, 4789)
        return replace(Action(ActionKind.TUNNEL_KEY, index, b"THRN" + bytes(8), tunnel), **changes)

    def redirect(self, index: int = 900, **changes: Any) -> Action:
        device = self.ifindex("vxenc0")
        return replace(Action(ActionKind.MIRRED, index, b"THRN", redirect_to=device), **changes)

    def rule(self, handle: int, mac: str, *actions: Action, **changes: Any) -> Filter:
        return replace(Filter(self.port, PREF, handle, "flower", mac, actions), **changes)


def settle(ground: Ground) -> None:
    """Wait until actions are bound by as many filters as there are: what one has let go of counts a moment longer."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        references = Counter(action.index for rule in ground.filters() for action in rule.actions)
        if all(action.bound == references[action.index] for action in ground.kernel.actions()):
            return
    raise AssertionError(f"{ground.filters()} bind {ground.kernel.actions()}")
