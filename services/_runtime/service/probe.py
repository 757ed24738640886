"""A container's health check: ``python -m services._runtime.service.probe [/livez]`` exits with 0 if healthy.

Reads TURNBUCKLE_HEALTH_HOST and TURNBUCKLE_HEALTH_PORT as the service does. It runs every few seconds, so it uses a
plain socket: importing http.client costs 40 of 60 ms of processor time.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from typing import Final, TextIO

_TIMEOUT_S: Final = 3.0
_MAX_RESPONSE_BYTES: Final = 20_000
_ANY: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - wildcard addresses are replaced


def probe(arguments: list[str], environ: Mapping[str, str], out: TextIO) -> int:
    """Exit code: 0 healthy, 1 not healthy, 78 no port is set."""
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
    """The response, headers included, until the connection closes (HTTP/1.0)."""
    answer = b""
    with socket.create_connection((host, port), timeout=_TIMEOUT_S) as connection:
        connection.sendall(f"GET {path} HTTP/1.0\r\nHost: {host}\r\n\r\n".encode())
        while len(answer) < _MAX_RESPONSE_BYTES and (part := connection.recv(4096)):
            answer += part
    return answer


if __name__ == "__main__":
    sys.exit(probe(sys.argv[1:], os.environ, sys.stdout))
