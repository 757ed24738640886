"""A container's health check: ``python -m services._runtime.service.probe [/livez]`` ends with 0 where all is well.

Reads TURNBUCKLE_HEALTH_HOST and TURNBUCKLE_HEALTH_PORT, as the service beside it does. It runs every few seconds, so it
speaks HTTP by itself: http.client alone costs 40 of 60 ms of processor time.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from typing import Final, TextIO

_TIMEOUT_S: Final = 3.0
_LONGEST_ANSWER_BYTES: Final = 20_000
_ANY: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - what a server listens on is not where to ask


def probe(arguments: list[str], environ: Mapping[str, str], out: TextIO) -> int:
    """0: well; 1: not; 78: there is nothing to ask."""
    path = arguments[0] if arguments else "/readyz"
    host = environ.get("TURNBUCKLE_HEALTH_HOST") or "127.0.0.1"
    port = environ.get("TURNBUCKLE_HEALTH_PORT") or ""
    if not port.isdigit() or not 0 < int(port) < 1 << 16:
        print("set TURNBUCKLE_HEALTH_PORT to the port that the service listens on", file=out)
        return 78
    try:
        answer = _get(_ANY.get(host, host), int(port), path)
    except OSError as error:
        print(f"{host}:{port}{path}: {type(error).__name__}: {error}", file=out)
        return 1
    head, _, body = answer.partition(b"\r\n\r\n")
    print(body.decode("utf-8", "replace").strip(), file=out)
    return 0 if head.split(b" ", 2)[1:2] == [b"200"] else 1


def _get(host: str, port: int, path: str) -> bytes:
    """Head and body; HTTP/1.0 ends with the connection."""
    answer = b""
    with socket.create_connection((host, port), timeout=_TIMEOUT_S) as connection:
        connection.sendall(f"GET {path} HTTP/1.0\r\nHost: {host}\r\n\r\n".encode())
        while len(answer) < _LONGEST_ANSWER_BYTES and (part := connection.recv(4096)):
            answer += part
    return answer


if __name__ == "__main__":
    sys.exit(probe(sys.argv[1:], os.environ, sys.stdout))
