"""One service per name: its registration in a KV bucket, claimed and renewed by compare-and-set.

A name that is free is claimed by a create. A registration is renewed over its own revision only, so a service that was
paused while another one took its name finds out at its next heartbeat. An earlier registration is replaced at once
if its process is known to be dead: it has this `Holder`'s token, whose lock this process holds. Any other one is
watched: if it is renewed its service is alive and the claim is refused; if it expires, or is not renewed for its time
to live, it is replaced. Clocks of two hosts are never compared. Failure cases:
docs/decisions/0030-replies-and-registrations.md.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Final

from schemas.aggregations import AggregatorInfo
from schemas.containers import NodeInfo
from schemas.network import ReconcilerInfo
from schemas.remote_memory import MemoryHostInfo
from schemas.scheduling import RunnerInfo
from schemas.streams import BucketSpec
from schemas.subjects import Subject, token
from schemas.trainings import TrainingGeneration
from services._runtime.bus.api import (
    Bus,
    BusError,
    Entry,
    KeyValue,
    NotPermittedError,
    Responder,
    RevisionConflictError,
    Subscription,
)
from services._runtime.bus.random_tokens import random_token
from services._runtime.clock import Clock
from services._runtime.file_lock import try_flock
from services._runtime.settings_error import UnusableSettingsError
from services._runtime.telemetry.logging import Logger, LogLimiter, log_once

Registered = AggregatorInfo | MemoryHostInfo | NodeInfo | ReconcilerInfo | RunnerInfo | TrainingGeneration
_TOKEN_BYTES: Final = 22
_WITHOUT_TTL_S: Final = 30.0
_LOG_EVERY_S: Final = 60.0
HEARTBEAT_S: Final = 5.0
RETRY_S: Final = 0.5
"""Between heartbeats while the name is not held, or the service has something to say soon."""
_LOCK_ATTEMPTS: Final = 10
_LOCK_PAUSE_S: Final = 0.01


class NameTakenError(Exception):
    """Another live service has this name; the text says which."""


@dataclass(frozen=True, slots=True)
class Owner:
    """Identity of a registered process."""

    holder: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class Found:
    """The entry under a name. `owner` None: not a registration."""

    revision: int
    owner: Owner | None


@dataclass(frozen=True, slots=True)
class Watched:
    """Another process' registration, and when it was first observed."""

    found: Found
    since_s: float


class Claim(Enum):
    """Action on a name."""

    CREATE = "create"
    """There is no entry."""
    REPLACE = "replace"
    """The entry is this holder's, of a dead process, or no registration: compare-and-set over its revision."""
    WAIT = "wait"
    """It is not known yet whether its service is alive."""
    REFUSED = "refused"
    """Its service is alive."""


def decide_claim(found: Found | None, own: Owner, watched: Watched | None, age_limit: tuple[float, float]) -> Claim:
    """The action on the entry under a name. Pure.

    Args:
        found: the entry as read last.
        own: the claiming process.
        watched: another process' registration that was read before, if any.
        age_limit: now and the bucket's time to live, in seconds (monotonic).
    """
    now_s, ttl_s = age_limit
    if found is None:
        return Claim.CREATE
    if found.owner is None or found.owner.holder == own.holder:
        return Claim.REPLACE  # no live process has this holder's token: its lock is held here
    if watched is None:
        return Claim.WAIT
    if found.revision != watched.found.revision:
        return Claim.REFUSED  # renewed
    return Claim.REPLACE if now_s - watched.since_s >= ttl_s else Claim.WAIT


class Registration:
    """A process' registration under a name. Call `hold` periodically; valid once that returned True."""

    def __init__(self, bus: Bus, spec: BucketSpec, name: str, clock: Clock) -> None:
        self._open_bucket = partial(bus.bucket, spec)
        self._bucket: KeyValue | None = None
        self._ttl_s = spec.ttl_s or _WITHOUT_TTL_S
        self._name = name
        self._clock = clock
        self._revision = 0
        self._watched: Watched | None = None
        self._contested = False

    @property
    def contested(self) -> bool:
        """Whether another process' registration was found: nothing should be published under the name."""
        return self._contested

    async def hold(self, info: Registered) -> bool:
        """Claim the name, or renew the claim. False: there is another registration, and it is not known if it is alive.

        Raises:
            NameTakenError: it is alive; or this one had expired and another process took the name.
            BusError: the bucket cannot be read or written.
        """
        bucket = self._bucket = self._bucket or self._open_bucket()
        if self._revision:
            with suppress(RevisionConflictError):
                self._revision = await bucket.update(self._name, info, self._revision)
                return True
        return await self._claim(bucket, info)

    async def _claim(self, bucket: KeyValue, info: Registered) -> bool:
        found = _found(await bucket.get(self._name))
        now_s = self._clock.monotonic()
        own = Owner(info.holder, info.incarnation)
        claim = decide_claim(found, own, self._watched, (now_s, self._ttl_s))
        if claim is Claim.WAIT and self._revision:
            claim = Claim.REFUSED  # this one expired while the process was paused or disconnected
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
            return False  # lost a race: the next attempt reads the winner
        self._contested, self._watched = False, None
        return True

    async def release(self) -> None:
        """Delete the registration, if held.

        Raises:
            BusError: the bucket cannot be written; the registration expires.
        """
        revision, self._revision = self._revision, 0
        if revision and self._bucket is not None:
            with suppress(RevisionConflictError):
                await self._bucket.delete(self._name, revision=revision)


