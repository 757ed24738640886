"""Reserves: memory of an application that a node's agent may grant without a round trip (design 4.4).

The withheld share (sigma) of an application, as far as it is free, is spread over its nodes by their containers. What
was given is only ever added up: left = given - used, so an order that is doubled, or crosses a grant, does no harm.
What an agent grants moves from its reserve to a container's limit; the sum of both, which is what counts against the
limit, does not change. A lower `left` therefore counts only together with the limits of the same moment: batches and
replies to fences carry both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from services.allocator.budget.fair_share import ration
from services.allocator.budget.fairness import PAGE_BYTES
from services.allocator.cpu.policy_api import per_app
from services.allocator.state.container_columns import BoolArray, IntArray
from services.allocator.state.slot_arrays import SlotArrays

STEP_BYTES: Final = 4 << 20
"""A reserve that is less than this, or less than a quarter, off its target is left alone."""
RETRY_NS: Final = 1_000_000_000
"""An order that was lost is sent again after this long."""
URGENT_RETRY_NS: Final = 200_000_000
"""The same, where somebody waits for it."""
NEED_NS: Final = 1_000_000_000
"""For this long after a request its node comes before all others."""
NODE_SHARE: Final = 4
"""A reserve that nobody asked for is at most this part of what its node has left, itself included."""
MOST_BYTES: Final = 1 << 60
FEWEST_ROWS: Final = 8


class Reserves(SlotArrays):
    """One slot per group, that is an application's containers on one node; bytes."""

    app: IntArray
    node: IntArray
    given_bytes: IntArray
    """By the newest report."""
    used_bytes: IntArray
    inflight_bytes: IntArray
    """Largest `given` among orders that are not settled; 0: none."""
    order_seq: IntArray
    ordered_ns: IntArray
    report_seq: IntArray
    needed_bytes: IntArray
    """What the agent asked for."""
    needed_within_bytes: IntArray
    """Of it, what stays within the fair share of the container that needs it most."""
    share_bytes: IntArray
    """Fair share of a container, as last ordered."""
    needed_until_ns: IntArray
    settled: BoolArray
    live: BoolArray
    """Whether the row is in use."""

    _columns: ClassVar[dict[str, tuple[type[np.generic], int]]] = dict.fromkeys(
        (
            *("app", "node", "given_bytes", "used_bytes", "inflight_bytes", "order_seq", "ordered_ns", "report_seq"),
            *("needed_bytes", "needed_within_bytes", "needed_until_ns", "share_bytes"),
        ),
        (np.int64, 0),
    ) | dict.fromkeys(("settled", "live"), (np.bool_, 0))

    def __init__(self) -> None:
        super().__init__(0)
        self._unused: list[int] = []

    def add(self, app: int, node: int) -> int:
        """A row for a group; returns its index, which it keeps."""
        if not self._unused:
            before = self.capacity
            self.grow(max(FEWEST_ROWS, before + 1))
            self._unused = list(range(self.capacity - 1, before - 1, -1))
        index = self._unused.pop()
        self.app[index], self.node[index] = app, node
        self.live[index] = self.settled[index] = True
        return index

    def remove(self, index: int) -> None:
        """The group is forgotten."""
        self.forget(np.array([index]))
        self._unused.append(index)

    def restarted(self, node: int) -> None:
        """A new agent refuses the orders that were meant for the old one; what it holds it says itself."""
        mine = self.live & (self.node == node)
        self.given_bytes[mine] = self.given_held_bytes[mine]  # an order under way may have arrived before it died
        for column in (self.inflight_bytes, self.order_seq, self.report_seq, self.share_bytes):
            column[mine] = 0
        self.settled[mine] = True

    def settle(self, index: IntArray, report: ReserveReport) -> None:
        """Take in what agents say; a report that was overtaken, or makes no sense, is ignored."""
        sane = (report.used_bytes <= report.given_bytes) & (report.given_bytes <= MOST_BYTES)
        newer = sane & (report.report_seq > self.report_seq[index])
        rows = index[newer]
        self.report_seq[rows] = report.report_seq[newer]
        self.given_bytes[rows], self.used_bytes[rows] = report.given_bytes[newer], report.used_bytes[newer]
        seen = rows[report.order_seq[newer] >= self.order_seq[rows]]
        self.inflight_bytes[seen] = 0
        self.settled[seen] = True

    def record(self, index: IntArray, given_bytes: IntArray, seq: int, now_ns: int) -> None:
        """Orders go out."""
        self.inflight_bytes[index] = np.maximum(self.inflight_bytes[index], given_bytes)
        self.order_seq[index] = seq
        self.ordered_ns[index] = now_ns
        self.settled[index] = False

    def need(self, index: int, wanted_bytes: int, within_bytes: int, now_ns: int) -> None:
        """The agent asks for more, for a container that lacks so much to its fair share."""
        self.needed_bytes[index] = min(wanted_bytes, MOST_BYTES)
        self.needed_within_bytes[index] = min(wanted_bytes, within_bytes, MOST_BYTES)
        self.needed_until_ns[index] = now_ns + NEED_NS

    def needy(self, now_ns: int) -> BoolArray:
        """Rows whose request is not forgotten yet."""
        waiting: BoolArray = self.live & (self.needed_until_ns > now_ns) & (self.needed_bytes > 0)
        return waiting

    @property
    def given_held_bytes(self) -> IntArray:
        """The largest `given` that may be in force."""
        return np.maximum(self.given_bytes, self.inflight_bytes)

    @property
    def held_bytes(self) -> IntArray:
        """The most that may be left, per row: what counts against the limit beside the containers' limits."""
        left: IntArray = np.where(self.live, np.maximum(self.given_held_bytes - self.used_bytes, 0), 0)
        return left


