"""One rank of a distributed training job: an ordinary PyTorch DDP program over gloo, that knows nothing of THORN.

``python -m tests.bench.training_job --rank 0 --world 3 --port 29500 --log run.jsonl --checkpoint run.pt`` in each
host's namespace. Rank 0 writes JSON lines; ``t`` is CLOCK_MONOTONIC in seconds, which all processes of a machine share.
As usual a lost peer ends the job (`EXIT_PEER_LOST`), and who started it starts it again, from the last checkpoint.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, NoReturn

import torch
from torch import distributed, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from tests.bench.training_images import ImageRule, SmallResNet

EXIT_PEER_LOST: Final = 75
"""EX_TEMPFAIL: a collective or the rendezvous failed; every other failure is a bug of the job."""


def parse(arguments: list[str]) -> argparse.Namespace:
    """What this rank is to do."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.training_job", description=__doc__.partition("\n")[0])
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--world", type=int, required=True, help="number of ranks")
    parser.add_argument("--attempt", type=int, default=0, help="how often the job was started before: marks log lines")
    parser.add_argument("--master", default="172.16.0.1", help="address of rank 0")
    parser.add_argument("--port", type=int, required=True, help="of the rendezvous at the master")
    parser.add_argument("--timeout-s", type=float, default=5.0, help="a collective that takes longer ends the job")
    parser.add_argument("--rendezvous-s", type=float, default=60.0, help="how long to wait for the other ranks")
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument("--evaluate-every", type=int, default=25, help="iterations")
    parser.add_argument("--checkpoint-every", type=int, default=50, help="iterations")
    parser.add_argument("--batch", type=int, default=64, help="images per rank and iteration")
    parser.add_argument("--held-out", type=int, default=192, help="images per rank that accuracy is measured on")
    parser.add_argument("--width", type=int, default=40, help="channels of the first stage")
    parser.add_argument("--rate", type=float, default=0.01, help="learning rate")
    parser.add_argument("--noise", type=float, default=6.0, help="over the patterns: the higher, the slower it learns")
    parser.add_argument("--pause-ms", type=float, default=0.0, help="before each iteration: an input that is slow")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log", type=Path, required=True, help="JSON lines of rank 0 are added to this file")
    parser.add_argument("--checkpoint", type=Path, required=True, help="taken up if it exists, written by rank 0")
    return parser.parse_args(arguments)


class Log:
    """JSON lines, each written at once: they are there for whoever reads along, and after a kill."""

    def __init__(self, path: Path, attempt: int, *, speaks: bool) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC) if speaks else None
        self._attempt = attempt

    def write(self, event: str, **fields: Any) -> None:
        """Add a line."""
        if self._descriptor is not None:
            line = {"event": event, "t": time.monotonic(), "attempt": self._attempt} | fields
            os.write(self._descriptor, json.dumps(line).encode() + b"\n")


