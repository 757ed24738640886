"""What a message says of its host, application or job has to be what its subject says: a server permits by subject."""

from __future__ import annotations

from typing import Final

import pytest

from schemas.codec import CodecError, encode
from schemas.message import Message
from schemas.permissions import NODE_ROLES, Identity, allowed, grants
from schemas.registry import CHANNELS, contradicted_id
from schemas.roles import Role
from schemas.service import Channel
from scripts.asyncapi import examples
from services._runtime.bus.dispatch import decode_from

SHOWN: Final = {type(message): message for message in examples.EXAMPLES}
WITH_IDS: Final = [channel for channel in CHANNELS if channel.template.parameters]
HOST_SERVICES: Final = {role.value for role in NODE_ROLES} - {"fast_path"}
BOUND: Final = ("node", "app", "job")
"""Fields by which a message names whom it is about."""


def ids_of(channel: Channel, message: Message) -> dict[str, str]:
    return {name: str(getattr(message, name, "some")) for name in channel.template.parameters}


@pytest.mark.parametrize("channel", WITH_IDS, ids=lambda channel: channel.template.text)
def test_a_message_that_contradicts_its_subject_is_not_read(channel: Channel) -> None:
    message = SHOWN[channel.message]
    ids = ids_of(channel, message)
    assert contradicted_id(channel.template.subject("tb", **ids).text, message) is None
    for name in channel.template.parameters:
        if not isinstance(getattr(message, name, None), str):
            continue
        subject = channel.template.subject("tb", **ids | {name: "other.one"}).text
        assert contradicted_id(subject, message) == name
        with pytest.raises(CodecError, match="subject_mismatch"):
            decode_from(subject, encode(message))


def from_hosts() -> list[Channel]:
    return [channel for channel in CHANNELS if HOST_SERVICES & set(channel.senders)]


@pytest.mark.parametrize("channel", from_hosts(), ids=lambda channel: channel.template.text)
def test_whom_a_host_s_message_names_its_subject_names_too(channel: Channel) -> None:
    """Else one host's key speaks for every host: it could ask for memory in another's name."""
    named = [name for name in BOUND if name in channel.message.model_fields]
    sent_by_hosts_only = set(channel.senders) <= HOST_SERVICES

    assert "node" in channel.template.parameters
    assert set(named) <= set(channel.template.parameters)
    for role in Role:
        if role in NODE_ROLES and role.value in channel.senders:
            ids = dict.fromkeys(channel.template.parameters, "x")
            patterns = grants(Identity(role, "gpu-01", "inbox"), "tb").publish
            assert allowed(patterns, channel.template.subject("tb", **ids | {"node": "gpu-01"}).text)
            assert not allowed(patterns, channel.template.subject("tb", **ids | {"node": "gpu-02"}).text)
    assert sent_by_hosts_only or channel.message.model_fields.keys() >= {"node"}
