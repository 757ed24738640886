"""Health check of a container: ``python -m services._runtime.probe [/livez]`` ends with 0 where the service is well.

Reads TURNBUCKLE_HEALTH_HOST and TURNBUCKLE_HEALTH_PORT, as the service beside it does. Standard library only: it runs
every few seconds.
"""

from __future__ import annotations

import http.client
import os
import sys
from collections.abc import Mapping
from typing import Final, TextIO

_TIMEOUT_S: Final = 3.0
_ANY: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - what a server listens on is not where to ask


def probe(arguments: list[str], environ: Mapping[str, str], out: TextIO) -> int:
    """0: well; 1: not; 78: there is nothing to ask."""
    path = arguments[0] if arguments else "/readyz"
    host = environ.get("TURNBUCKLE_HEALTH_HOST") or "127.0.0.1"
    port = environ.get("TURNBUCKLE_HEALTH_PORT") or ""
    if not port.isdigit() or not 0 < int(port) < 1 << 16:
        print("set TURNBUCKLE_HEALTH_PORT to the port that the service listens on", file=out)
        return 78
    connection = http.client.HTTPConnection(_ANY.get(host, host), int(port), timeout=_TIMEOUT_S)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        body = response.read(10_000).decode("utf-8", "replace").strip()
    except (OSError, http.client.HTTPException) as error:
        print(f"{host}:{port}{path}: {type(error).__name__}: {error}", file=out)
        return 1
    finally:
        connection.close()
    print(body, file=out)
    return 0 if response.status == http.client.OK else 1


if __name__ == "__main__":
    sys.exit(probe(sys.argv[1:], os.environ, sys.stdout))
