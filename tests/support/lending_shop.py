"""An application on some nodes whose agents acknowledge everything at once, for tests of the allocation's memory."""

from __future__ import annotations

from schemas.apps import AppSpec
from schemas.cfs import CfsBatch
from schemas.limits import LimitReply
from schemas.oom import MemoryRequest
from services.allocator.budget.step_context import StepTime
from services.allocator.cycle import AllocationCycle

MIB = 1 << 20
SECOND_NS = 1_000_000_000


class Shop:
    """Rows: node -> container -> [limit, usage, reclaimable], MiB."""

    def __init__(self, rows, **spec):
        self.spec = AppSpec(name="shop", cpu_limit=4, **spec)
        self.rows = rows  # node -> container -> [limit, usage, reclaimable], MiB
        self.given = dict.fromkeys(rows, 0)
        self.used = dict.fromkeys(rows, 0)
        self.orders = 0
        """Limit updates for memory that were carried out."""
        self.seq = 0
        self.now_ns = 1
        self.allocation = AllocationCycle()
        self.allocation.acquire("shop", 5, 0)
        self.allocation.set_spec("shop", self.spec)

    def step_time(self, *, reclaim=False):
        return StepTime(self.now_ns, self.now_ns, reclaim_memory=reclaim)

    def periods(self, count, *, reclaim=False):
        for _ in range(count):
            self.now_ns += SECOND_NS // 10
            for node in self.rows:
                outcome = self.allocation.step([self.batch(node)], self.step_time(reclaim=reclaim))
                self.carry_out(outcome.updates + self.allocation.fences_due(self.step_time()))
        return self

    def use(self, container, usage_mib, reclaimable_mib=0):
        for rows in self.rows.values():
            if container in rows:
                rows[container][1:] = [usage_mib, reclaimable_mib]

    def batch(self, node):
        rows = self.rows[node]
        self.seq += 1
        columns = {name: [0] * len(rows) for name in CfsBatch.column_types} | {
            "periods": [1] * len(rows),
            "quota_us": [10_000] * len(rows),
            "limit_update_seq": [1 << 40] * len(rows),
            "memory_limit_bytes": [row[0] * MIB for row in rows.values()],
            "memory_usage_bytes": [row[1] * MIB for row in rows.values()],
            "memory_reclaimable_bytes": [row[2] * MIB for row in rows.values()],
        }
        return CfsBatch.build(
            list(rows),
            columns,
            app="shop",
            node=node,
            incarnation=1,
            report_seq=self.seq,
            time_ns=self.now_ns,
            period_us=100_000,
            host_cpus=4,
            reserve_given_bytes=self.given[node],
            reserve_update_seq=1 << 40,
            reserve_used_bytes=self.used[node],
        )

    def carry_out(self, updates):
        for update in updates:
            self.seq += 1
            for row in update.rows():
                if row["limit_bytes"]:
                    self.rows[update.node][row["container"]][0] = row["limit_bytes"] // MIB
            self.orders += bool(any(row["limit_bytes"] for row in update.rows()) or update.reserve_given_bytes)
            if update.reserve_given_bytes:
                self.given[update.node] = max(update.reserve_given_bytes[0], self.used[update.node])
            keys = update.keys or list(self.rows[update.node])
            columns = {
                "quota_us": [10_000] * len(keys),
                "limit_update_seq": [update.seq] * len(keys),
                "status": [0] * len(keys),
                "limit_bytes": [self.rows[update.node][key][0] * MIB for key in keys],
            }
            told = (
                {}
                if update.row_count
                else {
                    "apps": ("shop",),
                    "reserve_given_bytes": (self.given[update.node],),
                    "reserve_used_bytes": (self.used[update.node],),
                    "reserve_update_seq": (update.seq,),
                }
            )
            reply = LimitReply.build(
                keys, columns, node=update.node, incarnation=1, report_seq=self.seq, epoch=5, seq=update.seq, **told
            )
            self.allocation.replies.record(reply, update, self.step_time().now_ns)
            self.carry_out(self.allocation.redistribute(self.step_time()).updates)

    def ask(self, node, container, wanted_mib):
        request = MemoryRequest(
            app="shop",
            node=node,
            incarnation=1,
            container=container,
            wanted_bytes=wanted_mib * MIB,
            usage_bytes=0,
            limit_bytes=0,
            tasks_blocked=True,
            time_ns=0,
        )
        reply, outcome = self.allocation.request_memory(request, self.step_time())
        return reply, outcome.updates

    def given_mib(self):
        return {node: given // MIB for node, given in self.given.items()}

    def grant(self, node, container, wanted_mib):
        """As an agent does: out of the node's reserve, into the limit."""
        granted_mib = max(min(wanted_mib, self.left_mib(node)), 0)
        self.used[node] += granted_mib * MIB
        self.rows[node][container][0] += granted_mib

    def left_mib(self, node):
        """What its agent may still grant."""
        return (self.given[node] - self.used[node]) // MIB
