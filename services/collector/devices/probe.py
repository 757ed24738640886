"""The second process of a measurement inside one machine: ``python -m services.collector.devices.probe PORT``."""

from __future__ import annotations

import argparse

import torch
from torch import distributed as dist

from services._runtime.child_process import die_with_parent
from services.collector.devices.links import TcpStore, join, measure_pairs


def main() -> None:
    """Take part until the end."""
    die_with_parent()
    parser = argparse.ArgumentParser(prog="python -m services.collector.devices.probe")
    parser.add_argument("port", type=int)
    parser.add_argument("--gpus", action="store_true")
    given = parser.parse_args()
    join(TcpStore("127.0.0.1", given.port, is_master=False), 1, 2, with_gpus=given.gpus)
    measure_pairs(torch.device("cuda", 1) if given.gpus else torch.device("cpu"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
