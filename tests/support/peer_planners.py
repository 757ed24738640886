"""Files of the released planners of Cephalo and Zorse (tests/unit/planner/cephalo and zorse) as problems of ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from services.planner.core import cephalo, zorse
from services.planner.core.profile import Device, Latency, LayerTimes, MemoryProfile, Network

DATA = Path(__file__).parents[1] / "unit" / "planner"
MEMORY_GIB = {"a6000": 47.99, "l4": 22.5, "p40": 22.5, "a100x40": 40.0, "h100-nvl": 94.0}
"""As their planners have it."""
PAPER = ("l4", "l4", "a6000", "p40")
"""Kinds of devices of their cluster of that name."""


def read(path: str) -> Any:
    return json.loads((DATA / path).read_text())


def layer_times(entry: list[Any]) -> LayerTimes:
    """``[[slope, intercept], [slope, intercept]]`` of forward and backward pass, and two lists of measured values.

    Raises:
        ValueError: it has another form, such as ``[slope, intercept]``, which their planner crashes at.
    """
    if len(entry) not in {2, 4} or not all(isinstance(part, list) for part in entry):
        raise ValueError(f"no times of forward and backward pass: {entry}")
    lines = [part[:2] for part in entry[:2]]
    measured = [tuple(part) for part in entry[2:]] or [(), ()]
    forward, backward = (Latency(line[0], line[1], values) for line, values in zip(lines, measured, strict=True))
    return LayerTimes(forward, backward)


def cephalo_problem(model: str, batch: int) -> cephalo.Problem:
    """A model on their cluster "paper", in float16 and sequences of 512."""
    latencies, memory = read("cephalo/model_latencies.json")[model], read("cephalo/model_memory.json")["paper"][model]
    times = tuple(layer_times(latencies[kind]["512"]["float16"]) for kind in PAPER)
    profile = MemoryProfile(tuple(memory["profiled_compute_memory"]["float16"]))
    return cephalo.Problem(
        devices=tuple(Device(rank, kind, MEMORY_GIB[kind]) for rank, kind in enumerate(PAPER)),
        layers=(cephalo.Layers(times),),
        memory=(profile,) * len(PAPER),
        parameters=memory["parameters"],
        batch=batch,
    )


def zorse_problem(model: str, cluster: str, sequence: int, batch: int) -> zorse.Problem:
    """A model on the cluster of a file, in float16."""
    description, stats = read(f"zorse/{cluster}"), read("zorse/model_stats.json")[model]
    latencies = read("zorse/model_latencies.json")[model]
    devices = tuple(
        Device(gpu["global_rank"], gpu["name"], MEMORY_GIB[gpu["name"]], machine["machine_index"])
        for machine in description["machines"]
        for gpu in machine["gpus"]
    )
    times = {kind: layer_times(latencies[kind][str(sequence)]["float16"]) for kind in {one.kind for one in devices}}
    layer = zorse.LayerClass(times, stats["parameters_per_layer"], sequence * stats["hidden_size"] * 2)
    return zorse.Problem(
        devices=devices,
        network=_network(description["bandwidth"], len(description["machines"])),
        model=zorse.Model((layer,), (0,) * stats["num_layers"]),
        batch=batch,
    )


def _network(rates: dict[str, Any], machines: int) -> Network:
    def table(what: str) -> tuple[tuple[float, ...], ...]:
        inside, between = rates[f"intranode_{what}"], rates[f"internode_{what}"]
        return tuple(
            tuple(float(inside[str(i)] if i == j else between[str(i)][str(j)]) for j in range(machines))
            for i in range(machines)
        )

    return Network(table("bandwidth"), table("latency"))


def stages_of(config: dict[str, Any], kinds: list[str]) -> list[tuple[int, int, list[tuple[str, int]]]]:
    """Of a plan of theirs: first and last layer of each ministage, and its devices' kinds and micro-batches, sorted.

    Devices of one kind are interchangeable: in which order theirs come depends on PYTHONHASHSEED.
    """
    return [
        (
            *stage["layer_partition"],
            sorted(zip((kinds[rank] for rank in stage["gpu_ranks"]), stage["num_microbatches_per_rank"], strict=True)),
        )
        for stage in config["pipeline_config"]
    ]
