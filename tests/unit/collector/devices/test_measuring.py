"""Speed of this machine's processor by a small layer, and rates between two processes of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import distributed as dist

from services._runtime.command.errors import UnavailableError
from services.cli.toolkit.supervisor import free_port
from services.collector.devices import links
from services.collector.devices.found import FoundDevice, FoundMachine
from services.collector.devices.measuring import measured_cluster
from services.collector.devices.options import Meeting
from services.collector.devices.speed import part_of, reference_layer_us
from services.collector.layers.block_times import Repetitions, Spread
from tests.support.forked_ranks import ended, forked

FEW = Repetitions(warm_up=1, counted=3, least_block_s=0)
CPU = torch.device("cpu")


def test_a_wider_layer_takes_longer() -> None:
    """64 times the width is some 4,000 times the products of matrices: more than a busy machine takes away."""
    narrow, wide = (reference_layer_us(CPU, FEW, width) for width in (8, 512))

    assert 0 < narrow.p10_us <= narrow.median_us <= narrow.p90_us
    assert narrow.p10_us < wide.p90_us


def test_what_a_gpu_computes_together_is_told_of_one_part() -> None:
    assert part_of(Spread(640.0, 320.0, 1280.0), 64) == Spread(10.0, 5.0, 20.0)


def test_a_rate_is_of_the_bytes_beyond_10_mb() -> None:
    """10 MB in 20 ms, 64 MB in 128 ms: 54 MB in 108 ms are 500 MB/s; by the median, whatever one of them took."""
    found = links.link_rate({10_000_000: [0.02, 0.02, 9.0], 64_000_000: [0.1, 0.128, 0.3]})

    assert (found.bytes_per_s, found.latency_us) == (pytest.approx(5e8), pytest.approx(20_000))


def test_large_messages_that_were_faster_than_small_ones_give_no_infinite_rate() -> None:
    found = links.link_rate({10_000_000: [0.2], 64_000_000: [0.1]})

    assert (found.bytes_per_s, found.latency_us) == (pytest.approx(6.4e8), pytest.approx(2e5))


def test_machines_that_meet_have_rates_for_each_pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three processes stand for three machines; the first has all that was measured."""
    monkeypatch.setattr(links, "REFERENCE_BYTES", 100_000)
    monkeypatch.setattr(links, "LARGE_BYTES", 2_000_000)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    port = free_port()

    def work(rank: int) -> int:
        device = FoundDevice("cpu", 1, (rank + 1) << 30, "cores", "cpu")
        found = measured_cluster(FoundMachine(f"m{rank}", (device,)), Meeting(3, rank, "127.0.0.1", port))
        if rank:
            return 0 if found is None else 3
        assert found is not None
        assert [machine.devices[0].memory_bytes for machine in found.machines] == [1 << 30, 2 << 30, 3 << 30]
        assert set(found.between) == {("m0", "m1"), ("m0", "m2"), ("m1", "m2")}
        assert all(rate.bytes_per_s > 0 and rate.latency_us > 0 for rate in found.between.values())
        return 0

    logs = [tmp_path / f"rank-{rank}.log" for rank in range(3)]
    codes = ended([forked(lambda rank=rank: work(rank), logs[rank]) for rank in range(3)])
    assert codes == [0, 0, 0], [log.read_text() for log in logs]


def test_machines_that_do_not_come_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> None:
        raise dist.DistNetworkError("The client socket has timed out\nC++ frames")

    monkeypatch.setattr(links, "met", missing)
    machine = FoundMachine("a", (FoundDevice("cpu", 1, 1 << 30, "cores", "cpu"),))
    with pytest.raises(UnavailableError, match=r"2 machines did not meet at a:29500: The client socket has timed"):
        measured_cluster(machine, Meeting(2, 0, "a", 29_500))
