"""Subjects of the bus: their grammar, and the only code that builds them.

Grammar: ``<root>.<kind>.<domain>[.<id>...]`` with kind ``obs`` (lossy observation, core NATS), ``evt`` (durable
event, JetStream) or ``cmd`` (request and reply). Ids are escaped to one token each, reversibly, because a host name has
dots and a label may hold anything (NATS ADR-6 allows ``[A-Za-z0-9-_/=.]`` in keys).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

MAX_TOKEN_CHARACTERS: Final = 200
_LITERAL: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")
_PARAMETER: Final = re.compile(r"\{([a-z_]+)\}")


class SubjectError(ValueError):
    """A subject or id that cannot be expressed in the grammar."""


def token(identifier: str) -> str:
    """Escape an id to one subject token: ``.`` becomes ``/``, anything unusual ``=XX`` per UTF-8 byte.

    Raises:
        SubjectError: the id is empty or its escaped form exceeds ``MAX_TOKEN_CHARACTERS``.
    """
    if not identifier:
        raise SubjectError("an id in a subject must not be empty")
    escaped = "".join(_escape(character) for character in identifier)
    if len(escaped) > MAX_TOKEN_CHARACTERS:
        raise SubjectError(f"id of {len(escaped)} escaped characters exceeds {MAX_TOKEN_CHARACTERS}")
    return escaped


def _escape(character: str) -> str:
    if character in _LITERAL:
        return character
    if character == ".":
        return "/"
    return "".join(f"={byte:02X}" for byte in character.encode("utf-8", "surrogatepass"))


def untoken(escaped: str) -> str:
    """Undo `token`.

    Raises:
        SubjectError: the text is no output of `token`.
    """
    try:
        raw = escaped.replace("/", ".").encode("ascii")
        identifier = _ESCAPED_BYTES.sub(lambda match: bytes([int(match[1], 16)]), raw).decode("utf-8", "surrogatepass")
        canonical = token(identifier) == escaped
    except UnicodeError:
        canonical = False
    if not canonical:
        raise SubjectError(f"{escaped!r} is not an escaped id")
    return identifier


_ESCAPED_BYTES: Final = re.compile(rb"=([0-9A-F]{2})")


@dataclass(frozen=True, slots=True)
class Subject:
    """A concrete subject or, with wildcards, a pattern. Only `SubjectTemplate` and `wildcard` make one."""

    text: str

    def __str__(self) -> str:
        return self.text

    def matches(self, other: Subject) -> bool:
        """Whether this pattern covers the concrete subject ``other``."""
        mine, theirs = self.text.split("."), other.text.split(".")
        for position, part in enumerate(mine):
            if part == ">":
                return len(theirs) > position
            if position >= len(theirs) or part not in {"*", theirs[position]}:
                return False
        return len(mine) == len(theirs)


@dataclass(frozen=True, slots=True)
class SubjectTemplate:
    """One line of the subject table, such as ``obs.cfs.{app}.{node}`` (written without the root)."""

    text: str

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the ids, in order."""
        return tuple(_PARAMETER.findall(self.text))

    @property
    def kind(self) -> str:
        """``obs``, ``evt`` or ``cmd``."""
        return self.text.split(".", 1)[0]

    @lru_cache(maxsize=1 << 17)  # noqa: B019 - templates are constants of this module
    def subject(self, root: str, **ids: str) -> Subject:
        """The concrete subject for these ids.

        Raises:
            SubjectError: an id is missing, unknown or empty, or the root is no plain token.
        """
        if missing := set(self.parameters) ^ set(ids):
            raise SubjectError(f"{self.text}: ids do not fit: {sorted(missing)}")
        return self._fill(root, ids)

    def pattern(self, root: str, **ids: str) -> Subject:
        """A subscription pattern: ids that are not given become ``*``."""
        if unknown := set(ids) - set(self.parameters):
            raise SubjectError(f"{self.text}: unknown ids: {sorted(unknown)}")
        return self._fill(root, ids)

    def parse(self, root: str, subject: str) -> dict[str, str]:
        """The ids in a concrete subject.

        Raises:
            SubjectError: the subject does not fit this template or root.
        """
        names, parts = f"{root}.{self.text}".split("."), subject.split(".")
        if len(names) != len(parts):
            raise SubjectError(f"{subject!r} does not fit {self.text!r}")
        ids: dict[str, str] = {}
        for name, part in zip(names, parts, strict=True):
            if match := _PARAMETER.fullmatch(name):
                ids[match[1]] = untoken(part)
            elif name != part:
                raise SubjectError(f"{subject!r} does not fit {self.text!r}")
        return ids

    def _fill(self, root: str, ids: dict[str, str]) -> Subject:
        check_root(root)
        body = _PARAMETER.sub(lambda match: token(ids[match[1]]) if match[1] in ids else "*", self.text)
        return Subject(f"{root}.{body}")


