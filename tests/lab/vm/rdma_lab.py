"""Two machines with soft-RoCE (rdma_rxe) on their applications' devices, two switches between them, FRR on all four.

The first machine holds host h1 and both switches, the second one host h2; two cables lead from the switches to h2.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, Final

from services.fabric.frr_text import FrrConfiguration, TorSwitch, host_configuration, tor_configuration
from services.fabric.model import Bfd, Bgp, HostFile
from tests.lab.vm.guest import Ended, Job, NetworkCard, RunningMachine, cable
from tests.lab.vm.guest_pytest import python
from tests.lab.vm.machine import Image

BFD: Final = Bfd(interval_ms=1000, multiplier=5)
"""Shorter ones fail on both uplinks where programs poll without a pause in an emulated machine (measured: 200 ms). Once
both are lost, MACs are withdrawn and rules removed: packets go over the bridge until the rules are back."""
BGP: Final = Bgp(keepalive_s=20, hold_s=120)
"""BFD detects faults here, and no session is to end because an emulated daemon waits for the processor."""
MEMORY_MIB: Final = 1536
VM: Final = "tests/lab/vm"
PORT: Final = "18517"


def host_file(number: int) -> HostFile:
    """A host as its own fabric file would describe it; the application's network namespace is the machine's own."""
    return HostFile.model_validate(
        {
            "name": f"h{number}",
            "netns": f"h{number}",
            "asn": 65000 + number,
            "vtep": f"10.255.0.{number}",
            "uplinks": ["p1", "p2"],
            "vni": 100,
            "ports": [
                {
                    "name": "rep0",
                    "mac": f"02:00:00:00:00:0{number}",
                    "address": f"172.16.0.{number}/24",
                    "netns": "/proc/1/ns/net",
                }
            ],
            "bfd": BFD,
            "bgp": BGP,
        }
    )


def switch(number: int) -> TorSwitch:
    """One of the two."""
    loopback = str(IPv4Address("10.255.0.100") + number)
    return TorSwitch(f"s{number}", 65100 + number, loopback, ("d1", "d2", "isl"), bfd=BFD, bgp=BGP)


def reconciler(number: int) -> list[str]:
    """The service on a host, without a bus: forwarding never waits for one."""
    settings = {
        "NODE": f"h{number}",
        "NETNS": f"h{number}",
        "PORTS": f"rep0=02:00:00:00:00:0{number}",
        "FRR_PATHSPACE": f"h{number}",
    }
    variables = [f"TURNBUCKLE_RECONCILER__{name}={value}" for name, value in settings.items()]
    # Its imports take as long as FRR's start: side by side, as soon as there is something to look after.
    wait = f'until [ -e /run/netns/h{number} ]; do sleep 0.1; done; exec "$@"'
    return ["sh", "-c", wait, "sh", "env", *variables, python(), "-m", "services.reconciler"]


class RdmaLab:
    """Both machines, from boot to end."""

    def __init__(self, image: Image, directory: Path) -> None:
        first, second = cable(), cable()
        cards = [
            [NetworkCard(end, f"52:54:00:00:0{machine}:0{port}") for port, end in enumerate(ends, start=1)]
            for machine, ends in enumerate(zip(first, second, strict=True), start=1)
        ]
        self.machines = tuple(
            RunningMachine(image, directory / f"h{number}", cards=own, memory_mib=MEMORY_MIB, cores=2)
            for number, own in enumerate(cards, start=1)
        )

    def close(self) -> None:
        """Switch both off."""
        for machine in self.machines:
            machine.kill()

    def on(self, number: int, *command: str, within_s: float = 60.0) -> Ended:
        """Run a command on a machine; it has to succeed."""
        ended = self.start(number, *command).wait(within_s)
        assert ended.exit_code == 0, f"{' '.join(command)}: exit code {ended.exit_code}\n{ended.output}"
        return ended

    def start(self, number: int, *command: str) -> Job:
        """Run a command on a machine, side by side with others."""
        return self.machines[number - 1].start(command)

    def up(self) -> None:
        """Devices, FRR and a reconciler on both hosts."""
        for machine in self.machines:
            machine.wait_until_ready()
        self._configure(1, "h1", host_configuration(host_file(1)))
        self._configure(2, "h2", host_configuration(host_file(2)))
        for number in (1, 2):
            self._configure(1, f"s{number}", tor_configuration(switch(number)))
        script = f"{VM}/guest_rdma_node.sh"
        jobs = [self.start(1, "sh", script, "1", "2", "tors"), self.start(2, "sh", script, "2", "1")]
        self.reconcilers = [self.start(number, *reconciler(number)) for number in (1, 2)]
        for job in jobs:
            ended = job.wait(120)
            assert ended.exit_code == 0, ended.output
        for number, other in ((1, 2), (2, 1)):
            rule = f"tc -n h{number} filter show dev rep0 ingress | grep -i 02:00:00:00:00:0{other}"
            self.wait_for(number, f"until {rule}; do sleep 0.3; done")
            uplinks = f"ip -n h{number} route show 10.255.0.{other} | grep -c nexthop"
            self.wait_for(number, f"until [ $({uplinks}) = 2 ]; do sleep 0.3; done")

    def wait_for(self, number: int, script: str, within_s: float = 150.0) -> None:
        """Until a shell script has ended."""
        self.on(number, "sh", "-c", f"({script}) >/dev/null 2>&1", within_s=within_s)

    def json(self, number: int, *command: str, within_s: float = 60.0) -> Any:
        """What a command printed."""
        return json.loads(self.on(number, *command, within_s=within_s).output)

    def send_through_a_fault(self, size_bytes: int, messages: int, within_s: float) -> dict[str, Any]:
        """Have ib_send_lat send messages while its uplink breaks silently; what guest_rdma_fault.py has found."""
        size, count = str(size_bytes), str(messages)
        said = ["-d", "rxe0", "-x", "1", "-s", size, "-n", count, "-u", "19", "-p", PORT]
        server = self.start(2, "ib_send_lat", *said)
        self.wait_for(2, f"until ss -ltn | grep -q :{PORT}; do sleep 0.2; done")
        fault = [python(), "-S", "-E", f"{VM}/guest_rdma_fault.py", PORT, size, count, f"{within_s:g}"]
        found: dict[str, Any] = self.json(1, *fault, within_s=within_s + 200)
        assert found["exit_code"] == 0, found["client"]
        assert server.wait(60).exit_code == 0
        return found

    def statistics(self, number: int, devices: Sequence[str]) -> dict[str, int]:
        """Packets that devices of a host have sent."""
        files = [f"/sys/class/net/{device}/statistics/tx_packets" for device in devices]
        shown = self.on(number, "ip", "netns", "exec", f"h{number}", "cat", *files).output.split()
        return dict(zip(devices, map(int, shown), strict=True))

    def _configure(self, machine: int, node: str, configuration: FrrConfiguration) -> None:
        directory = self.machines[machine - 1].exchange / "frr"
        directory.mkdir(exist_ok=True)
        for daemon in ("zebra", "bgpd", "bfdd"):
            (directory / f"{node}-{daemon}.conf").write_text(getattr(configuration, daemon), encoding="utf-8")
