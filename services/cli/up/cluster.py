"""`turnbuckle up --cluster 4x2`: a scheduler, and a runner for each emulated node of this machine."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import yaml

from schemas.rates import parse_rate, rate_text
from schemas.scheduling import QueueReply, QueueRequest
from schemas.services.scheduler import SCHEDULER_QUEUE
from services._jobs.sandbox.network import NetworkUnavailableError
from services._jobs.sandbox.racks import RackNetwork, RackPlan
from services._runtime.bus.api import Bus, NoResponderError, RequestTimeoutError
from services._runtime.command.errors import ServiceDiedError, UnavailableError, UsageError
from services.agent.commands import managed_root
from services.cli.toolkit.supervisor import RUNNER, Supervisor

WORKER_GRACE_S: Final = 5.0
"""From SIGTERM to SIGKILL of the jobs' workers, when `turnbuckle up` ends."""
MOST_NODES: Final = 64
_SCHEDULER: Final = "scheduler"
_POLL_S: Final = 0.1
_SHAPE: Final = re.compile(r"([1-9][0-9]{0,2})x([1-9][0-9]{0,3})")
_TOPOLOGY: Final = "TURNBUCKLE_SCHEDULER__TOPOLOGY"
_RUN_AS: Final = "TURNBUCKLE_RUNNER__RUN_AS"


@dataclass(frozen=True, slots=True)
class Cluster:
    """Emulated nodes that share this machine's cores and memory."""

    nodes: int
    slots: int
    """Of each node."""
    racks: RackPlan | None = None
    """Where nodes have a network of their own; None: they share this host's."""

    @property
    def names(self) -> list[str]:
        """``n1``, ``n2`` and so on."""
        return [f"n{number}" for number in range(1, self.nodes + 1)]

    @property
    def cores(self) -> float:
        """Of each node."""
        return len(os.sched_getaffinity(0)) / self.nodes

    @property
    def memory_bytes(self) -> int:
        """Of each node."""
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // self.nodes

    def summary(self) -> str:
        """What is there, and what to do with it."""
        return (
            f"cluster: {self.nodes} x {self.slots} slots of {self.cores / self.slots:.2f} cores; "
            "`turnbuckle jobs submit FILE` runs a job, `turnbuckle jobs queue` shows them. Jobs end with this command: "
            f"SIGTERM, and SIGKILL after {WORKER_GRACE_S:g} s{self._network_summary()}"
        )

    def _network_summary(self) -> str:
        if self.racks is None:
            return ""
        racks = "; ".join(f"{self.racks.rack_of(nodes[0])}: {' '.join(nodes)}" for nodes in self.racks.racks)
        return f". {racks}; each rack's uplink carries {rate_text(self.racks.bits_per_s)}/s in each direction"


def parse_cluster(text: str) -> Cluster:
    """Nodes and slots from ``4x2``.

    Raises:
        UsageError: it is no such text, or names too many nodes.
    """
    match = _SHAPE.fullmatch(text)
    if match is None or int(match[1]) > MOST_NODES:
        raise UsageError(f"--cluster {text}: write NODESxSLOTS, such as 4x2; at most {MOST_NODES} nodes")
    return Cluster(int(match[1]), int(match[2]))


def with_racks(cluster: Cluster | None, racks: int | None, uplink: str) -> Cluster | None:
    """The cluster with its nodes in racks, as ``--racks`` and ``--uplink`` say.

    Raises:
        UsageError: they make no sense.
        UnavailableError: this is not root.
    """
    if racks is None and not uplink:
        return cluster
    if cluster is None or racks is None or not uplink:
        raise UsageError(
            "--racks and --uplink belong together, and to --cluster: --cluster 4x2 --racks 2 --uplink 1Gbit"
        )
    try:
        plan = RackPlan.of(cluster.names, racks, parse_rate(uplink))
    except ValueError as error:
        raise UsageError(f"--racks {racks} --uplink {uplink}: {error}") from error
    if os.geteuid() != 0:
        raise UnavailableError("--racks makes network namespaces, which needs root: sudo -E turnbuckle up ...")
    return replace(cluster, racks=plan)


@contextmanager
def open_racks(plan: RackPlan | None) -> Iterator[RackNetwork | None]:
    """The nodes' network until the end of the block, or longer while a process lives in it.

    Raises:
        UnavailableError: the kernel refuses.
    """
    if plan is None:
        yield None
        return
    try:
        network = RackNetwork.create(plan)
    except NetworkUnavailableError as error:
        raise UnavailableError(f"the racks' network cannot be made: {error}") from error
    try:
        yield network
    finally:
        network.close()


