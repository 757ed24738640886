"""Two replicas of the allocator that own an application in turn, and agents that freeze, die and come back.

What `LossyCluster` leaves out: replicas that remember nodes from an earlier ownership, registrations that are as old as
the last heartbeat, agents that say nothing while orders wait for them, and nodes that have been silent for long.
"""

from __future__ import annotations

from schemas.codec import decode
from services.allocator.budget.step_context import StepTime
from services.allocator.cycle import AllocationCycle
from tests.support.late_sources import SOURCES, LateCluster, LateMachine


class ReplicaCluster(LateCluster):
    """Only the owner is sent batches and decides; orders of the one before it may still be under way."""

    def __post_init__(self):
        self.frozen = set()
        self.dead = set()
        """Machines, by name, whose agent does nothing now."""
        self.replicas = [AllocationCycle(), AllocationCycle()]
        for replica in self.replicas:
            replica.set_spec(self.spec.name, self.spec)
        self.allocation = self.replicas[0]
        self.machines = [LateMachine("n1"), LateMachine("n2")]
        for machine in self.machines:
            self.start_agent(machine)
            for source in SOURCES:
                self.source_answers(machine, source)
            self.heartbeat(machine)  # from now on it is registered as one without containers
        self.take_over(0)

    # -- owners --

    def take_over(self, which):
        """The other owner gives up, or has died; what it has sent arrives or not."""
        self.epoch += 1
        self.allocation.release(self.spec.name)
        self.allocation = self.replicas[which]
        self.allocation.acquire(self.spec.name, self.epoch, self.now_ns)

    def start_allocator(self):
        """The owner dies, and its successor has just been started: it knows what is registered."""
        which = self.replicas.index(self.allocation)
        self.replicas[which] = replica = AllocationCycle()
        replica.set_spec(self.spec.name, self.spec)
        for machine in self.machines:
            self.register(replica, machine)
        self.take_over(which)

    # -- agents --

    def start_agent(self, machine):
        """It registers, and its sources answer soon."""
        self.frozen.discard(machine.name)
        self.dead.discard(machine.name)
        super().start_agent(machine)
        self.heartbeat(machine)

    def kill_agent(self, machine):
        """Updates under way to it are lost."""
        self.frozen.discard(machine.name)
        self.dead.add(machine.name)

    def freeze_agent(self, machine):
        """Updates wait for it."""
        if machine.name not in self.dead:
            self.frozen.add(machine.name)

    def thaw_agent(self, machine):
        """What waits for it comes in the order in which it was sent."""
        self.frozen.discard(machine.name)
        self.network.sort(key=_sent)

    def is_stopped(self, machine):
        return machine.name in self.frozen | self.dead

    def announce(self, machine):
        """An agent renews its registration every five seconds, whatever happens in between."""

    def heartbeat(self, machine):
        if not self.is_stopped(machine):
            for replica in self.replicas:
                self.register(replica, machine)

    def register(self, replica, machine):
        node = machine.node
        replica.inventory.register(machine.name, node.incarnation, sources_pending=not node.inventory.complete)

    # -- time and messages --

    def run(self, machine, usage):
        if self.is_stopped(machine):
            self.now_ns += 50_000_000
        else:
            super().run(machine, usage)

    def step_time(self, *, reclaim=False):
        return StepTime(self.now_ns, self.now_ns, reclaim_memory=reclaim)

    def deliver(self, position, *, keep=False, reclaim=False):
        item = self.network[position]
        if item[0] == "update":
            machine = next(machine for machine in self.machines if machine.name == decode(item[1]).node)
            if machine.name in self.dead:
                self.drop(position)
                return
            if machine.name in self.frozen:
                self.network.append(self.network.pop(position))
                return
        if item[0] == "answer" and self.is_stopped(item[2]):
            self.drop(position)
            return
        super().deliver(position, keep=keep, reclaim=reclaim)

    def silence(self, item):
        if item[0] in {"ask", "answer"} and not self.is_stopped(item[2]):
            super().silence(item)


def _sent(item):
    """Limit updates by epoch and sequence, after everything else."""
    if item[0] != "update":
        return 0, 0
    update = decode(item[1])
    return update.epoch, update.seq
