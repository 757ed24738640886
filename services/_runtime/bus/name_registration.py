"""One service per name: its registration in a KV bucket, claimed and renewed by compare-and-set.

A name that is free is claimed by a create. A registration is renewed over its own revision only, so a service that was
paused while another one took its name finds out at its next heartbeat. An earlier registration is replaced at once
where its process is known to be dead: it had our `Holder`'s token, and we have its lock. Any other one is watched: if
it is renewed its service is alive, and we are refused; if it expires, or is not renewed for its time to live, the name
is ours. No two clocks are compared. Failure cases: docs/decisions/0030-replies-and-registrations.md.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from schemas.containers import NodeInfo
from schemas.network import ReconcilerInfo
from schemas.streams import BucketSpec
from schemas.subjects import token
from services._runtime.bus.api import Bus, Entry, KeyValue, NotPermittedError, RevisionConflictError
from services._runtime.bus.random_tokens import random_token
from services._runtime.clock import Clock
from services._runtime.telemetry.logging import Logger, LogLimiter, log_once

Registered = NodeInfo | ReconcilerInfo
_TOKEN_BYTES: Final = 22
_WITHOUT_TTL_S: Final = 30.0
_TOLD_EVERY_S: Final = 60.0
_LOCK_ATTEMPTS: Final = 10
_LOCK_PAUSE_S: Final = 0.01


class NameTakenError(Exception):
    """Another service of this name is at work; the text says which."""


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose registration it is."""

    holder: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class Found:
    """What stands under the name. `owner` None: no registration, whatever else it is."""

    revision: int
    owner: Owner | None


@dataclass(frozen=True, slots=True)
class Watched:
    """Another one's registration, since we saw it first."""

    found: Found
    since_s: float


class Claim(Enum):
    """What to do about a name."""

    CREATE = "create"
    """Nothing stands there."""
    REPLACE = "replace"
    """Ours, of a process that is dead, or of nobody: compare-and-set over its revision."""
    WAIT = "wait"
    """It cannot be told yet whether its service lives."""
    REFUSED = "refused"
    """Its service lives."""


def judge(found: Found | None, ours: Owner, watched: Watched | None, age_limit: tuple[float, float]) -> Claim:
    """What to do about what stands under our name. Pure.

    Args:
        found: what was read last.
        ours: who we are.
        watched: another one's registration that was read before, if any.
        age_limit: now and the bucket's time to live, in seconds (monotonic).
    """
    now_s, ttl_s = age_limit
    if found is None:
        return Claim.CREATE
    if found.owner is None or found.owner.holder == ours.holder:
        return Claim.REPLACE  # nobody else can have our holder's token while we hold its lock
    if watched is None:
        return Claim.WAIT
    if found.revision != watched.found.revision:
        return Claim.REFUSED  # renewed
    return Claim.REPLACE if now_s - watched.since_s >= ttl_s else Claim.WAIT


class Registration:
    """Our registration under a name. `hold` it again and again; it is not ours before that returned True."""

    def __init__(self, bus: Bus, spec: BucketSpec, name: str, clock: Clock) -> None:
        self._bus = bus
        self._spec = spec
        self._name = name
        self._clock = clock
        self._revision = 0
        self._watched: Watched | None = None
        self._contested = False

    @property
    def contested(self) -> bool:
        """Whether another one's registration stands there, and nothing should be said under the name."""
        return self._contested

    async def hold(self, info: Registered) -> bool:
        """Claim the name, or renew. False: another registration stands there, and it is not known whether it lives.

        Raises:
            NameTakenError: it lives; or ours had ended, and another one has the name now.
            BusError: the bucket cannot be read or written.
        """
        bucket = self._bus.bucket(self._spec)
        if self._revision:
            with suppress(RevisionConflictError):
                self._revision = await bucket.update(self._name, info, self._revision)
                return True
        return await self._claim(bucket, info)

    async def _claim(self, bucket: KeyValue, info: Registered) -> bool:
        found = _found(await bucket.get(self._name))
        now_s = self._clock.monotonic()
        ours = Owner(info.holder, info.incarnation)
        claim = judge(found, ours, self._watched, (now_s, self._spec.ttl_s or _WITHOUT_TTL_S))
        if claim is Claim.WAIT and self._revision:
            claim = Claim.REFUSED  # it came after us: while we were paused or cut off, ours expired
        if claim is Claim.REFUSED:
            self._revision, self._contested = 0, True
            assert found is not None
            assert found.owner is not None
            raise NameTakenError(f"incarnation {found.owner.incarnation}")
        if claim is Claim.WAIT:
            assert found is not None
            self._contested = True
            self._watched = self._watched or Watched(found, now_s)
            return False
        try:
            if found is None:
                self._revision = await bucket.create(self._name, info)
            else:
                self._revision = await bucket.update(self._name, info, found.revision)
        except RevisionConflictError:
            return False  # somebody was quicker: the next attempt sees who
        self._contested, self._watched = False, None
        return True

    async def release(self) -> None:
        """Give the name back, if it is ours.

        Raises:
            BusError: the bucket cannot be written; the registration expires.
        """
        revision, self._revision = self._revision, 0
        if revision:
            with suppress(RevisionConflictError):
                await self._bus.bucket(self._spec).delete(self._name, revision=revision)


def tell_not_permitted(log: Logger, limiter: LogLimiter, error: NotPermittedError) -> None:
    """Say, once a minute, why no name can be registered: the server's users are those of an older version, say."""
    remedy = "run `turnbuckle nats config` of this version, then `nats-server --signal reload`"
    log_once(log.warning, limiter, "name_not_registered", _TOLD_EVERY_S, error=str(error), remedy=remedy)


def _found(entry: Entry | None) -> Found | None:
    if entry is None:
        return None
    message = entry.message
    if not isinstance(message, NodeInfo | ReconcilerInfo):
        return Found(entry.revision, None)
    return Found(entry.revision, Owner(message.holder, message.incarnation))


def _lock(descriptor: int) -> None:
    """Raises `OSError` where another process holds it. One that was killed lets go when the kernel has cleared up."""
    for _ in range(_LOCK_ATTEMPTS - 1):
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(_LOCK_PAUSE_S)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


class Holder:
    """A random token beside a lock: whoever reads it while holding the lock knows that the last reader is dead.

    Where the lock cannot be had or made, the token is a new one that nobody else knows.
    """

    def __init__(self, directory: Path, role: str, name: str) -> None:
        self._descriptor = -1
        self.token = self._locked(directory / f"{role}-{token(name).replace('/', '.')}") or random_token()

    def _locked(self, path: Path) -> str | None:
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError:
            return None
        try:
            _lock(descriptor)
            known = os.pread(descriptor, 64, 0)
            if len(known) != _TOKEN_BYTES:  # new, or cut off by a crash
                known = random_token().encode("ascii")
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, known, 0)
        except OSError:
            os.close(descriptor)
            return None
        self._descriptor = descriptor
        return known.decode("ascii", "replace")

    def release(self) -> None:
        """Let the lock go; again: nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1
