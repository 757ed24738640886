"""The collector's wiring: jobs that have ended are written to the journal, and published from there, once each."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from typing import ClassVar, Final, TypeVar

from schemas.jobs import JobRecord
from schemas.scheduling import ScheduleEvent
from schemas.streams import SCHEDULE_STREAM
from services._runtime.bus.api import BusError, BusUnavailableError, Delivery, Subscription
from services._runtime.service.app import Runtime
from services._runtime.service.settings import CommonSettings
from services._runtime.settings_error import UnusableSettingsError
from services._runtime.telemetry.tracing import Begin, span
from services.collector.cloud.ingestion import Ingestion, PollResult
from services.collector.cloud.ports import CloudError
from services.collector.cloud.providers import open_providers
from services.collector.publishing import Publisher
from services.collector.scheduled import ScheduledJobs
from services.collector.settings import CollectorSettings
from services.collector.tool import default_directory
from services.collector.write_ahead_log import Journal, JournalError, Record, record_key

_FAILURES_TO_REPORT: Final = 3
"""Consecutive failed polls before `not_ready` reports them; single ones are common."""
_RETRY_S: Final = 1.0
_PUBLISH_S: Final = 5.0
_STOP_S: Final = 2.0
_MAX_NAMED: Final = 20
"""Jobs in a span."""


class Collector:
    """Publishes records of jobs that have ended: features, configuration, time; in a cloud cost and the price then."""

    name: ClassVar[str] = "collector"
    version: ClassVar[str] = version("turnbuckle")
    settings_class: ClassVar[type[CommonSettings]] = CollectorSettings
    bus_wait_s: ClassVar[float] = 1.0
    """Jobs are recorded without NATS, too."""

    def __init__(self, runtime: Runtime[CollectorSettings]) -> None:
        self._settings = runtime.settings
        self._runtime = runtime
        self._clock = runtime.clock
        self._log = runtime.log
        self._journal: Journal | None = None
        self._publisher: Publisher | None = None
        self._ingestion: Ingestion | None = None
        self._scheduled: ScheduledJobs | None = None
        self._replay: Subscription | None = None
        """Of the scheduler's stream."""
        self._last_poll = PollResult()
        self._failures = 0
        self._problems: dict[str, str] = {}
        """Current problems, by place."""
        self._logged_problems: dict[str, str] = {}
        self._under_way: asyncio.Future[PollResult] | None = None
        self.polls = 0
        self.poll_errors = 0
        self.scheduled = 0

    async def start(self) -> None:
        """Open the journal; start publishing, following the scheduler, and polling the cloud if one is configured."""
        settings = self._settings
        directory = settings.directory or default_directory("collector")
        try:
            self._journal = await asyncio.to_thread(Journal, directory)
        except JournalError as error:
            raise UnusableSettingsError(f"{error} (TURNBUCKLE_COLLECTOR__DIRECTORY names another place)") from error
        self._publisher = Publisher(self._journal, self._runtime.bus, self._log_published)
        self._register_metrics(self._journal, self._publisher)
        self._runtime.spawn(self._publish(self._publisher), name="publish")
        if settings.scheduled_jobs:
            self._scheduled = ScheduledJobs(self._journal)
            self._runtime.spawn(self._follow_scheduler(self._scheduled), name="follow the scheduler")
        if settings.project is None:
            self._log.info(
                "no_cloud_configured", remedy="set TURNBUCKLE_COLLECTOR__PROJECT to have jobs of Vertex AI collected"
            )
            return
        self._runtime.spawn(self._watch(self._journal), name="watch the cloud")

    async def stop(self) -> None:
        """Wait briefly for a poll under way; unpublished records are published at the next start."""
        if self._replay is not None:
            await self._replay.stop()
        await self._runtime.cancel_tasks()
        under_way = self._under_way
        if under_way is not None and not under_way.done():
            await asyncio.wait({under_way}, timeout=_STOP_S)
        if under_way is not None and not under_way.done():
            self._log.warning("cloud_poll_abandoned", remedy="none needed: polled again at the next start")
        elif self._journal is not None:
            self._journal.close()

    def not_ready(self) -> str | None:
        """Problems that prevent jobs from being collected, or None."""
        return "; ".join(f"{place}: {text}" for place, text in sorted(self._problems.items())) or None

    # -- the cloud ---------------------------------------------------------------------------------------------

    async def _watch(self, journal: Journal) -> None:
        while True:
            due_s = self._clock.monotonic() + self._settings.poll_s
            await self._poll_once(journal)
            await self._clock.sleep_until(due_s)

    async def _poll_once(self, journal: Journal) -> None:
        self.polls += 1
        started_ns = self._clock.time_ns()
        try:
            result = await self._in_thread(journal)
        except CloudError as error:
            self.poll_errors += 1
            self._failures += 1
            if self._failures >= _FAILURES_TO_REPORT or self.polls == 1:
                self._report_problem("cloud", str(error))
            self._log.warning("cloud_poll_failed", failures=self._failures, error=str(error))
        except JournalError as error:
            self.poll_errors += 1
            self._report_problem("journal", str(error))
        else:
            self._failures = 0
            for place in ("cloud", "journal"):
                self._report_problem(place, "")
            self._report_problem("jobs", self._first(result.problems))
            self._last_poll = result
            if result.recorded:
                self._log_recorded(result.recorded, started_ns)

    def _log_recorded(self, records: list[JobRecord], started_ns: int) -> None:
        """Log the records of a poll; their publication belongs to its trace, however much later."""
        assert self._publisher is not None
        jobs = [record.job for record in records]
        with span("collector.record", Begin(begun_ns=started_ns), turnbuckle__jobs=jobs[:_MAX_NAMED]) as step:
            self._publisher.link_trace(records, step.carrier)
            for record in records:
                self._log.info("recorded", job=record.job, state=record.state, cost_usd=record.cost_usd)

    async def _in_thread(self, journal: Journal) -> PollResult:
        """Poll in a daemon thread; if this task is cancelled, `stop` waits for the thread."""

        def poll() -> PollResult:
            if self._ingestion is None:
                self._ingestion = Ingestion(open_providers(self._settings), journal, self._settings)
            return self._ingestion.poll(self._clock.time_ns() / 1e9)

        self._under_way = start_daemon(poll, "poll of the cloud")
        return await asyncio.shield(self._under_way)

    # -- the scheduler -----------------------------------------------------------------------------------------

    async def _follow_scheduler(self, scheduled: ScheduledJobs) -> None:
        """Read the scheduler's stream from its beginning, then write what has ended, until cancelled."""

        async def take(delivery: Delivery) -> None:
            if isinstance(delivery.message, ScheduleEvent):
                scheduled.take(delivery.message)

        while True:
            if self._replay is None:
                try:
                    self._replay = await self._runtime.bus.replay(SCHEDULE_STREAM, take)
                    self._report_problem("scheduler", "")
                except BusUnavailableError as error:
                    self._log.debug("scheduler_not_followed", error=str(error))
                except BusError as error:
                    self._report_problem("scheduler", str(error))
            await self._clock.sleep_until(self._clock.monotonic() + _RETRY_S)
            await self._write_scheduled(scheduled)

    async def _write_scheduled(self, scheduled: ScheduledJobs) -> None:
        """Write jobs that have ended to the journal; what it cannot hold now is written later."""
        if not scheduled.unwritten:
            return
        began_ns = self._clock.time_ns()
        try:
            records = await asyncio.to_thread(scheduled.write)
        except JournalError as error:
            self._report_problem("journal", str(error))
            return
        self._report_problem("journal", "")
        self.scheduled += len(records)
        self._log_recorded(records, began_ns)

    # -- the bus -----------------------------------------------------------------------------------------------

    async def _publish(self, publisher: Publisher) -> None:
        """Publish unpublished records until cancelled."""
        while True:
            try:
                await publisher.publish(_PUBLISH_S)
            except BusError as error:
                self._log.debug("not_published", error=str(error))
            except JournalError as error:
                self._report_problem("journal", str(error))
            await self._clock.sleep_until(self._clock.monotonic() + _RETRY_S)

    def _log_published(self, record: Record, sent: bool) -> None:
        kind = "job" if isinstance(record, JobRecord) else "run"
        self._log.info("published", kind=kind, key=record_key(record), already_there=not sent)

    # -- problems and metrics ----------------------------------------------------------------------------------

    def _report_problem(self, place: str, text: str) -> None:
        """Set the problem of a place (empty: none), and log changes."""
        if text:
            self._problems[place] = text
        else:
            self._problems.pop(place, None)
        if self._logged_problems.get(place, "") != text:
            self._logged_problems[place] = text
            if text:
                self._log.warning("degraded", place=place, reason=text)
            else:
                self._log.info("recovered", place=place)

    @staticmethod
    def _first(problems: list[str]) -> str:
        if not problems:
            return ""
        return problems[0] + (f" (and {len(problems) - 1} more)" if len(problems) > 1 else "")

    def _register_metrics(self, journal: Journal, publisher: Publisher) -> None:
        observe, prefix = self._runtime.telemetry.observe, "turnbuckle_collector"
        observe(f"{prefix}_cloud_configured_info", lambda: float(self._settings.project is not None))
        observe(f"{prefix}_cloud_polls_total", lambda: self.polls)
        observe(f"{prefix}_cloud_poll_errors_total", lambda: self.poll_errors)
        observe(f"{prefix}_unfinished_jobs", lambda: self._last_poll.waiting + self._last_poll.running)
        observe(f"{prefix}_cost_pending_jobs", lambda: self._last_poll.unsettled)
        observe(f"{prefix}_scheduled_jobs_total", lambda: self.scheduled)
        observe(f"{prefix}_problem_jobs", lambda: len(self._last_poll.problems))
        observe(f"{prefix}_journal_records", lambda: len(journal))
        observe(f"{prefix}_unpublished_records", lambda: journal.waiting)
        observe(f"{prefix}_published_records_total", lambda: publisher.published)
        observe(f"{prefix}_already_stored_records_total", lambda: publisher.found)


T = TypeVar("T")


def start_daemon(work: Callable[[], T], name: str) -> asyncio.Future[T]:
    """Run `work` in a daemon thread; the future has its result or exception.

    Threads of `asyncio.to_thread` are joined at the interpreter's exit; this one is not.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def resolve(result: T | None, error: BaseException | None) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]  # None only where T allows it

    def run() -> None:
        result, raised = None, None
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - raised again where it is awaited
            raised = error
        with suppress(RuntimeError):  # the event loop is closed
            loop.call_soon_threadsafe(resolve, result, raised)

    threading.Thread(target=run, name=name, daemon=True).start()
    return done
