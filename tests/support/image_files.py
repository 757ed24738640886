"""What is in an image: every file of every layer, and whether any holds a secret."""

from __future__ import annotations

import json
import re
import subprocess
import tarfile
from collections.abc import Iterator
from typing import IO

_SECRET = re.compile(
    rb"-----BEGIN (?:[A-Z]+ )?PRIVATE KEY-----\s+[A-Za-z0-9+/]{40}|-----BEGIN NATS|\bS[UAOCNX][A-Z2-7]{56}\b"
    rb"|\bAKIA[0-9A-Z]{16}\b|index-url *=|https?://[^/\s:@\"']+:[^/\s:@\"']+@"
)
"""Keys in PEM, NATS seeds and credentials, cloud keys, addresses of package indexes, addresses with a password."""
SECRET_NAME = re.compile(r"(?:^|/)(?:\.git|\.env|\.netrc|pip\.conf|id_[a-z0-9]+|.*\.(?:creds|nk|key|p12))$")
_SECRET_VARIABLE = re.compile(r"PASS|TOKEN|SECRET|SEED|CREDENTIAL|INDEX_URL|PROXY")
_PUBLISHED = re.compile(
    r"usr/(?!local/)|opt/turnbuckle/lib/python3[^/]*/site-packages/"
    r"(?!services/|schemas/|[^/]+\.dist-info/(?:direct_url|INSTALLER|RECORD))"
)
"""Debian's and libraries' own files, as everybody gets them: examples in them hold made-up keys."""


def secrets_in_image(image: str, scanned: set[str]) -> list[str]:
    """What looks like a secret in layers, history and settings of an image; layers in `scanned` were read before."""
    [about] = json.loads(subprocess.run(["docker", "image", "inspect", image], capture_output=True, check=True).stdout)
    history = subprocess.run(["docker", "history", "--no-trunc", image], capture_output=True, check=True).stdout
    names = [variable.partition("=")[0] for variable in about["Config"]["Env"] or []]
    found = [f"variable {name}" for name in names if _SECRET_VARIABLE.search(name)]
    for place, told in (("history", history), ("inspect", json.dumps(about).encode())):
        found += [f"{place}: {secret[0]!r}" for secret in _SECRET.finditer(told)]
    for layer, name, file in files_of_image(image, scanned):
        if SECRET_NAME.search(name):
            found.append(f"{layer}: {name}")
        elif not _PUBLISHED.match(name) and (secret := _SECRET.search(file.read())):
            found.append(f"{layer}: {name}: {secret[0]!r}")
    return [f"{image}: {each}" for each in found]


def files_of_image(image: str, scanned: set[str] | None = None) -> Iterator[tuple[str, str, IO[bytes]]]:
    """Layer, name and content of every regular file of an image; layers in `scanned` are left out, the others noted."""
    with subprocess.Popen(["docker", "save", image], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        with tarfile.open(fileobj=process.stdout, mode="r|") as archive:
            for member in archive:
                if not member.name.endswith("layer.tar") or (scanned is not None and member.name in scanned):
                    continue
                if scanned is not None:
                    scanned.add(member.name)
                with tarfile.open(fileobj=archive.extractfile(member), mode="r|") as layer:
                    for file in layer:
                        if file.isfile() and (content := layer.extractfile(file)) is not None:
                            yield member.name, file.name.removeprefix("./"), content
        # What follows the archive's end, or `docker save` cannot write it and fails.
        while process.stdout.read(1 << 20):
            pass
    assert process.returncode == 0
