"""One host's key floods the bus: a raw client of its own, as a process, since nats-py would slow it down.

``python -m tests.bench.flooder PORT SEED_FILE NODE KIND SECONDS``; prints how much it has sent.
"""

from __future__ import annotations

import base64
import json
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import nkeys
import numpy as np

from schemas.cfs import CfsBatch
from schemas.codec import encode
from schemas.oom import MemoryRequest
from schemas.subjects import CFS, MEMORY_REQUESTS, OOM_EVENTS, token

APP = "shop"
ROOT = "tb"
KINDS = ("garbage", "large", "requests", "facts", "batches")


def dial(port: int, seed: bytes) -> tuple[socket.socket, str]:
    """A connection that this key has opened, and its public key."""
    connection = socket.create_connection(("127.0.0.1", port))
    reader = connection.makefile("rb")
    nonce = json.loads(reader.readline()[5:])["nonce"]
    pair = nkeys.from_seed(bytearray(seed.strip()))
    public = pair.public_key.decode()
    options = {
        "verbose": False,
        "pedantic": False,
        "nkey": public,
        "sig": base64.urlsafe_b64encode(pair.sign(nonce.encode())).rstrip(b"=").decode(),
        "headers": True,
        "no_responders": True,
        "protocol": 1,
        "name": "flood",
    }
    connection.sendall(b"CONNECT " + json.dumps(options).encode() + b"\r\nPING\r\n")
    while not (line := reader.readline()).startswith(b"PONG"):
        if not line or line.startswith(b"-ERR"):
            raise OSError(line)
    return connection, public


def published(subject: str, data: bytes, reply: str = "") -> bytes:
    return f"PUB {subject} {reply + ' ' if reply else ''}{len(data)}\r\n".encode() + data + b"\r\n"


def blocks(kind: str, node: str, public: str) -> Iterator[tuple[bytes, int]]:
    """Bytes to write, and how many messages they are; without end."""
    observations = CFS.subject(ROOT, app=APP, node=node).text
    match kind:
        case "garbage":
            block = published(observations, b"\x80" * 200) * 500, 500
        case "large":
            block = published(observations, b"x" * 1_000_000), 1
        case "requests":
            request = MemoryRequest(
                app=APP, node=node, incarnation=1, container="x", wanted_bytes=1 << 20, usage_bytes=1, limit_bytes=1,
                tasks_blocked=True, time_ns=1,
            )  # fmt: skip
            subject = MEMORY_REQUESTS.subject(ROOT, app=APP, node=node).text
            block = published(subject, encode(request), f"_INBOX.{public}.r") * 200, 200
        case "facts":
            subject = OOM_EVENTS.subject(ROOT, app=APP, node=node).text
            block = published(subject, b"f" * 3_000, f"_INBOX.{public}.r") * 50, 50
        case _:
            yield from ((published(observations, each), 1) for each in _batches(node))
            return
    while True:
        yield block


def _batches(node: str) -> Iterator[bytes]:
    names = [f"x{number}-aaaaaaaaaaaa" for number in range(2_000)]
    columns = {name: np.zeros(len(names), dtype=kind) for name, kind in CfsBatch.column_types.items()}
    columns["quota_us"][:], columns["memory_limit_bytes"][:] = 1_000, 4 << 20
    incarnation, sequence = time.time_ns(), 0
    while True:
        sequence += 1
        batch = CfsBatch.build(
            names, columns, app=APP, node=node, incarnation=incarnation, report_seq=sequence, time_ns=time.time_ns(),
            period_us=100_000, host_cpus=64,
        )  # fmt: skip
        yield encode(batch)


def main() -> None:
    port, seed_file, node, kind, seconds = sys.argv[1:]
    connection, public = dial(int(port), Path(seed_file).read_bytes())
    connection.settimeout(float(seconds) + 5)
    sent, end_s = 0, time.monotonic() + float(seconds)
    try:
        for block, count in blocks(kind, token(node), public):
            if time.monotonic() > end_s:
                break
            connection.sendall(block)
            sent += count
    except OSError as error:
        print(f"cut off: {error}", flush=True)
    print(sent, flush=True)


if __name__ == "__main__":
    main()
