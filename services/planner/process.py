"""Planning process: ``python -m services.planner.process PARENT`` answers requests on its standard input, one by one.

A request is a number of messages in four bytes (big endian), then each message after its length in four bytes: a
`PlanRequest`, and the layer profiles that it is planned with. The answer is one message after its length, a
`PlanReply`. It is a process of its own because nothing ends a thread: the parent kills it where it takes too long
(`services.planner.planning`). It ends with its input, and is killed when its parent dies.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Sequence
from typing import BinaryIO, Final

from schemas.codec import CodecError, decode_as, encode
from schemas.layers import LayerProfile
from schemas.message import Message
from schemas.plans import PlanReply, PlanRequest
from services._runtime.child_process import die_with_parent
from services._runtime.exit_code import ExitCode
from services.planner.core.choose import plan
from services.planner.core.inputs import MissingProfileError, UnusableInputError

LENGTH_BYTES: Final = 4


def pack(messages: Sequence[Message]) -> bytes:
    """A request as the process reads it.

    Raises:
        CodecError: a message is too large.
    """
    parts = [len(messages).to_bytes(LENGTH_BYTES, "big")]
    for message in messages:
        parts += framed(message)
    return b"".join(parts)


def framed(message: Message) -> tuple[bytes, bytes]:
    """Length and content.

    Raises:
        CodecError: it is too large.
    """
    data = encode(message)
    return len(data).to_bytes(LENGTH_BYTES, "big"), data


def answer(request: PlanRequest, profiles: Sequence[LayerProfile]) -> PlanReply:
    """The plan, or why there is none, in a sentence."""
    try:
        return plan(request, profiles)
    except MissingProfileError as error:
        return PlanReply(refused=str(error), missing_profiles=error.kinds)
    except UnusableInputError as error:
        return PlanReply(refused=str(error))
    except (ArithmeticError, ValueError) as error:  # such as times near the largest number
        return PlanReply(refused=f"nothing can be planned with these figures ({type(error).__name__})")


def answers(stream: BinaryIO) -> Iterator[tuple[bytes, bytes]]:
    """An answer to each request, until the stream ends."""
    while head := stream.read(LENGTH_BYTES):
        first, *others = [_read(stream) for _ in range(int.from_bytes(head, "big"))]
        request = decode_as(first, PlanRequest)
        reply = answer(request, [decode_as(data, LayerProfile) for data in others])
        try:
            yield framed(reply)
        except CodecError as error:  # a pipeline of thousands of parts
            yield framed(PlanReply(refused=f"the plan cannot be sent: {error}"))


def _read(stream: BinaryIO) -> bytes:
    return stream.read(int.from_bytes(stream.read(LENGTH_BYTES), "big"))


def main() -> int:
    """Run as a process; returns the exit code."""
    if not die_with_parent(signal.SIGKILL, int(sys.argv[1])):
        return ExitCode.INTERNAL
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is the parent's, which ends this one
    for length, data in answers(sys.stdin.buffer):
        sys.stdout.buffer.write(length + data)
        sys.stdout.buffer.flush()
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main())
