"""However a node registers, reports and acknowledges, an application waits for it for a bounded time."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import example, given

from services.allocator.state.node_inventory import LONGEST_STEP_S, WAIT_REFILL, NodeInventory

PAIR = ("shop", "gpu-01")
WAIT_S = 30.0

steps = st.tuples(
    st.floats(0.01, 5.0),
    st.sampled_from(["register", "expire", "acquire", "release", "report", "restart", "disregard"]),
)


@example([(1.0, each) for _ in range(100) for each in ("register", "acquire", "report")])
@given(st.lists(steps, max_size=400))
def test_waiting_is_bounded_over_registrations_incarnations_and_owners(history: list[tuple[float, str]]) -> None:
    inventory, now_s, waited_s, disregarded = NodeInventory(WAIT_S), 100.0, 0.0, False
    for number, (passed_s, event) in enumerate(history):
        app, node = PAIR
        match event:
            case "register":
                inventory.register(node, number)
            case "expire":
                inventory.deregister(node)
            case "acquire":
                inventory.await_reports(app)
            case "release":
                inventory.release(app)
            case "report":
                inventory.mark_reported(app, node)
            case "restart":
                inventory.await_reports_again([PAIR])
            case "disregard":
                disregarded = not disregarded
        now_s += passed_s
        inventory.charge_waits({PAIR} if disregarded else set(), now_s)
        blocks = inventory.awaited(app) == {node} or (disregarded and PAIR not in inventory.set_aside)
        waited_s += blocks * min(passed_s, LONGEST_STEP_S)

    assert waited_s <= WAIT_S + WAIT_REFILL * (now_s - 100.0)
