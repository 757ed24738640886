"""`python -m tests.bench.escra.image.build`: the one image of all applications, without a registry.

debootstrap makes a root file system, apt in it adds Debian's servers, and the engine imports it. Needs root,
debootstrap and a Docker Engine, on a Debian whose apt reaches a mirror. An image that was made of the same list is left
as it is; the list's digest is in a label.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.bench.escra.image.packages import IMAGE, SUITE, prepare_script, set_up_script

KEY_LABEL = "turnbuckle.bench.image-key"
ROOT = Path("build/bench-image")
"""Below the project; removed once the engine has its copy."""


class ImageError(RuntimeError):
    """The image could not be made; the message says what to do."""


def wanted_key() -> str:
    """Digest of all that decides what the image holds; packages' versions are the mirror's of the day."""
    return hashlib.sha256(f"{SUITE}\n{prepare_script()}\n{set_up_script()}".encode()).hexdigest()


def is_current() -> bool:
    """Whether the engine has an image that was made of the present list."""
    inspect = ["docker", "image", "inspect", "--format", f'{{{{index .Config.Labels "{KEY_LABEL}"}}}}', IMAGE]
    answer = subprocess.run(inspect, capture_output=True, text=True, check=False)
    return answer.returncode == 0 and answer.stdout.strip() == wanted_key()


def ensure_image(*, again: bool = False) -> bool:
    """Build the image if the engine has none of the present list; whether it had to be built.

    Raises:
        ImageError: something that it needs is not there, or a step failed.
    """
    if is_current() and not again:
        return False
    _check_needs()
    try:
        _make_root(ROOT)
        _import(ROOT)
    finally:
        shutil.rmtree(ROOT, ignore_errors=True)
    return True


def _check_needs() -> None:
    if os.geteuid() != 0:
        raise ImageError("needs root: debootstrap makes a root file system")
    for command in ("debootstrap", "docker", "tar", "unshare"):
        if shutil.which(command) is None:
            raise ImageError(f"needs {command} (apt-get install debootstrap docker.io tar util-linux)")
    if subprocess.run(["docker", "version"], capture_output=True, check=False).returncode != 0:
        raise ImageError("no Docker Engine answers: start dockerd")


def _sources() -> list[str]:
    """Apt's lines of this host for the suite, its updates and its security updates."""
    listing = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(CODENAME) $(COMPONENT) $(REPO_URI)", "Created-By: Packages"],
        capture_output=True,
        text=True,
        check=True,
    )
    targets = [line.split() for line in listing.stdout.splitlines()]
    chosen = [(name, address) for name, component, address in targets if component == "main" and name.startswith(SUITE)]
    if not any(name == SUITE for name, _ in chosen):
        raise ImageError(f"this host's apt knows no Debian {SUITE}")
    return [f"deb {address} {name} main" for name, address in dict.fromkeys(chosen)]


def _make_root(root: Path) -> None:
    sources = _sources()
    mirror = next(line.split()[1] for line in sources if line.split()[2] == SUITE)
    shutil.rmtree(root, ignore_errors=True)
    root.parent.mkdir(parents=True, exist_ok=True)
    print(f"debootstrap {SUITE}", flush=True)
    _step(["debootstrap", "--variant=minbase", SUITE, str(root), mirror])
    (root / "etc/apt/sources.list").write_text("\n".join(sources) + "\n", encoding="utf-8")
    shutil.copyfile("/etc/resolv.conf", root / "etc/resolv.conf")
    print("installing the servers", flush=True)
    _inside(root, prepare_script())
    _inside(root, set_up_script())


def _inside(root: Path, script: str) -> None:
    """Run a shell script in the root, with a process tree and mounts of its own that vanish with it."""
    chroot = ["chroot", str(root), "/usr/bin/env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8", "sh"]
    isolated = ["unshare", "--mount", "--pid", "--fork", f"--mount-proc={root / 'proc'}"]
    _step([*isolated, *chroot, "-c", script])


def _step(command: Sequence[str]) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        raise ImageError(f"{command[0]} ended with {done.returncode}:\n" + "\n".join(done.stdout.splitlines()[-20:]))


def _import(root: Path) -> None:
    print(f"importing {IMAGE}", flush=True)
    changes = [f"LABEL {KEY_LABEL}={wanted_key()}", "ENV LC_ALL=C.UTF-8", "ENV PYTHONUNBUFFERED=1"]
    arguments = [part for change in changes for part in ("--change", change)]
    with subprocess.Popen(["tar", "--create", "--directory", str(root), "."], stdout=subprocess.PIPE) as tar:
        _import_from(tar, arguments)


def _import_from(tar: subprocess.Popen[bytes], arguments: Sequence[str]) -> None:
    done = subprocess.run(
        ["docker", "import", *arguments, "-", IMAGE], stdin=tar.stdout, capture_output=True, text=True, check=False
    )
    if tar.wait() != 0 or done.returncode != 0:
        raise ImageError(f"docker import failed: {done.stderr.strip()}")


def main() -> int:
    """Build unless there is nothing to do; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--again", action="store_true", help="build although the image is up to date")
    start_s = time.monotonic()
    try:
        built = ensure_image(again=parser.parse_args().again)
    except ImageError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{IMAGE}: {'built' if built else 'up to date'} ({time.monotonic() - start_s:.0f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
