"""What a job's run time is taken to be: the job file's word, else the advisor's; without one, none."""

from __future__ import annotations

import asyncio
from typing import Final

from schemas.predictions import PredictReply, PredictRequest
from schemas.scheduling import ClusterNode, EstimateSource, JobSpec, JobSubmitted, RunTime, task_of
from schemas.services.advisor import ADVISOR_PREDICT
from services._runtime.bus.api import Bus, BusError
from services._runtime.telemetry.logging import Logger

_SPREAD: Final = 2.0
"""Nine of ten jobs are taken to need between a half and the double of what a person expects."""


class Advising:
    """Asks the advisor about each submission once."""

    def __init__(self, bus: Bus, timeout_s: float, log: Logger) -> None:
        self._bus = bus
        self._timeout_s = timeout_s
        self._log = log

    async def submitted(self, spec: JobSpec, nodes: tuple[ClusterNode, ...]) -> JobSubmitted:
        """The submission as it is stored: without secrets, with an estimate where there is one."""
        stored = JobSubmitted(spec=spec.masked())
        if spec.estimate_s is not None:
            low_s, high_s = spec.estimate_s / _SPREAD, spec.estimate_s * _SPREAD
            estimate = RunTime(low_s=low_s, median_s=spec.estimate_s, high_s=high_s)
            return stored.model_copy(update={"estimate": estimate, "estimate_source": EstimateSource.JOB})
        node = _usual(spec, nodes)
        if node is None or not self._timeout_s:
            return stored
        reply = await self._ask(spec, node)
        if reply is None or not reply.predictions or not reply.predictions[0].known:
            return stored
        predicted = reply.predictions[0].time_s
        if not 0 < predicted.low <= predicted.median <= predicted.high:
            self._log.warning(
                "estimate_unusable", job=spec.job, low_s=predicted.low, median_s=predicted.median, high_s=predicted.high
            )
            return stored
        estimate = RunTime(low_s=predicted.low, median_s=predicted.median, high_s=predicted.high)
        update = {"estimate": estimate, "estimate_source": EstimateSource.ADVISOR, "model": reply.model.version}
        return stored.model_copy(update=update)

    async def _ask(self, spec: JobSpec, node: ClusterNode) -> PredictReply | None:
        request = PredictRequest(
            task=task_of(spec.job, spec.task), configurations=(node.configuration(spec),), run=spec.run
        )
        subject = ADVISOR_PREDICT.template.subject(self._bus.root)
        try:
            async with asyncio.timeout(self._timeout_s):
                reply = await self._bus.request(subject, request, timeout_s=self._timeout_s)
        except (BusError, TimeoutError) as error:  # there is none, or it does not know the task
            self._log.info("no_estimate", job=spec.job, why=str(error) or "no answer in time")
            return None
        return reply if isinstance(reply, PredictReply) else None


def _usual(spec: JobSpec, nodes: tuple[ClusterNode, ...]) -> ClusterNode | None:
    """A node of the class that most of those are of that have room for a worker."""
    fitting = [node for node in nodes if node.slots >= spec.slots and not (node.silent or node.drained)]
    classes = [node.node_class for node in fitting]
    return max(fitting, key=lambda node: (classes.count(node.node_class), node.node_class), default=None)
