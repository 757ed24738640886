"""The lab of the command line, with two uplinks per host, as ground for the training job."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from services.fabric.testbed.faults import Fault, FaultKind
from services.fabric.testbed.lab import Lab
from services.fabric.testbed.topology import SWITCHES, LabSettings
from tests.bench.thorn_job_ground import FaultName, FaultPort, Ground


@contextmanager
def dual_tor(settings: LabSettings, fault: FaultName, progress: Callable[[str], None]) -> Iterator[Ground]:
    """The lab with two switches and two uplinks per host. Faults alternate between the switches, from host to host.

    Raises:
        CommandError: it cannot be built, or a lab with this prefix stands already.
    """
    with Lab.up(settings, progress) as lab:
        hosts = range(1, settings.hosts + 1)
        turns = [(host, SWITCHES[(host + shift) % len(SWITCHES)]) for shift in (1, 0) for host in hosts]
        applications = tuple(host.application_netns for host in lab.topology.hosts)
        yield Ground(applications, tuple(_lab_port(lab, host, switch, fault) for host, switch in turns))


def _lab_port(lab: Lab, host: int, switch: int, fault: FaultName) -> FaultPort:
    kind = Fault(kind=FaultKind(fault), host=host, switch=switch)
    return FaultPort(f"s{switch}/d{host}", lambda: lab.inject(kind), lambda: lab.restore(kind))
