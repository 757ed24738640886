"""The command line of `turnbuckle devices`."""

from __future__ import annotations

import argparse
import re
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from schemas.devices import MAX_DEVICES
from schemas.sizes import parse_size
from services._runtime.command.tool_parser import ToolParser
from services.collector.tool import number_within, sandbox_cores

_SANDBOX: Final = re.compile(r"(?P<cores>[^:x]+):(?P<memory>[^x]+)(x(?P<count>\d+))?")
_MOST_PORT: Final = 65_535


@dataclass(frozen=True, slots=True)
class SandboxPlace:
    """A control group that stands for a device."""

    cpu_cores: float
    memory_bytes: int
    count: int

    @property
    def kind(self) -> str:
        """As `turnbuckle layers --device` has it."""
        return f"sandbox:{self.cpu_cores:g}"


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where the machines of a measurement meet, and which of them this one is."""

    machines: int
    rank: int
    host: str
    port: int


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line; ``meeting`` is None without other machines."""
    parser = ToolParser(
        prog="python -m services.collector.devices.command",
        description="Find the devices that a training job may use, and write them as cluster.yaml.",
        epilog="What is not known stands in the file as a comment that says how to find it out. --measure keeps this "
        "machine busy for some seconds: what else runs there is in its figures.",
    )
    add = parser.add_argument
    add("--measure", action="store_true", help="also measure speed, and the rates inside and between machines")
    add(
        "--sandbox",
        action="append",
        default=[],
        type=_sandbox,
        metavar="CORES:MEMORY",
        help="control groups in place of the processors, such as 0.5:2GiB, or 0.5:2GiBx3 for three; also several times",
    )
    add("--cpu", action="store_true", help="list the processors beside GPUs, too")
    add(
        "--processes",
        type=number_within(int, 1, MAX_DEVICES),
        default=1,
        help="the processors as so many equal devices, each with its part of cores and memory (default: %(default)s)",
    )
    add("--kind", default="cpu", help="of the processors, as in layer profiles (default: %(default)s)")
    add("--name", default=socket.gethostname(), help="of this machine in the file (default: its host name)")
    add("--nodes", action="store_true", help="also the nodes whose agents are registered on the bus")
    add("--server", metavar="URL", help="NATS server, for --nodes; default: NATS_URL, a context, or 127.0.0.1:4222")
    add("--context", metavar="NAME", help="NATS context, for --nodes")
    add("--machines", type=number_within(int, 2, MAX_DEVICES), help="that run this at once, to measure between them")
    add("--rank", type=number_within(int, 0, MAX_DEVICES - 1), help="of this machine among them; 0 writes the file")
    add("--master", type=_address, metavar="HOST:PORT", help="where they meet: an address of rank 0's machine")
    add("--out", type=Path, metavar="FILE", help="write the file here; default: print it")
    given = parser.parse_args(arguments)
    given.meeting = _meeting(parser, given)
    return given


def _meeting(parser: ToolParser, given: argparse.Namespace) -> Meeting | None:
    named = [one for one in ("machines", "rank", "master") if getattr(given, one) is not None]
    if not named:
        return None
    if len(named) < 3 or not given.measure:
        parser.error("--machines, --rank and --master belong together, and to --measure")
    if given.rank >= given.machines:
        parser.error(f"--rank {given.rank}: ranks of {given.machines} machines are 0 to {given.machines - 1}")
    return Meeting(given.machines, given.rank, *given.master)


def _sandbox(text: str) -> SandboxPlace:
    match = _SANDBOX.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no sandbox: write CORES:MEMORY, such as 0.5:2GiB or 0.5:2GiBx2")
    cores = sandbox_cores(match["cores"])
    count = number_within(int, 1, MAX_DEVICES)(match["count"] or "1")
    try:
        memory_bytes = parse_size(match["memory"])
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if memory_bytes < 1 << 20:
        raise argparse.ArgumentTypeError(f"{match['memory']} is less than 1 MiB")
    return SandboxPlace(cores, memory_bytes, int(count))


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) <= _MOST_PORT:
        raise argparse.ArgumentTypeError(f"{text!r} is no address: write HOST:PORT")
    # An IPv6 address is written in brackets before a port (RFC 3986, 3.2.2); the store takes it without.
    return host.removeprefix("[").removesuffix("]"), int(port)
