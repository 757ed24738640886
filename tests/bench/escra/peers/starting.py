"""Which part of a profile a container starts from."""

from __future__ import annotations

import re
from typing import Final

from tests.bench.escra.profile import ContainerProfile, Profile

UNKNOWN: Final = ContainerProfile((), ())
"""The profile knows nothing like it: a peer begins with what the container was given when it joined."""


def profile_of(profile: Profile, name: str) -> ContainerProfile:
    """The container's own profile; of short-lived ones (``worker-17``) that of the one of its kind that used most."""
    if name in profile.containers:
        return profile.containers[name]
    kin = [one for other, one in profile.containers.items() if _kind(other) == _kind(name)]
    return max(kin, key=lambda one: one.max_second_used_us, default=UNKNOWN)


def _kind(name: str) -> str:
    return re.sub(r"[-_.]?\d+$", "", name)
