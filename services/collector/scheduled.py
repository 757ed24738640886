"""Records of the scheduler's jobs, from the stream that all of them stand in.

The stream is read from its beginning at every start. What the journal or the bus holds already is not recorded again,
so nothing has to be remembered of how far it was read.
"""

from __future__ import annotations

from typing import Final

from schemas.jobs import JobRecord, JobState
from schemas.scheduling import JobEnded, JobOutcome, JobSpec, ScheduleEvent, task_of
from services.collector.write_ahead_log import Journal, record_key

DATASET: Final = "scheduled"
_STATES: Final = {
    JobOutcome.ENDED: JobState.SUCCEEDED,
    JobOutcome.FAILED: JobState.FAILED,
    JobOutcome.CANCELLED: JobState.CANCELLED,
}


def record_name(ended: JobEnded) -> str:
    """Unique: a job's name may be used again once it has ended, at another time."""
    return f"{ended.job}-{ended.submitted_ns}"


def job_record(ended: JobEnded, spec: JobSpec | None) -> JobRecord | None:
    """The record of a job that has ended; None: it never ran, so nothing can be learned of it.

    Args:
        ended: its end.
        spec: as it was submitted; None: the stream does not hold that any more.
    """
    if ended.node is None or not ended.started_ns or not ended.node.slots:
        return None
    if spec is None:
        spec = JobSpec(job=ended.job, workers=ended.workers, slots=ended.slots, command=("?",), directory="?")
    out_of_memory = ended.outcome is JobOutcome.FAILED and ended.out_of_memory
    return JobRecord(
        job=record_name(ended),
        dataset=DATASET,
        task=task_of(ended.job, ended.task),
        configuration=ended.node.configuration(spec),
        state=JobState.OUT_OF_MEMORY if out_of_memory else _STATES[ended.outcome],
        duration_s=ended.ran_s or None,
        started_ns=ended.started_ns,
        local_run=ended.run,
        reason=ended.reason,
        submitted_ns=ended.submitted_ns,
        preemptions=ended.preemptions,
        restoring_s=ended.restoring_s,
        lost_s=ended.lost_s,
    )


class ScheduledJobs:
    """Follows the stream, and writes jobs that have ended to a journal."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._live: dict[str, JobSpec] = {}
        """Specs of the jobs that have not ended, by name."""
        self.unwritten: dict[str, JobRecord] = {}
        """Of jobs that have ended, by key; not in the journal yet."""

    def take(self, event: ScheduleEvent) -> None:
        """Take the next entry of the stream."""
        for submitted in event.submitted:
            self._live[submitted.spec.job] = submitted.spec
        for ended in event.ended:
            record = job_record(ended, self._live.pop(ended.job, None))
            if record is not None and record_key(record) not in self._journal:
                self.unwritten[record_key(record)] = record

    def write(self) -> list[JobRecord]:
        """Write what has ended to the journal, durably; returns what was written. May run in another thread.

        Raises:
            JournalError: nothing of it could be written. Call again later.
        """
        records = list(self.unwritten.values())
        self._journal.append_all(records)
        for record in records:
            self.unwritten.pop(record_key(record), None)
        return records