@dataclass(frozen=True, slots=True)
class ReserveReport:
    """What agents say about groups, shape (K,)."""

    report_seq: IntArray
    given_bytes: IntArray
    used_bytes: IntArray
    order_seq: IntArray


@dataclass(frozen=True, slots=True)
class ReserveView:
    """One step's numbers. A: applications, G: rows of `Reserves`; bytes."""

    pool_bytes: IntArray
    """A: limit minus containers' limits: free and reserved together."""
    free_bytes: IntArray
    """A: of it, what is in no reserve."""
    kept_bytes: IntArray
    """A: of it, kept for containers that have not joined; only who asks may take it: a newcomer can wait."""
    withheld_bytes: IntArray
    """A: sigma x limit."""
    guaranteed_bytes: IntArray
    """G: what its containers may still claim, whatever others want beyond their fair shares."""
    share_bytes: IntArray
    """G: fair share of a container."""
    weight: IntArray
    """G: containers that share in it; 0: whatever is left is taken back."""
    reachable: BoolArray
    """G: its agent can be told now."""
    node_room_bytes: IntArray
    """By node index: by how much limits and reserves there may rise."""
    now_ns: int


def targets(reserves: Reserves, view: ReserveView) -> IntArray:
    """What each row should have left, whole pages.

    First what was asked for within fair shares; then what was asked for beyond them, of what nobody may claim; then the
    withheld share by weight, or, where that is not all there, by what containers may claim.
    """
    app, pool, kept = reserves.app, np.maximum(view.pool_bytes, 0) // PAGE_BYTES, -(-view.kept_bytes // PAGE_BYTES)
    asks = reserves.needy(view.now_ns) & (view.weight > 0)
    asked = np.where(asks, -(-reserves.needed_bytes // PAGE_BYTES), 0)
    within = np.minimum(asked, -(-reserves.needed_within_bytes // PAGE_BYTES))
    claims = np.where(view.weight > 0, -(-view.guaranteed_bytes // PAGE_BYTES), 0)
    first = ration(app, within, pool)
    others = pool - per_app(app, first, len(pool)) - per_app(app, claims, len(pool))
    first = first + ration(app, asked - within, np.maximum(others, 0))
    left = np.maximum(pool - kept - per_app(app, first, len(pool)), 0)
    withheld = view.withheld_bytes // PAGE_BYTES
    spread = np.minimum(withheld, left)
    claimed = np.where((left < withheld)[app], ration(app, claims, spread), 0)
    rest = spread - per_app(app, claimed, len(pool))
    weights = np.maximum(per_app(app, view.weight, len(pool)), 1)
    share = claimed + rest[app] // weights[app] * view.weight
    of_node = (view.node_room_bytes[reserves.node] + reserves.held_bytes) // NODE_SHARE // PAGE_BYTES
    share = np.minimum(share, of_node)
    target: IntArray = (first + share) * PAGE_BYTES
    return target


def plan(reserves: Reserves, view: ReserveView) -> tuple[IntArray, IntArray]:
    """Which rows are to be ordered, and their new `given`. A raise takes free memory only."""
    target, left, held = targets(reserves, view), reserves.held_bytes, reserves.given_held_bytes
    needy = reserves.needy(view.now_ns)
    near = np.maximum(STEP_BYTES, np.maximum(target, left) // 4)
    far = np.abs(target - left) > near
    patience_ns = np.where(needy, URGENT_RETRY_NS, RETRY_NS)
    settled = reserves.settled | (view.now_ns - reserves.ordered_ns > patience_ns)
    may = reserves.live & view.reachable
    rise = may & (target > left) & np.where(needy, True, far & settled)  # noqa: FBT003 - numpy takes it by position
    fall = may & (target < left) & settled & (far | (target == 0))
    free, kept = np.maximum(view.free_bytes, 0) // PAGE_BYTES, -(-view.kept_bytes // PAGE_BYTES)
    ask = np.where(rise, (target - left) // PAGE_BYTES, 0)
    rooms = view.node_room_bytes // PAGE_BYTES
    urgent = ration(reserves.node, np.where(needy, ask, 0), rooms)
    rooms = rooms - per_app(reserves.node, urgent, len(rooms))
    ask = urgent + ration(reserves.node, np.where(needy, 0, ask), rooms)
    first = ration(reserves.app, np.where(needy, ask, 0), free)
    others = np.maximum(free - per_app(reserves.app, first, len(free)) - kept, 0)
    granted = (first + ration(reserves.app, np.where(needy, 0, ask), others)) * PAGE_BYTES
    given = np.where(rise, held + granted, np.where(fall, reserves.used_bytes + target, held))
    lost = may & ~reserves.settled & settled
    unknown = may & (view.weight > 0) & (reserves.share_bytes != view.share_bytes)
    index = np.flatnonzero((rise & (granted > 0)) | fall | lost | unknown)
    return index, given[index]
