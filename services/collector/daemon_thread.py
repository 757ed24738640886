"""Blocking work in daemon threads, which do not delay the interpreter's exit: a call to Google may hang."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

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
