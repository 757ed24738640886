"""A lossy cluster whose agents, started again, hear of their containers source by source, late, or never."""

from __future__ import annotations

from dataclasses import dataclass, replace

from schemas.containers import ContainerSource
from services.agent.node import NodeOptions
from services.agent.ports import SourceAnswered
from services.allocator.cycle import AllocationCycle
from tests.support.agent_node import Node
from tests.support.lossy_cluster import LossyCluster, Machine

SOURCES = (ContainerSource.EXEC, ContainerSource.DOCKER, ContainerSource.KUBERNETES)
NEVER_NS = 1 << 62


@dataclass
class LateMachine(Machine):
    """A host with every source of containers, which take turns."""

    keeps_state: bool = True
    """Whether its state directory outlives the agent."""

    def __post_init__(self):
        self.state = []
        """Containers that any agent here has managed, as the state directory names them."""
        self.answered = set()
        """Sources that the present agent has heard."""


class LateCluster(LossyCluster):
    """What a new owner waits for are the nodes' announcements, which are seen at once."""

    def __post_init__(self):
        self.machines = [LateMachine("n1"), LateMachine("n2", keeps_state=False)]
        for machine in self.machines:
            self.start_agent(machine)
        self.start_allocator()
        for machine in self.machines:
            for source in SOURCES:
                self.source_answers(machine, source)

    def start_allocator(self):
        self.epoch += 1
        self.allocation = AllocationCycle()
        for machine in self.machines:
            self.announce(machine)
        self.allocation.set_spec(self.spec.name, self.spec)
        self.allocation.acquire(self.spec.name, self.epoch, self.now_ns)

    def hear(self, batch):
        """The nodes are announced."""

    def announce(self, machine):
        """The registration of a node, and its heartbeat."""
        node = machine.node
        pending = not node.inventory.complete
        self.allocation.inventory.register(machine.name, node.incarnation, sources_pending=pending)

    def start_agent(self, machine):
        """It knows what its state directory names; of its sources none has answered."""
        self.incarnation += 1
        options = NodeOptions(source_deadlines_ns=dict.fromkeys(SOURCES, NEVER_NS))
        machine.node = Node(machine.name, self.incarnation, machine.host, machine.host.reserve_store, options)
        machine.answered.clear()
        for found in machine.state if machine.keeps_state else ():
            machine.node.recorded(found)
        if self.epoch:
            self.announce(machine)

    def start_container(self, machine, **values):
        self.names += 1
        source = SOURCES[self.names % len(SOURCES)]
        found = replace(machine.host.add(f"c{self.names}", self.spec.name, **values), source=source)
        machine.found.append(found)
        if source in machine.answered:
            self.find(machine, found)
        return machine.host.containers[found.container_id]

    def find(self, machine, found):
        if machine.node.found(found) is not None:
            machine.state.append(found)

    def source_answers(self, machine, source):
        """It names all that runs; what was only recorded and is not named has ended."""
        machine.answered.add(source)
        for found in machine.found:
            if found.source == source:
                self.find(machine, found)
        machine.node.source_answered(SourceAnswered(source))
        self.announce(machine)

    def sources_time_out(self, machine):
        """Nobody waits for those that are silent any more."""
        machine.node.inventory.expire(NEVER_NS)
        self.announce(machine)

    def told(self, machine, batches, vanished):
        """Where an application's last container has gone, that is told; of what was never found nothing is."""
        if vanished and not batches:
            return [machine.node.empty_batch(self.spec.name, self.now_ns)]
        return batches