@dataclass(slots=True)
class NameHolder:
    """A service's name on the bus, renewed by heartbeats; its requests are served once no other service can have it."""

    bus: Bus
    bucket: BucketSpec
    role: str
    """Such as "agent"."""
    node: str
    clock: Clock
    log: Logger
    responders: Mapping[Subject, Responder]
    on_serving: Callable[[], None] = lambda: None
    _registration: Registration = field(init=False)
    _subscriptions: list[Subscription] = field(default_factory=list)
    """Empty until the requests are served."""
    _limiter: LogLimiter = field(default_factory=LogLimiter)

    def __post_init__(self) -> None:
        self._registration = Registration(self.bus, self.bucket, self.node, self.clock)

    @property
    def unconfirmed(self) -> str | None:
        """Why nothing may be published under the name yet, or None."""
        if not self._registration.contested:
            return None
        name = f"the node name {self.node!r}"
        return f"{name} is registered by another {self.role}: waiting until that is renewed or expires"

    async def heartbeat(self, info: Registered, *, soon: bool = False) -> None:
        """Try to hold the name, then pause until the next heartbeat; ``soon``: as short as if it were not held.

        Raises:
            UnusableSettingsError: another service has the name.
        """
        held = await self.try_hold(info)
        await self.clock.sleep_until(self.clock.monotonic() + (HEARTBEAT_S if held and not soon else RETRY_S))

    async def try_hold(self, info: Registered) -> bool:
        """Register, or renew that, and serve the requests. False: not yet.

        Raises:
            UnusableSettingsError: another service has the name.
        """
        try:
            held = await self._register(info)
            if held and not self._subscriptions:
                await self._serve()
                self.on_serving()
        except BusError as error:
            self.log.debug("registration_failed", error=str(error))
            return False
        return held

    async def _register(self, info: Registered) -> bool:
        contested_before = self._registration.contested
        try:
            held = await self._registration.hold(info)
        except NotPermittedError as error:  # say, with users of an older version
            remedy = "run `turnbuckle nats config` of this version, then `nats-server --signal reload`"
            log_once(
                self.log.warning, self._limiter, "name_not_registered", _LOG_EVERY_S, error=str(error), remedy=remedy
            )
            raise
        except NameTakenError as error:
            raise UnusableSettingsError(
                f"another {self.role} of the node name {self.node!r} is at work already ({error}): stop it, or set "
                f"TURNBUCKLE_{self.role.upper()}__NODE to another name here"
            ) from error
        if self.unconfirmed is not None and not contested_before:
            self.log.warning("duplicate_node_name_suspected", node=self.node, reason=self.unconfirmed)
        return held

    async def _serve(self) -> None:
        """All requests, or none."""
        subscriptions: list[Subscription] = []
        try:
            for subject, responder in self.responders.items():
                subscriptions.append(await self.bus.serve(subject, responder))
        except BusError:
            for subscription in subscriptions:
                await subscription.stop()
            raise
        self._subscriptions = subscriptions

    async def stop_serving(self) -> None:
        """Stop the subscriptions; requests received before are still answered."""
        for subscription in self._subscriptions:
            await subscription.stop()

    async def release(self) -> None:
        """Deregister, if the name is held here; what cannot be deleted expires."""
        try:
            await self._registration.release()
        except BusError as error:
            self.log.warning("deregistration_failed", error=str(error))


def _found(entry: Entry | None) -> Found | None:
    if entry is None:
        return None
    message = entry.message
    if not isinstance(message, Registered):
        return Found(entry.revision, None)
    return Found(entry.revision, Owner(message.holder, message.incarnation))


class Holder:
    """A random token in a lock file: reading it with the lock held proves that its previous reader is dead.

    If the lock cannot be taken or created, the token is a new random one.
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
            if not try_flock(descriptor, attempts=_LOCK_ATTEMPTS, pause_s=_LOCK_PAUSE_S):
                os.close(descriptor)
                return None
            known = os.pread(descriptor, 64, 0)
            if len(known) != _TOKEN_BYTES:  # new, or truncated by a crash
                known = random_token().encode("ascii")
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, known, 0)
        except OSError:
            os.close(descriptor)
            return None
        self._descriptor = descriptor
        return known.decode("ascii", "replace")

    def release(self) -> None:
        """Release the lock; idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1