@dataclass
class Training:
    """The network in training, on one rank."""

    plan: argparse.Namespace
    rule: ImageRule
    network: nn.Module
    parallel: DistributedDataParallel
    optimizer: torch.optim.Optimizer

    @classmethod
    def of(cls, plan: argparse.Namespace) -> Training:
        """Fresh, the same on every rank. The process group must exist."""
        torch.manual_seed(plan.seed)
        network = SmallResNet(plan.width)
        optimizer = torch.optim.SGD(network.parameters(), lr=plan.rate, momentum=0.9, weight_decay=1e-4)
        return cls(plan, ImageRule(plan.seed, noise=plan.noise), network, DistributedDataParallel(network), optimizer)

    def iterate(self, iteration: int) -> float:
        """Forward, backward with the all-reduce of DDP, update; returns this rank's loss."""
        images, labels = self.rule.batch(self.plan.rank, iteration, self.plan.batch)
        self.parallel.train()  # type: ignore[no-untyped-call]
        self.optimizer.zero_grad()
        loss = functional.cross_entropy(self.parallel(images), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return float(loss.detach())

    def evaluate(self) -> tuple[float, float]:
        """Mean loss and accuracy over the held-out images of all ranks."""
        images, labels = self.rule.held_out(self.plan.rank, self.plan.held_out)
        self.network.eval()
        with torch.no_grad():
            scores = self.network(images)
            right = (scores.argmax(1) == labels).sum()
            sums = torch.stack([functional.cross_entropy(scores, labels, reduction="sum").double(), right.double()])
        distributed.all_reduce(sums)
        loss, accuracy = (sums / (self.plan.held_out * self.plan.world)).tolist()
        return loss, accuracy

    def save(self, iterations: int) -> None:
        """Write a checkpoint that is whole or is not there, whenever we are killed."""
        state = {
            "iterations": iterations,
            "network": self.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }
        path: Path = self.plan.checkpoint
        unfinished = path.with_suffix(".unfinished")
        with unfinished.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)

    def resume(self) -> int:
        """Take up the last checkpoint, if there is one; returns the iterations that it holds."""
        if not self.plan.checkpoint.exists():
            return 0
        state = torch.load(self.plan.checkpoint, weights_only=True)
        self.network.load_state_dict(state["network"])
        self.optimizer.load_state_dict(state["optimizer"])
        return int(state["iterations"])


def join(plan: argparse.Namespace) -> None:
    """Meet the other ranks.

    A rendezvous has time: a restarted job may have to wait until the fault is over. A collective has not.
    """
    rendezvous = timedelta(seconds=plan.rendezvous_s)
    store = distributed.TCPStore(  # type: ignore[attr-defined]
        plan.master, plan.port, plan.world, is_master=plan.rank == 0, timeout=rendezvous, wait_for_workers=False
    )
    store.set(f"here/{plan.rank}", "")
    store.wait([f"here/{rank}" for rank in range(plan.world)], rendezvous)
    distributed.init_process_group(
        "gloo", store=store, rank=plan.rank, world_size=plan.world, timeout=timedelta(seconds=plan.timeout_s)
    )


def train(plan: argparse.Namespace, log: Log) -> None:
    """The whole job on this rank.

    Raises:
        RuntimeError: a peer was not reached in time (all of torch's distributed errors derive from it).
    """
    join(plan)
    log.write("joined")
    training = Training.of(plan)
    first = training.resume()
    log.write("ready", iterations=first)
    for iteration in range(first, plan.iterations):
        begin = time.monotonic()
        time.sleep(plan.pause_ms / 1e3)
        loss = training.iterate(iteration)
        done = iteration + 1
        log.write("iteration", done=done, ms=(time.monotonic() - begin) * 1e3, loss=loss)
        if done % plan.evaluate_every == 0 or done == plan.iterations:
            begin = time.monotonic()
            held_out_loss, accuracy = training.evaluate()
            ms = (time.monotonic() - begin) * 1e3
            log.write("evaluation", done=done, ms=ms, loss=held_out_loss, accuracy=accuracy)
        if plan.rank == 0 and done % plan.checkpoint_every == 0:
            begin = time.monotonic()
            training.save(done)
            log.write("checkpoint", done=done, ms=(time.monotonic() - begin) * 1e3)
    log.write("finished", done=plan.iterations)
    distributed.barrier()  # nobody closes its connections while another still listens


def main() -> NoReturn:
    """Train; exit code 75 where a peer was lost."""
    plan = parse(sys.argv[1:])
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(mode=True)
    log = Log(plan.log, plan.attempt, speaks=plan.rank == 0)
    log.write("imported")
    try:
        train(plan, log)
    except RuntimeError as error:
        print(f"rank {plan.rank}: {error}", file=sys.stderr, flush=True)
        log.write("lost")
        os._exit(EXIT_PEER_LOST)  # gloo's threads may wait for the dead peer for ever
    distributed.destroy_process_group()
    sys.stderr.flush()
    os._exit(0)  # taking torch apart costs an interpreter another second


if __name__ == "__main__":
    main()
