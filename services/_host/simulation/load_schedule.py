"""The arithmetic of a load: phases that repeat. Standard library only, because each demo container starts with it."""

from __future__ import annotations

from typing import NamedTuple


class Schedule(NamedTuple):
    """Demand over time of one container."""

    phases: tuple[tuple[float, float, int], ...]
    """Seconds, cores, bytes of each phase."""
    offset_s: float
    """Where in its cycle it starts."""
    memory_rate_bytes_s: int
    """How fast memory grows."""

    @property
    def cycle_s(self) -> float:
        """Seconds after which it repeats."""
        return sum(duration_s for duration_s, _, _ in self.phases)

    def phase_at(self, time_s: float) -> tuple[int, float]:
        """The index of the phase at a time since the start, and the seconds spent in it."""
        left = (time_s + self.offset_s) % self.cycle_s
        for index, (duration_s, _, _) in enumerate(self.phases):
            if left < duration_s:
                return index, left
            left -= duration_s
        return len(self.phases) - 1, self.phases[-1][0]  # rounding at the very end of a cycle

    def demand_cores(self, time_s: float) -> float:
        """Cores wanted."""
        return self.phases[self.phase_at(time_s)[0]][1]

    def memory_bytes(self, time_s: float) -> int:
        """Bytes wanted: towards a higher target at `memory_rate_bytes_s`, to a lower one at once.

        Growth starts from the previous phase's target (cyclically), also in the very first phase, so that the
        function is periodic.
        """
        index, spent_s = self.phase_at(time_s)
        before, target = self.phases[index - 1][2], self.phases[index][2]
        if target <= before:
            return target
        return min(target, before + int(spent_s * self.memory_rate_bytes_s))

    def quiet_s(self, time_s: float) -> float:
        """For how long from now nothing is wanted but to keep what is held; 0 if there is something to do."""
        index, spent_s = self.phase_at(time_s)
        duration_s, cpu_cores, target = self.phases[index]
        return duration_s - spent_s if cpu_cores == 0 and self.memory_bytes(time_s) == target else 0.0
