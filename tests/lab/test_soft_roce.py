"""Unmodified RDMA programs between two machines, over rules of ours, through a silent fault of the loaded uplink."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lab.vm.guest_rdma_fault import LARGEST_ROCE_MTU_BYTES
from tests.lab.vm.machine import build
from tests.lab.vm.rdma_lab import RdmaLab

pytestmark = [pytest.mark.vm, pytest.mark.slow, pytest.mark.machine, pytest.mark.timeout(1_500)]

SIZE_BYTES, MESSAGES = 1 << 16, 400
"""Some 25 ms each way where 8 MiB, the thesis' size, take 3 s (tests/bench/edge_rdma.py)."""
WITHIN_S = 300.0


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RdmaLab]:
    directory = tmp_path_factory.mktemp("roce")
    lab = RdmaLab(build(directory), directory)
    try:
        lab.up()
        yield lab
    finally:
        lab.close()


def test_rping_goes_by_our_rules(lab: RdmaLab) -> None:
    before = lab.statistics(1, ("vx100", "vxenc0"))
    server = lab.start(2, "rping", "-s", "-a", "172.16.0.2", "-C", "20", "-V")
    lab.wait_for(2, "until rdma resource show cm_id | grep -q LISTEN; do sleep 0.2; done")
    client = lab.on(1, "rping", "-c", "-a", "172.16.0.2", "-C", "20", "-V", "-v", within_s=60)
    assert server.wait(60).exit_code == 0
    assert client.output.count("ping data: rdma-ping-") == 20
    sent = {device: count - before[device] for device, count in lab.statistics(1, ("vx100", "vxenc0")).items()}
    # Each of the 20 takes a SEND and an answer to its RDMA READ and WRITE at the least.
    assert sent["vxenc0"] >= 60
    assert sent["vx100"] <= 10, "ARP and the like only"


def test_a_silent_fault_in_mid_run_costs_one_retransmission(lab: RdmaLab, capsys: pytest.CaptureFixture[str]) -> None:
    found = lab.send_through_a_fault(SIZE_BYTES, MESSAGES, WITHIN_S)
    with capsys.disabled():
        print(f"\n  {found}")  # noqa: T201 - the figures
    assert found["client_ran_at_fault"]
    assert found["uplinks_before"] == ["p1", "p2"]
    assert found["uplinks_during"] == [{"p1": "p2", "p2": "p1"}[found["faulty"]]]
    assert found["uplinks_after"] == ["p1", "p2"]
    # ib_send_lat leaves its first round trip out.
    assert found["messages"] in {MESSAGES - 1, MESSAGES}
    assert found["rule_packets"] >= MESSAGES * SIZE_BYTES // LARGEST_ROCE_MTU_BYTES
    assert found["tunnel_packets"] <= 10, "ARP and the like only"
    # The fault hit the connection: what was lost is sent again after 2.1 s, and half of a round trip is what is shown.
    assert found["longest_ms"] > found["p50_ms"] + 1_000
    assert found["late"] <= 3, "and it did so once or twice, until BFD had told"
