"""As much of a websocket client as it takes to log in at a NATS server (RFC 6455; a browser speaks the rest)."""

from __future__ import annotations

import asyncio
import base64
import json
import os

import nkeys


async def log_in(port: int, seed: bytes) -> str:
    """What the server says to CONNECT and PING: ``PONG``, or its error."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        key = base64.b64encode(os.urandom(16)).decode()
        writer.write(
            f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101"), head
        info = json.loads((await _frame(reader)).removeprefix(b"INFO "))
        pair = nkeys.from_seed(bytearray(seed.strip()))
        signature = base64.urlsafe_b64encode(pair.sign(info["nonce"].encode())).rstrip(b"=").decode()
        connect = {"nkey": pair.public_key.decode(), "sig": signature, "verbose": False, "protocol": 1, "lang": "test"}
        _send(writer, f"CONNECT {json.dumps(connect)}\r\nPING\r\n".encode())
        return (await _frame(reader)).decode().strip()
    finally:
        writer.close()


async def _frame(reader: asyncio.StreamReader) -> bytes:
    """The payload of the next frame."""
    async with asyncio.timeout(60):
        size = (await reader.readexactly(2))[1]
        if size >= 126:
            size = int.from_bytes(await reader.readexactly(2 if size == 126 else 8), "big")
        return await reader.readexactly(size)


def _send(writer: asyncio.StreamWriter, payload: bytes) -> None:
    """One binary frame, masked as a client's must be."""
    mask = os.urandom(4)
    masked = bytes(byte ^ mask[position % 4] for position, byte in enumerate(payload))
    writer.write(b"\x82" + bytes([0x80 | 126]) + len(payload).to_bytes(2, "big") + mask + masked)
