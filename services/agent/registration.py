"""The node's registration in the bucket `nodes`; a second agent of the same name is refused."""

from __future__ import annotations

from collections.abc import Mapping

from schemas.containers import NodeInfo
from schemas.streams import NODES
from schemas.subjects import SubjectTemplate
from services._runtime.bus.api import Bus, BusError, NotPermittedError, Responder, Subscription
from services._runtime.bus.name_registration import NameTakenError, Registration, log_not_permitted
from services._runtime.clock import Clock
from services._runtime.service.app import UnusableSettingsError
from services._runtime.telemetry.logging import Logger, LogLimiter
from services.agent.backend import Backend
from services.agent.containers import ContainerSet
from services.agent.memory.node_budget import NodeBudget


class NodeName:
    """The node's name on the bus: registered, and renewed by heartbeats, in the bucket `nodes`."""

    def __init__(self, bus: Bus, node: str, clock: Clock, log: Logger) -> None:
        self._node = node
        self._log = log
        self._limiter = LogLimiter()
        self._registration = Registration(bus, NODES, node, clock)

    @property
    def unconfirmed(self) -> str | None:
        """Why nothing may be published under the name yet, or None."""
        if not self._registration.contested:
            return None
        return f"the node name {self._node!r} is registered by another agent: waiting until that is renewed or expires"

    async def hold(self, info: NodeInfo) -> bool:
        """Register or renew. False: neither yet, try again soon.

        Raises:
            UnusableSettingsError: another agent has the name.
            BusError: the bucket cannot be read or written.
        """
        reason_before = self.unconfirmed
        try:
            registered = await self._registration.hold(info)
        except NotPermittedError as error:
            log_not_permitted(self._log, self._limiter, error)
            raise
        except NameTakenError as error:
            raise UnusableSettingsError(
                f"an agent of the node name {self._node!r} is at work already ({error}): "
                "stop it, or set TURNBUCKLE_AGENT__NODE to another name here"
            ) from error
        if self.unconfirmed is not None and reason_before is None:
            self._log.warning("duplicate_node_name_suspected", node=self._node, reason=self.unconfirmed)
        return registered

    async def release(self) -> None:
        """Deregister, if the name is this agent's.

        Raises:
            BusError: the bucket cannot be written; the registration expires.
        """
        await self._registration.release()


async def serve_node(bus: Bus, node: str, responders: Mapping[SubjectTemplate, Responder]) -> list[Subscription]:
    """Serve the requests to this node: all of them, or none.

    Raises:
        BusError: something cannot be served.
    """
    subscriptions: list[Subscription] = []
    try:
        for template, responder in responders.items():
            subscriptions.append(await bus.serve(template.subject(bus.root, node=node), responder))
    except BusError:
        for subscription in subscriptions:
            await subscription.stop()
        raise
    return subscriptions


def node_info(containers: ContainerSet, budget: NodeBudget, backend: Backend, time_ns: int, version: str) -> NodeInfo:
    """The node as it is now."""
    host, docker = containers.host, backend.discoveries.get("docker")
    pressure = host.read_pressure()
    return NodeInfo(
        node=containers.node,
        incarnation=containers.incarnation.number,
        time_ns=time_ns,
        host_cpus=host.cpu_count,
        memory_bytes=budget.capacity_bytes or host.memory_bytes,
        cgroup_version=host.cgroup_version,
        telemetry_source=host.telemetry_source,
        docker=docker is not None and docker.available,
        container_count=len(containers.managed),
        version=version,
        sources_pending=containers.inventory.pending,
        memory_guard=host.memory_guard,
        holder=backend.holder,
        allocatable_memory_bytes=budget.allocatable_bytes,
        committed_memory_bytes=budget.committed_bytes(),
        committed_cpu_us=budget.cpu.committed_us(),
        allocatable_cpu_us=budget.cpu.allocatable_us,
        warns_cpu_overcommit=budget.cpu.warns,
        available_memory_bytes=host.read_available(),
        memory_pressure_percent=pressure.memory_percent,
        cpu_pressure_percent=pressure.cpu_percent,
    )
