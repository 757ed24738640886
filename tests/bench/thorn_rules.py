"""Cost of the reconciler's rules where flower is to be had: runs on a host with it, or in the lab's machine.

    python -m tests.bench.thorn_rules [--rules 1 100 1000 10000] [--changes 100] [--pyroute2-up-to 100] [--json FILE]

Set-up from nothing, a full pass with nothing to do, and one changed forwarding entry until its rule is in the kernel;
beside them `tc -batch` and pyroute2 for the same filters and actions. Emulated, all are 10 to 20 times slower: compare
them with each other. `tests.bench.thorn_rules_vm` runs this in a machine and returns its record.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import struct
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import IPv4Address
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from services._host.netlink.constants import AF_BRIDGE, NTF_EXT_LEARNED, NTF_SELF, NUD_REACHABLE, Rtm
from services._host.netlink.socket import CREATE, REPLACE, NetlinkSocket, Request
from services.reconciler.core.config import ForwardingConfig
from services.reconciler.core.desired import desired
from services.reconciler.core.plan import plan
from tests.bench.machine import this_machine
from tests.bench.thorn_rule_peers import PeerRules, clear, pyroute2_writes, tc_batch
from tests.lab.vm.guest_path_lab import Host, PathLab, batch
from tests.lab.vm.guest_reconcile import Passes

RULES: Final = (1, 100, 1_000, 10_000)
MACS_PER_VTEP: Final = 8
CHANGE_AT: Final = 1_000
"""The specification's case for one changed entry."""
VNI: Final = 100


def mac(number: int) -> str:
    """Of remote application `number`."""
    return f"02:10:{number >> 16 & 255:02x}:{number >> 8 & 255:02x}:{number & 255:02x}:01"


def vtep(number: int) -> str:
    """Of remote host `number`."""
    return f"10.{1 + (number >> 16)}.{number >> 8 & 255}.{number & 255}"