def topology_text(plan: RackPlan) -> str:
    """The scheduler's ``topology.yaml``: the links that jobs share."""
    links = {link.name: {"rate": rate_text(link.bits_per_s), "nodes": list(link.nodes)} for link in plan.uplinks}
    return yaml.safe_dump({"links": links}, sort_keys=False, default_flow_style=None)


@dataclass(frozen=True, slots=True)
class ClusterProcesses:
    """The cluster's processes, as children of this `turnbuckle up`."""

    supervisor: Supervisor
    cluster: Cluster
    states: Path
    """Directory of the runners' records."""
    groups: bool
    """Whether workers get control groups."""
    network: RackNetwork | None = None
    """None: the nodes share this host's."""

    async def start(self) -> None:
        """Start the runners and the scheduler.

        Raises:
            ServiceDiedError: one of them did not start; holds the end of its log.
        """
        await asyncio.gather(*(self._start_runner(name, f"{RUNNER}-{name}") for name in self.cluster.names))
        await self.supervisor.start(_SCHEDULER, self._topology())

    async def end(self) -> None:
        """Stop the scheduler, so that it starts nothing any more, and the runners with their jobs' workers.

        A runner that has died is started once more: its workers live.
        """
        await self.supervisor.stop(_SCHEDULER)
        running = {child.name for child in self.supervisor.children if child.running}
        for name in self.cluster.names:
            if f"{RUNNER}-{name}" not in running:
                with suppress(ServiceDiedError):
                    await self._start_runner(name, f"{RUNNER}-{name}-end")
        await self.supervisor.stop(RUNNER)

    def _topology(self) -> dict[str, str]:
        if self.network is None:
            return {}
        path = self.states.parent / "topology.yaml"
        path.write_text(topology_text(self.network.plan), encoding="utf-8")
        return {_TOPOLOGY: str(path)}

    async def _start_runner(self, node: str, name: str) -> None:
        values = {
            "node": node,
            "slots": self.cluster.slots,
            "cores": self.cluster.cores,
            "memory_bytes": self.cluster.memory_bytes,
            "address": "127.0.0.1",
            "state_directory": self.states / node,
            "control_groups": "auto" if self.groups else "off",
            "managed_root": managed_root(),
            "workers_at_stop": "stop",
            "stop_grace_s": WORKER_GRACE_S,
        }
        if (network := self.network) is not None:
            plan = network.plan
            values |= {"rack": plan.rack_of(node), "address": plan.address(node)}
            values["network_namespace"] = network.path(node)
        if user_warning() is not None:  # nobody may write below few directories of root's
            values["checkpoint_root"] = self.states.parent / "checkpoints"
        environment = {f"TURNBUCKLE_RUNNER__{field.upper()}": str(value) for field, value in values.items()}
        await self.supervisor.start(RUNNER, environment, name)


async def until_complete(bus: Bus, cluster: Cluster, within_s: float) -> None:
    """Wait until the scheduler leads and knows all nodes: where an earlier run's led, that takes some seconds.

    Raises:
        UnavailableError: it takes longer.
    """
    deadline = time.monotonic() + within_s
    while True:
        with suppress(NoResponderError, RequestTimeoutError):
            reply = await bus.request(SCHEDULER_QUEUE.template.subject(bus.root), QueueRequest(), timeout_s=1.0)
            if isinstance(reply, QueueReply) and {node.node for node in reply.nodes} >= set(cluster.names):
                return
        if time.monotonic() > deadline:
            raise UnavailableError(f"the scheduler does not know all nodes within {within_s:g} s; see its log")
        await asyncio.sleep(_POLL_S)


def forget_states(states: Path) -> None:
    """Remove the runners' records: the jobs of an earlier run are not known to a new NATS server."""
    shutil.rmtree(states, ignore_errors=True)


def user_warning() -> str | None:
    """Who jobs run as, where that is not the user who types."""
    if os.geteuid() or os.environ.get(_RUN_AS) or os.environ.get("SUDO_USER") not in {None, "", "root"}:
        return None
    return (
        "jobs run as user nobody, because this is root and no user is behind sudo: they may read and write what nobody "
        f"may. {_RUN_AS}=USER chooses another"
    )
