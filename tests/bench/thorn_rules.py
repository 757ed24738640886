"""Cost of the reconciler's rules where flower is to be had: runs on a host with it, or in the lab's machine.

    python -m tests.bench.thorn_rules [--rules 1 100 1000 10000] [--changes 100] [--pyroute2-up-to 100] [--json FILE]

Set-up from nothing, a full pass with nothing to do, and one changed forwarding entry until its rule is in the kernel;
beside them `tc -batch` and pyroute2 for the same filters and actions. Emulated, all are 10 to 20 times slower: compare
them with each other. `tests.bench.thorn_rules_vm` runs this in a machine and returns its record.
"""

from __future__ import annotations

import argparse
import json
import select
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

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


@dataclass(slots=True)
class Bench:
    """One host without neighbours, and what is measured on it."""

    lab: PathLab
    passes: Passes

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
        operations = plan(snapshot, wanted)
        marks.append(time.perf_counter())
        errnos = self.passes.kernel.apply(operations)
        marks.append(time.perf_counter())
        assert not any(errnos), f"{sum(map(bool, errnos))} writes failed, first {next(filter(None, errnos))}"
        parts = ("snapshot_s", "desired_s", "plan_s", "apply_s")
        spent = [late - early for early, late in pairwise(marks)]
        return dict(zip(parts, spent, strict=True)) | {"total_s": marks[-1] - marks[0], "writes": len(operations)}

    def one_change(self, number: int) -> dict[str, float]:
        """Change one forwarding entry, hear of it, write its rule; seconds from before the change."""
        other = vtep(1 if number // MACS_PER_VTEP != 1 else 0)
        target = other if self._vtep_of(number) != other else vtep(number // MACS_PER_VTEP)
        with self.passes.kernel.subscribe() as events:
            started_s = time.perf_counter()
            self.host.run(
                "bridge", "fdb", "replace", mac(number), "dev", "vx100", "dst", target, "self", "extern_learn"
            )
            written_s = time.perf_counter()
            assert select.select([events], [], [], 10)[0], "no event within 10 s"
            found = self.timed_pass()
        assert found["writes"] >= 1
        # From its event on: the command's own start is no part of the reconciler.
        return {"command_s": written_s - started_s, "pass_s": found["total_s"], "writes": found["writes"]}

    def _vtep_of(self, number: int) -> str | None:
        shown = json.loads(self.host.run("bridge", "-j", "fdb", "show", "dev", "vx100"))
        return next((row["dst"] for row in shown if row["mac"] == mac(number) and "dst" in row), None)

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
        yield Bench(lab, Passes(host.netns, ForwardingConfig("vxenc0", {"rep0": (host.mac,)})))
    finally:
        lab.down()


def measure(counts: Sequence[int], changes: int, pyroute2_up_to: int, say: Callable[[str], None]) -> dict[str, Any]:
    """The record: machine, one case per count.

    Args:
        counts: numbers of rules.
        changes: single changes measured at `CHANGE_AT` rules, if that is among `counts`.
        pyroute2_up_to: the largest count for pyroute2, that takes 23 ms per rule in an emulated machine.
        say: told after each case.
    """
    cases = []
    with bench() as ground:
        ground.passes.settle()
        for count in counts:
            case = _case(ground, count, changes if count == CHANGE_AT else min(changes, 3), pyroute2_up_to)
            cases.append(case)
            say(_line(case))
    return {"machine": this_machine().as_dict(), "cases": cases}


def _case(ground: Bench, count: int, changes: int, pyroute2_up_to: int) -> dict[str, Any]:
    ground.enter(count)
    case: dict[str, Any] = {"rules": count, "set_up": ground.timed_pass(), "idle": ground.timed_pass()}
    assert case["idle"]["writes"] == 0, "the second pass found something to write"
    assert len(ground.host.tc("filter", "show", "dev", "rep0", "ingress")) >= count
    if count > MACS_PER_VTEP:
        case["changes"] = [ground.one_change(index % count) for index in range(changes)]
    ground.clear(count)
    rules = ground.peers(count)
    case["tc_batch_s"] = tc_batch(rules)
    clear(rules)
    if count <= pyroute2_up_to:
        case["pyroute2_s"] = pyroute2_writes(rules)
        clear(rules)
    return case


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of all do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -(-len(ordered) * int(share * 1000) // 1000) - 1))]


def _line(case: dict[str, Any]) -> str:
    text = (
        f"{case['rules']} rules: set-up {case['set_up']['total_s'] * 1e3:.1f} ms "
        f"(writing {case['set_up']['apply_s'] * 1e3:.1f}), idle pass {case['idle']['total_s'] * 1e3:.1f} ms, "
        f"tc -batch {case['tc_batch_s'] * 1e3:.1f} ms"
    )
    if "pyroute2_s" in case:
        text += f", pyroute2 {case['pyroute2_s'] * 1e3:.1f} ms"
    if case.get("changes"):
        spent = [change["pass_s"] for change in case["changes"]]
        text += f"; one change p50 {quantile(spent, 0.5) * 1e3:.1f} ms, p99 {quantile(spent, 0.99) * 1e3:.1f} ms"
    return text


def main() -> None:
    """Measure and print, and write the record if asked."""
    parser = argparse.ArgumentParser(description="Cost of the reconciler's rules")
    parser.add_argument("--rules", type=int, nargs="+", default=list(RULES))
    parser.add_argument("--changes", type=int, default=100)
    parser.add_argument("--pyroute2-up-to", type=int, default=100)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    record = measure(arguments.rules, arguments.changes, arguments.pyroute2_up_to, lambda line: print(line, flush=True))
    if arguments.json:
        arguments.json.write_text(json.dumps(record, indent=1), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
