"""A node with a guarded container, for tests of what the guard does."""

from __future__ import annotations

from services.agent.memory.growth import MIB
from services.agent.memory.policy import POLL_NS
from services.agent.memory.records import RequestOutcome
from tests.support.limit_orders import reserve_order, send, update

MS = 1_000_000
PERIOD_NS = 100 * MS
SECOND_NS = 1000 * MS


def guarded(node, host, *, limit_mib=256, usage_mib=100, reserve_mib=0, most_mib=0, name="web"):
    """A container whose memory was ordered once; nothing left to tell."""
    found = host.add(name, quota_us=20_000, limit_bytes=(limit_mib - 1) * MIB)
    key = node.found(found)
    container = host.containers[found.container_id]
    container.run(0, memory_bytes=usage_mib * MIB)
    seq = node.update_log.reserve_updates.get("shop", (0, 0))[1] + 1
    send(node, update({key: (0, limit_mib * MIB)}, seq=seq))
    send(node, reserve_order(reserve_mib * MIB, seq=seq, most_bytes=most_mib * MIB))
    node.sample(0, 1)
    node.events.take_events()
    return key, container


def told(node):
    return [(line.kind, line.cause) for line in node.events.take_events()]


def refuse_until(node, now_ns, over, denial="nothing left"):
    """Refuse every request until something has happened; returns when, ns."""
    while True:
        for request in node.events.take_requests():
            node.memory.answered(request, RequestOutcome(denial=denial), now_ns)
            if over():
                return now_ns
        now_ns = poll_until(node, now_ns, now_ns + POLL_NS)


def poll_until(node, now_ns, end_ns):
    """Poll as the service does; returns the time of the last poll."""
    while (due_ns := node.memory.next_poll_ns(now_ns)) is not None and due_ns <= end_ns:
        now_ns = due_ns
        node.memory.poll(now_ns)
    return now_ns
