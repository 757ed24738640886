"""The peers as rules of one shape, made for a policy's name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from services.allocator.arrays.array_types import Ints
from services.allocator.arrays.slot_arrays import SlotArrays
from services.allocator.cpu.policy_interface import CpuTargets, CpuView
from services.allocator.memory.policy import MemoryTargets
from tests.bench.escra.peers import autopilot, captain, static, vpa
from tests.bench.escra.peers.fitting import MemorySample, fit_cpu, fit_memory
from tests.bench.escra.policies import POLICIES, PolicySpec
from tests.bench.escra.profile import ContainerProfile

CAPTAINS_MEMORY: Final = "static-1.5"
"""Captain knows nothing of memory: it gets this policy's limits."""

Start = Callable[[Ints, Sequence[ContainerProfile]], None]
"""Begin with containers: their slots, and one profile for each."""


@dataclass(frozen=True, slots=True)
class CpuRule:
    """A peer's rule for CPU, bound to its state and constants."""

    state: SlotArrays
    start: Start
    decide: Callable[[CpuView, Ints], CpuTargets]


@dataclass(frozen=True, slots=True)
class MemoryRule:
    """The same for memory."""

    state: SlotArrays
    start: Start
    decide: Callable[[MemorySample, Ints], MemoryTargets]


class NoState(SlotArrays):
    """Nothing to remember."""

    _columns = {}  # noqa: RUF012 - the base declares it as a class variable


def rules_for(spec: PolicySpec) -> tuple[CpuRule, MemoryRule]:
    """Fresh rules of a peer, without any container.

    Raises:
        KeyError: the policy is one of ours.
    """
    return _MAKERS[spec.family](spec.constants)


def _none(_constants: Mapping[str, float]) -> tuple[CpuRule, MemoryRule]:
    """All the CPUs of the host, and as much memory as there may be: limits that limit nothing."""

    def start(_slots: Ints, _profiles: Sequence[ContainerProfile]) -> None:
        pass

    def decide(view: CpuView, _rows: Ints) -> CpuTargets:
        return fit_cpu(view, view.cap_us)[0]

    def decide_memory(sample: MemorySample, _rows: Ints) -> MemoryTargets:
        most = np.minimum(sample.view.max_bytes, sample.view.limit_bytes[sample.view.app])
        return fit_memory(sample, np.maximum(most, 1))

    return CpuRule(NoState(0), start, decide), MemoryRule(NoState(0), start, decide_memory)


def _static(constants: Mapping[str, float]) -> tuple[CpuRule, MemoryRule]:
    setting = static.Static(constants["factor"])
    state = static.StaticState(0)

    def start(slots: Ints, profiles: Sequence[ContainerProfile]) -> None:
        static.start(state, slots, profiles, setting)

    return (
        CpuRule(state, start, lambda view, rows: static.decide(state, view, rows)),
        MemoryRule(state, start, lambda sample, rows: static.decide_memory(state, sample, rows)),
    )


def _captain(constants: Mapping[str, float]) -> tuple[CpuRule, MemoryRule]:
    setting = captain.Captain(constants["target"])
    state = captain.CaptainState(0)
    rule = CpuRule(
        state,
        lambda slots, profiles: captain.start(state, slots, profiles, setting),
        lambda view, rows: captain.decide(state, view, rows, setting),
    )
    return rule, rules_for(POLICIES[CAPTAINS_MEMORY])[1]


def _autopilot(constants: Mapping[str, float]) -> tuple[CpuRule, MemoryRule]:
    window_periods = int(constants["window_periods"])
    cpu = autopilot.Autopilot(autopilot.CPU_WEIGHTS[window_periods], window_periods)
    memory = autopilot.Autopilot(autopilot.MEMORY_WEIGHTS[window_periods], window_periods)
    cpu_state, memory_state = autopilot.RecommenderState(0), autopilot.RecommenderState(0)
    return (
        CpuRule(
            cpu_state,
            lambda slots, profiles: autopilot.start_cpu(cpu_state, slots, profiles, cpu),
            lambda view, rows: autopilot.decide(cpu_state, view, rows, cpu),
        ),
        MemoryRule(
            memory_state,
            lambda slots, profiles: autopilot.start_memory(memory_state, slots, profiles, memory),
            lambda sample, rows: autopilot.decide_memory(memory_state, sample, rows, memory),
        ),
    )


def _vpa(constants: Mapping[str, float]) -> tuple[CpuRule, MemoryRule]:
    setting = vpa.Vpa(int(constants["act_periods"]))
    cpu_state, memory_state = vpa.CpuState(0), vpa.MemoryState(0)
    return (
        CpuRule(
            cpu_state,
            lambda slots, profiles: vpa.start_cpu(cpu_state, slots, profiles, setting),
            lambda view, rows: vpa.decide(cpu_state, view, rows, setting),
        ),
        MemoryRule(
            memory_state,
            lambda slots, profiles: vpa.start_memory(memory_state, slots, profiles, setting),
            lambda sample, rows: vpa.decide_memory(memory_state, sample, rows, setting),
        ),
    )


_MAKERS: Final[dict[str, Callable[[Mapping[str, float]], tuple[CpuRule, MemoryRule]]]] = {
    "none": _none,
    "static": _static,
    "captain": _captain,
    "autopilot": _autopilot,
    "vpa": _vpa,
}
