"""The scheduler's commands, below `turnbuckle jobs`: listed here, imported when they are used."""

from __future__ import annotations

from typing import Final

from services._runtime.command.lazy import LazyCommand

_JOBS: Final = "Run jobs"
_NODES: Final = "Nodes"
_WHAT_IF: Final = "Other policies"
_HERE: Final = "services.scheduler.commands"

COMMANDS: Final = (
    LazyCommand(
        "submit",
        "Run a training job: that of a FILE, or a command after --.",
        _JOBS,
        f"{_HERE}.submit",
        "submit_command",
    ),
    LazyCommand(
        "queue",
        "List the jobs in their order: what runs where, what waits, why, and until when.",
        _JOBS,
        f"{_HERE}.queue",
        "queue_command",
    ),
    LazyCommand(
        "top",
        "Show nodes, shared links, jobs and their iterations, live, until Ctrl-C.",
        _JOBS,
        f"{_HERE}.top",
        "top_command",
    ),
    LazyCommand(
        "explain",
        "Explain JOB: each decision about it with its numbers, what was estimated, and what it took.",
        _JOBS,
        f"{_HERE}.explain",
        "explain_command",
    ),
    LazyCommand(
        "logs",
        "Print what JOB's workers wrote to their standard output and error.",
        _JOBS,
        f"{_HERE}.logs",
        "logs_command",
    ),
    LazyCommand(
        "preempt",
        "Make JOB give up its slots; it goes on when its turn comes.",
        _JOBS,
        f"{_HERE}.control",
        "preempt_command",
        "PREEMPT_EXAMPLES",
    ),
    LazyCommand(
        "release",
        "Let JOB start again although the time that it was preempted for is not over.",
        _JOBS,
        f"{_HERE}.control",
        "release_command",
        "RELEASE_EXAMPLES",
    ),
    LazyCommand(
        "cancel",
        "End JOB, wherever it runs or waits.",
        _JOBS,
        f"{_HERE}.control",
        "cancel_command",
        "CANCEL_EXAMPLES",
    ),
    LazyCommand(
        "nodes",
        "List the nodes: slots, which jobs hold them, and why nothing is started on one.",
        _NODES,
        f"{_HERE}.nodes",
        "nodes_command",
    ),
    LazyCommand(
        "drain",
        "Start nothing on NODE from now on; jobs that hold slots there keep them.",
        _NODES,
        f"{_HERE}.control",
        "drain_command",
        "DRAIN_EXAMPLES",
    ),
    LazyCommand(
        "undrain",
        "Let jobs start on NODE again.",
        _NODES,
        f"{_HERE}.control",
        "undrain_command",
        "UNDRAIN_EXAMPLES",
    ),
    LazyCommand(
        "simulate",
        "Simulate a trace of jobs under several policies, deciding as the scheduler does.",
        _WHAT_IF,
        f"{_HERE}.simulate",
        "simulate_command",
    ),
)
"""A test compares each sentence with the command's own help."""
