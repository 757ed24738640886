"""A cluster.yaml of what was found; a line for what is not known says how to find it out. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import combinations
from typing import Final

from schemas.devices import LinkRate
from schemas.rates import rate_text
from services.collector.devices.found import FoundCluster, FoundDevice, FoundMachine

_MIB: Final = 1 << 20
_DIGITS: Final = 3
"""Of a rate: a measurement has no more."""
_BITS: Final = 8
_PLAIN: Final = re.compile(r"[a-zA-Z]([\w.:/-]*\w)?", re.ASCII)
_NO_TEXT: Final = frozenset({"null", "true", "false", "yes", "no", "on", "off", "y", "n"})
MEASURE_INSIDE: Final = "turnbuckle devices --measure measures it"
MEASURE_BETWEEN: Final = (
    "run on each machine, all at once: turnbuckle devices --measure --machines {count} --rank R --master HOST:29500"
)


def cluster_text(cluster: FoundCluster, head: str) -> str:
    """The whole file.

    Args:
        cluster: at least one of its machines has a device whose memory is known.
        head: a line for its beginning.
    """
    lines = [f"# {_printable(head)}", "machines:"]
    for machine in cluster.machines:
        lines += _machine(machine, cluster.fastest_us)
    return "\n".join((*lines, *_between(cluster))) + "\n"


def _machine(machine: FoundMachine, fastest_us: float | None) -> Iterator[str]:
    if not machine.count:  # a machine without devices is none
        yield f"  # {_name(machine.name)}: no device whose memory is known"
        yield from (f"  # {_device(device, fastest_us)}" for device in machine.devices)
        return
    yield f"  {_name(machine.name)}:"
    yield "    devices:"
    for device in machine.devices:
        yield f"      {'' if device.memory_bytes is not None else '# '}{_device(device, fastest_us)}"
    yield from (f"      # {_printable(note)}" for note in machine.notes)
    if machine.node:
        yield f"    node: {_name(machine.node)}"
    if machine.inside is not None:
        yield f"    inside: {_rate(machine.inside)}"
    elif machine.count > 1:
        yield f"    # inside: {{rate: ?, latency_ms: ?}} is not known: {MEASURE_INSIDE}"
    yield "    # usd_per_hour: of the whole machine; with it a step has a price"


def _device(device: FoundDevice, fastest_us: float | None) -> str:
    count = f", count: {device.count}" if device.count > 1 else ""
    memory = "?" if device.memory_bytes is None else f"{device.memory_bytes // _MIB}MiB"
    about = "; ".join(filter(None, (device.about, _speed(device, fastest_us))))
    return f"- {{kind: {_name(device.kind)}{count}, memory: {memory}}}  # {_printable(about)}"


def _speed(device: FoundDevice, fastest_us: float | None) -> str:
    if device.speed is None or fastest_us is None:
        return ""
    low, median, high = (us / 1e3 for us in (device.speed.p10_us, device.speed.median_us, device.speed.p90_us))
    times = median * 1e3 / fastest_us
    relative = "the fastest here" if times == 1 else f"{times:.2f} times the fastest here"
    return f"reference layer {median:.3g} ms ({low:.3g} to {high:.3g}), {relative}"


def _between(cluster: FoundCluster) -> Iterator[str]:
    machines = [machine.name for machine in cluster.machines if machine.count]
    if len(machines) < 2:
        return
    known = {frozenset(pair): rate for pair, rate in cluster.between.items()}
    pairs = list(combinations(machines, 2))
    if not any(frozenset(pair) in known for pair in pairs):
        yield "# between: {default: {rate: ?, latency_ms: ?}} is not known;"
        yield f"#   {MEASURE_BETWEEN.format(count=len(machines))}"
        return
    yield "between:"
    yield "  links:"
    for first, second in pairs:
        rate = known.get(frozenset((first, second)))
        names = f"machines: [{_name(first)}, {_name(second)}]"
        yield f"    - {{{names}, {_rate(rate)[1:]}" if rate is not None else f"    # - {{{names}}}: not measured"


def _rate(rate: LinkRate) -> str:
    """As `cluster.yaml` has it: bits per second in three digits, and the latency of a message of 10 MB."""
    bits_per_s = max(1, int(float(f"{rate.bytes_per_s * _BITS:.{_DIGITS}g}")))
    return f"{{rate: {rate_text(bits_per_s)}, latency_ms: {rate.latency_us / 1e3:.{_DIGITS}g}}}"


def _printable(text: str) -> str:
    """A comment has one line, whatever an agent calls its node."""
    return "".join(character if character.isprintable() else " " for character in text)


def _name(text: str) -> str:
    """Quoted unless every reader of YAML takes it as text: JSON's strings are YAML's, too."""
    is_plain = _PLAIN.fullmatch(text) is not None and text.lower() not in _NO_TEXT
    return text if is_plain else json.dumps(text, ensure_ascii=not text.isprintable())
