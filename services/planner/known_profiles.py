"""Layer profiles from the bus, of so many bytes at most."""

from __future__ import annotations

from collections.abc import Iterable

from schemas.layers import LayerProfile


class KnownProfiles:
    """The newest of each digest; where they are too many, those that came first are forgotten."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._stored_bytes = 0
        self._profiles: dict[str, tuple[LayerProfile, int]] = {}
        """By digest, with the size of the message."""

    def __len__(self) -> int:
        return len(self._profiles)

    def add(self, profile: LayerProfile, size_bytes: int) -> None:
        """Take one over, unless one of its digest is known that was measured later."""
        before = self._profiles.pop(profile.profile, None)
        if before is not None and before[0].measured_ns > profile.measured_ns:
            profile, size_bytes = before
        self._stored_bytes += size_bytes - (0 if before is None else before[1])
        self._profiles[profile.profile] = profile, size_bytes
        while self._stored_bytes > self._max_bytes:
            first = next(iter(self._profiles))
            self._stored_bytes -= self._profiles.pop(first)[1]

    def of(self, name: str, kinds: Iterable[str]) -> tuple[LayerProfile, ...]:
        """The newest profile of each of these kinds of devices, as far as there is one.

        All are of the model of the newest profile that has this name: as its task, its model or its own digest.
        """
        profiles = [profile for profile, _ in self._profiles.values()]
        named = [profile for profile in profiles if name in {profile.task, profile.model, profile.profile}]
        if not named:
            return ()
        model = max(named, key=_age)
        same = [profile for profile in profiles if (profile.model, profile.dtype) == (model.model, model.dtype)]
        newest = {profile.kind: profile for profile in sorted(same, key=_age)}
        return tuple(newest[kind] for kind in dict.fromkeys(kinds) if kind in newest)


def _age(profile: LayerProfile) -> tuple[int, str]:
    """Ties go by the digest, so that replicas decide alike."""
    return profile.measured_ns, profile.profile