def bridge_lines(count: int, verb: str = "replace") -> list[str]:
    """What zebra enters for `count` remote applications."""
    lines = []
    for number in range(count):
        destination = vtep(number // MACS_PER_VTEP)
        lines.append(f"fdb {verb} {mac(number)} dev vx100 master extern_learn")
        lines.append(f"fdb {verb} {mac(number)} dev vx100 dst {destination} self extern_learn")
    return lines


def move(ifindex: int, address: str, destination: str) -> Request:
    """What zebra sends to change a MAC address's VTEP: struct ndmsg, NDA_LLADDR, NDA_DST."""
    header = struct.pack("=BBHiHBB", AF_BRIDGE, 0, 0, ifindex, NUD_REACHABLE, NTF_SELF | NTF_EXT_LEARNED, 0)
    attributes = struct.pack("=HH6s2x", 10, 2, bytes.fromhex(address.replace(":", "")))
    attributes += struct.pack("=HH4s", 8, 1, IPv4Address(destination).packed)
    return Request(Rtm.NEWNEIGH, CREATE | REPLACE, header + attributes)


@dataclass(slots=True)
class Bench:
    """One host without neighbours, and what is measured on it."""

    lab: PathLab
    passes: Passes

    tunnel_ifindex: int

    @property
    def host(self) -> Host:
        """The only one."""
        return self.lab.hosts[0]

    def enter(self, count: int) -> None:
        """Fill the forwarding tables."""
        batch(self.host.netns, *bridge_lines(count), program="bridge")

    def clear(self, count: int) -> None:
        """Empty them, and let a pass take the rules away."""
        batch(self.host.netns, *bridge_lines(count, "del"), program="bridge")
        self.passes.settle()

    def timed_pass(self) -> dict[str, float]:
        """Seconds of each part of a pass, and how many writes it made."""
        marks = [time.perf_counter()]
        snapshot = self.passes.look()
        marks.append(time.perf_counter())
        wanted = desired(snapshot, self.passes.config)
        marks.append(time.perf_counter())
        operations = plan(snapshot, wanted).operations
        marks.append(time.perf_counter())
        errnos = self.passes.kernel.apply(operations)
        marks.append(time.perf_counter())
        assert not any(errnos), f"{sum(map(bool, errnos))} writes failed, first {next(filter(None, errnos))}"
        parts = ("snapshot_s", "desired_s", "plan_s", "apply_s")
        spent = [late - early for early, late in pairwise(marks)]
        return dict(zip(parts, spent, strict=True)) | {"total_s": marks[-1] - marks[0], "writes": len(operations)}

    def one_change(self, number: int, socket: NetlinkSocket) -> dict[str, float]:
        """Change one forwarding entry, hear of it, write its rule; seconds from before the change."""
        at = 1 if number // MACS_PER_VTEP != 1 else 0
        with self.passes.kernel.subscribe() as events:
            started_s = time.perf_counter()
            [ack] = socket.write([move(self.tunnel_ifindex, mac(number), vtep(at))])
            assert not ack.errno, os.strerror(ack.errno)
            assert select.select([events], [], [], 10)[0], "no event within 10 s"
            heard_s = time.perf_counter() - started_s
            found = self.timed_pass()
        assert found["writes"] == 1, "one filter leads elsewhere"
        return {"heard_s": heard_s, "pass_s": found["total_s"], "total_s": heard_s + found["total_s"]}

    def peers(self, count: int) -> PeerRules:
        """The same rules for a peer, on a device of its own."""
        hosts = (count + MACS_PER_VTEP - 1) // MACS_PER_VTEP
        base = 0x7E000001
        return PeerRules(
            self.host.netns,
            "peer0",
            "vxenc0",
            self.host.vtep,
            VNI,
            [(base + index, vtep(index)) for index in range(hosts)],
            [(mac(number), base + number // MACS_PER_VTEP) for number in range(count)],
        )


@contextmanager
def bench() -> Iterator[Bench]:
    """Make the host, and take it away."""
    lab = PathLab(1, prefix="tbb")
    lab.up()
    try:
        [host] = lab.hosts
        batch(host.netns, "link add peer0 type dummy", "link set peer0 up")
        host.run("tc", "qdisc", "add", "dev", "peer0", "clsact")
        passes = Passes(host.netns, ForwardingConfig("vxenc0", {"rep0": (host.mac,)}))
        [tunnel] = [link.ifindex for link in passes.kernel.links() if link.name == "vx100"]
        yield Bench(lab, passes, tunnel)
        passes.kernel.close()
    finally:
        lab.down()


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is measured; a rule takes pyroute2 23 ms in an emulated machine."""

    counts: tuple[int, ...] = RULES
    changes: int = 100
    """Single changes at `CHANGE_AT` rules, if that is among `counts`."""
    tc_batch_up_to: int = 10_000
    pyroute2_up_to: int = 100


def measure(extent: Extent, say: Callable[[str], None]) -> dict[str, Any]:
    """The record: machine, one case per count; `say` is told after each."""
    cases = []
    with bench() as ground:
        for count in extent.counts:
            case = _case(ground, count, extent)
            cases.append(case)
            say(_line(case))
    return {"machine": this_machine().as_dict(), "cases": cases}


def _case(ground: Bench, count: int, extent: Extent) -> dict[str, Any]:
    ground.enter(count)
    case: dict[str, Any] = {"rules": count, "set_up": ground.timed_pass(), "idle": ground.timed_pass()}
    assert case["idle"]["writes"] == 0, "the second pass found something to write"
    assert len(ground.host.tc("filter", "show", "dev", "rep0", "ingress")) >= count
    if count == CHANGE_AT and extent.changes:
        with NetlinkSocket(ground.host.netns) as socket:
            case["changes"] = [
                # One application of each VTEP in turn, so that no VTEP is ever left without any.
                ground.one_change((index * MACS_PER_VTEP + index * MACS_PER_VTEP // count) % count, socket)
                for index in range(extent.changes)
            ]
    rules = ground.peers(count)
    if count <= extent.tc_batch_up_to:
        case["tc_batch_s"] = tc_batch(rules)
        clear(rules)
    if count <= extent.pyroute2_up_to:
        case["pyroute2_s"] = pyroute2_writes(rules)
        clear(rules)
    if count != max(extent.counts):
        ground.clear(count)
    return case


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of all do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -(-len(ordered) * int(share * 1000) // 1000) - 1))]


def _line(case: dict[str, Any]) -> str:
    set_up, idle = case["set_up"], case["idle"]
    text = f"{case['rules']} rules: set-up {set_up['total_s'] * 1e3:.1f} ms ({set_up['writes']} writes in "
    text += f"{set_up['apply_s'] * 1e3:.1f}), idle pass {idle['total_s'] * 1e3:.1f} ms"
    for peer in ("tc_batch", "pyroute2"):
        if f"{peer}_s" in case:
            text += f", {peer} {case[f'{peer}_s'] * 1e3:.1f} ms"
    if case.get("changes"):
        spent = [change["total_s"] for change in case["changes"]]
        text += f"; one change p50 {quantile(spent, 0.5) * 1e3:.1f} ms, p99 {quantile(spent, 0.99) * 1e3:.1f} ms"
    return text


def main() -> None:
    """Measure and print, and write the record if asked."""
    parser = argparse.ArgumentParser(description="Cost of the reconciler's rules")
    parser.add_argument("--rules", type=int, nargs="+", default=list(RULES))
    parser.add_argument("--changes", type=int, default=Extent.changes)
    parser.add_argument("--tc-batch-up-to", type=int, default=Extent.tc_batch_up_to)
    parser.add_argument("--pyroute2-up-to", type=int, default=Extent.pyroute2_up_to)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    extent = Extent(tuple(arguments.rules), arguments.changes, arguments.tc_batch_up_to, arguments.pyroute2_up_to)
    record = measure(extent, lambda line: print(line, flush=True))
    if arguments.json:
        arguments.json.write_text(json.dumps(record, indent=1), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
