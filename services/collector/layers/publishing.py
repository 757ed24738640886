"""A measured layer profile on the bus, where the planner finds it."""

from __future__ import annotations

from typing import Final

from schemas.codec import CodecError
from schemas.layers import LayerProfile
from schemas.subjects import LAYER_PROFILES
from services._runtime.bus.api import Bus, BusError, BusSettingsError
from services._runtime.command.errors import BadFileError, UnavailableError
from services.collector.settings import CollectorSettings
from services.collector.tool import BadDataError, bus_of_tool

_PUBLISH_S: Final = 10.0


async def publish_profile(profile: LayerProfile) -> None:
    """Connect, and return once it is stored.

    Raises:
        UnavailableError: no server, or it does not acknowledge in time.
        BadFileError: the settings do not fit the server.
        BadDataError: the profile is too large for a message.
        SettingsError: the settings are invalid.
    """
    try:
        async with bus_of_tool(CollectorSettings.load()) as bus:
            await publish_on(bus, profile)
    except CodecError as error:
        raise BadDataError(f"not published: {error}; a smaller --batch-up-to makes it smaller") from error
    except BusError as error:
        kind = BadFileError if isinstance(error, BusSettingsError) else UnavailableError
        raise kind(f"not published: {error}") from error


async def publish_on(bus: Bus, profile: LayerProfile) -> None:
    """Return once it is stored.

    Raises:
        CodecError: the profile is too large for a message.
        BusError: it is not acknowledged in time.
    """
    subject = LAYER_PROFILES.subject(bus.root, profile=profile.profile)
    bus.publish_event(subject, profile, message_id=f"layers-{profile.profile}-{profile.measured_ns}")
    await bus.flush(_PUBLISH_S)
