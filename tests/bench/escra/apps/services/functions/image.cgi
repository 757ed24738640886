#!/usr/bin/python3 -IS
"""The function of the thesis' ImageProcess, started anew for every request (CGI).

Reads an image from the data base, processes its metadata, and for `process` makes a thumbnail and writes it back.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import socket
import sys
from urllib.parse import parse_qsl

sys.path.append("/usr/lib/python3/dist-packages")

from PIL import Image, ImageOps  # noqa: E402 - found through the line above


class Store:
    """As much of Redis' protocol as a short function needs: importing a client library would be most of its work."""

    def __init__(self) -> None:
        self._file = socket.create_connection(("store", 6379), timeout=20).makefile("rwb")

    def ask(self, *words: bytes) -> bytes:
        """One command; its answer, b"" for none."""
        self._file.write(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words))
        self._file.flush()
        line = self._file.readline()
        if line[:1] == b"-":
            raise OSError(line.decode())
        if line[:1] != b"$":
            return line[1:].strip()
        return self._file.read(int(line[1:]) + 2)[:-2] if int(line[1:]) >= 0 else b""


def metadata(image: Image.Image, content: bytes) -> dict[str, object]:
    """What a photo service keeps of an image."""
    return {"size": list(image.size), "mode": image.mode, "bytes": len(content), "sha1": hashlib.sha1(content).hexdigest()}


def main() -> None:
    """Answer one request."""
    order = dict(parse_qsl(os.environ["QUERY_STRING"]))
    store = Store()
    content = store.ask(b"GET", f"image:{order['image']}".encode())
    if not content:
        print("Status: 404 Not Found\r\nContent-Length: 0\r\n\r\n", end="")
        return
    image = Image.open(io.BytesIO(content))
    answer = {"image": int(order["image"]), **metadata(image, content)}
    if os.environ["SCRIPT_NAME"].endswith("process"):
        picture = ImageOps.autocontrast(image.convert("RGB"))
        answer["histogram"] = picture.convert("L").resize((64, 64)).histogram()[::32]
        picture.thumbnail((160, 160), Image.Resampling.LANCZOS)
        written = io.BytesIO()
        picture.save(written, "JPEG", quality=85)
        store.ask(b"SET", f"thumbnail:{order['image']}".encode(), written.getvalue(), b"EX", b"600")
        answer["thumbnail"] = list(picture.size)
    body = json.dumps(answer)
    print(f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}", end="")


main()