def check_root(root: str) -> str:
    """Return ``root`` if it is one plain token (letters, digits, ``-`` and ``_``).

    Raises:
        SubjectError: it is not.
    """
    if not root or set(root) - _LITERAL:
        raise SubjectError(f"subject root {root!r} must be one token of letters, digits, '-' and '_'")
    return root


def wildcard(root: str, pattern: str = ">") -> Subject:
    """A pattern typed by a user, such as ``obs.>`` or ``tb.obs.>``, put below ``root`` unless it is there already.

    Raises:
        SubjectError: a part is empty, holds white space, or ``>`` is not last.
    """
    check_root(root)
    text = pattern if pattern == root or pattern.startswith(f"{root}.") else f"{root}.{pattern}"
    parts = text.split(".")
    if any(not part or part != part.strip() or " " in part for part in parts) or ">" in parts[:-1]:
        raise SubjectError(f"{pattern!r} is no subject: tokens are separated by single dots, '>' only stands last")
    return Subject(text)


CFS: Final = SubjectTemplate("obs.cfs.{app}.{node}")
LIMIT_DECISIONS: Final = SubjectTemplate("obs.limits.{app}")
LIMITS_APPLIED: Final = SubjectTemplate("obs.applied.{app}.{node}")
CONTAINER_EVENTS: Final = SubjectTemplate("evt.container.{app}.{node}")
LIMIT_UPDATES: Final = SubjectTemplate("cmd.limits.{node}")
MEMORY_REQUESTS: Final = SubjectTemplate("cmd.memory.{app}.{node}")
OOM_EVENTS: Final = SubjectTemplate("evt.oom.{app}.{node}")
REPLICA_STATE: Final = SubjectTemplate("cmd.replica_state.{replica}")
REPLICA_EXPLAIN: Final = SubjectTemplate("cmd.replica_explain.{replica}")
ROUTE_EVENTS: Final = SubjectTemplate("evt.route.{node}")
TC_EVENTS: Final = SubjectTemplate("evt.tc.{node}")
RECONCILER_STATE: Final = SubjectTemplate("cmd.reconciler_state.{node}")
RECONCILER_DIFF: Final = SubjectTemplate("cmd.reconciler_diff.{node}")
RECONCILER_RULES: Final = SubjectTemplate("cmd.reconciler_rules.{node}")
RUN_SAMPLES: Final = SubjectTemplate("obs.run.{run}")
RUN_PROFILES: Final = SubjectTemplate("evt.run.{run}")
JOB_RECORDS: Final = SubjectTemplate("evt.job.{job}")
PREDICTIONS: Final = SubjectTemplate("evt.prediction.{job}")
SAVINGS: Final = SubjectTemplate("evt.savings.{app}.{day}.{record}")
AGGREGATION_EVENTS: Final = SubjectTemplate("evt.aggregate.{job}")
LAYER_PROFILES: Final = SubjectTemplate("evt.layers.{profile}")
PLANS: Final = SubjectTemplate("evt.plan.{job}")
SLAB_REQUESTS: Final = SubjectTemplate("cmd.slab.{daemon}.{node}")
"""From host to host: ``daemon`` is asked, ``node`` asks."""
SLAB_EVENTS: Final = SubjectTemplate("evt.slab.{node}")
SCHEDULE: Final = SubjectTemplate("evt.schedule")
SCHEDULER_HEARTBEATS: Final = SubjectTemplate("obs.schedule")
ITERATIONS: Final = SubjectTemplate("obs.iteration.{job}.{node}")
STEPS: Final = SubjectTemplate("obs.step.{job}.{node}")
TRAINING_EVENTS: Final = SubjectTemplate("evt.train.{job}.{node}")
WORK_EVENTS: Final = SubjectTemplate("evt.work.{job}.{node}")
WORK_ORDERS: Final = SubjectTemplate("cmd.work.{node}")
WORKER_LOGS: Final = SubjectTemplate("cmd.worker_logs.{node}")
