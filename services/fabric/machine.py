"""The host itself: reads, makes and removes resources. The one place where `fabric` touches the kernel."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import subprocess
from dataclasses import replace
from functools import singledispatchmethod
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from services._host.netns import inside, netns_path
from services._runtime.atomic_file import replacing
from services.fabric import daemons
from services.fabric.access import access_of
from services.fabric.links import LinkResource, Links
from services.fabric.nic import Nics
from services.fabric.resources import (
    PRESENT,
    Daemon,
    Directory,
    Feature,
    MovedFunction,
    Namespace,
    Representor,
    Resource,
    SwitchMode,
    Sysctl,
    TextFile,
    VirtualFunctions,
)

SYSCTL_ROOT: Final = Path("/proc/sys")


def running_loop() -> bool:
    """Whether the calling thread runs an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class Machine:
    """Sockets are opened when first needed, one per network namespace.

    Use it as a context manager, in a thread that runs no event loop.
    """

    def __init__(self, nics: Nics) -> None:
        self.nics = nics
        self._links: dict[str | None, Links] = {}

    def __enter__(self) -> Self:
        """See that pyroute2, which runs a loop for each request, can do so here."""
        if running_loop():
            raise RuntimeError("not in a thread that runs an event loop: await asyncio.to_thread(...)")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close every socket."""
        for links in self._links.values():
            links.close()
        self._links.clear()

    def links(self, netns: str | None) -> Links:
        """The devices of a namespace.

        Raises:
            OSError: there is no such namespace, or no right to enter it.
        """
        if netns not in self._links:
            self._links[netns] = Links(netns)
        return self._links[netns]

    def _links_if_there(self, netns: str | None) -> Links | None:
        if netns is not None and not netns_path(netns).exists():
            self._forget(netns)
            return None
        return self.links(netns)

    def _forget(self, netns: str) -> None:
        if links := self._links.pop(netns, None):
            links.close()

    def restore(self, resource: Resource, before: str | None) -> None:
        """Undo: remove what was absent, give the earlier value to what was there.

        Raises:
            OSError: the kernel refuses.
        """
        if before is None:
            self.remove(resource)
        else:
            self.write(replace(resource, value=before))

    # -- reading -------------------------------------------------------------------------------------------------

    @singledispatchmethod
    def read(self, resource: Resource) -> str | None:
        """A resource's value; None if it is absent.

        Raises:
            OSError: no right to look.
        """
        raise TypeError(f"cannot read {resource!r}")

    @read.register
    def _read_link(self, resource: LinkResource) -> str | None:
        links = self._links_if_there(resource.netns)
        return links.read(resource) if links else None

    @read.register
    def _read_namespace(self, resource: Namespace) -> str | None:
        return PRESENT if netns_path(resource.name).exists() else None

    @read.register
    def _read_sysctl(self, resource: Sysctl) -> str | None:
        try:
            with inside(resource.netns):
                return (SYSCTL_ROOT / resource.name).read_text(encoding="ascii").strip()
        except FileNotFoundError:
            return None

    @read.register
    def _read_directory(self, resource: Directory) -> str | None:
        path = Path(resource.path)
        if not path.is_dir():
            return None
        return PRESENT if resource.value == PRESENT else access_of(path)

    @read.register
    def _read_file(self, resource: TextFile) -> str | None:
        try:
            return Path(resource.path).read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError):
            return None

    @read.register
    def _read_daemon(self, resource: Daemon) -> str | None:
        return daemons.digest_of(resource)

    @read.register
    def _read_mode(self, resource: SwitchMode) -> str | None:
        return self.nics.switch_mode(resource.nic)

    @read.register
    def _read_functions(self, resource: VirtualFunctions) -> str | None:
        count = self.nics.function_count(resource.nic)
        return resource.value if count >= int(resource.value) else (str(count) if count else None)

    @read.register
    def _read_representor(self, resource: Representor) -> str | None:
        return self.nics.representor(resource.nic, resource.number)

    @read.register
    def _read_feature(self, resource: Feature) -> str | None:
        return self.nics.feature(resource.device, resource.feature)

    # -- writing -------------------------------------------------------------------------------------------------

    @singledispatchmethod
    def write(self, resource: Resource) -> None:
        """Give a resource its value.

        Raises:
            OSError: the kernel refuses.
        """
        raise TypeError(f"cannot write {resource!r}")

    @write.register
    def _write_link(self, resource: LinkResource) -> None:
        self.links(resource.netns).write(resource)

    @write.register
    def _write_namespace(self, resource: Namespace) -> None:
        _run("ip", "netns", "add", resource.name)

    @write.register
    def _write_sysctl(self, resource: Sysctl) -> None:
        with inside(resource.netns):
            (SYSCTL_ROOT / resource.name).write_text(resource.value, encoding="ascii")

    @write.register
    def _write_directory(self, resource: Directory) -> None:
        path, (mode, owner, group) = Path(resource.path), resource.access
        path.mkdir(mode=mode, exist_ok=True)
        path.chmod(mode)
        shutil.chown(path, _name_or_id(owner), _name_or_id(group))

    @write.register
    def _write_file(self, resource: TextFile) -> None:
        path = Path(resource.path)
        with replacing(path) as draft:
            draft.write_text(resource.value, encoding="utf-8")
            draft.chmod(resource.mode)
            shutil.chown(draft, resource.owner, resource.owner)

    @write.register
    def _write_daemon(self, resource: Daemon) -> None:
        daemons.start(resource)

    @write.register
    def _write_mode(self, resource: SwitchMode) -> None:
        self.nics.set_switch_mode(resource.nic, resource.value)

    @write.register
    def _write_functions(self, resource: VirtualFunctions) -> None:
        self.nics.set_function_count(resource.nic, int(resource.value))

    @write.register
    def _write_representor(self, resource: Representor) -> None:
        if name := self.nics.representor(resource.nic, resource.number):
            self.links(None).rename(name, resource.value)
            return
        raise OSError(errno.ENODEV, f"{resource.nic} shows no representor of virtual function {resource.number}")

    @write.register
    def _write_feature(self, resource: Feature) -> None:
        self.nics.set_feature(resource.device, resource.feature, resource.value)

    @write.register
    def _write_function(self, resource: MovedFunction) -> None:
        name = self.nics.function_device(resource.nic, resource.number)
        if name is None:
            what = f"virtual function {resource.number} of {resource.nic} has no device here: is its driver loaded?"
            raise OSError(errno.ENODEV, what)
        self.links(None).move(name, netns_path(resource.netns), resource.device)

    # -- removing ------------------------------------------------------------------------------------------------

    @singledispatchmethod
    def remove(self, resource: Resource) -> None:
        """Make a resource absent; it may be so already. What has no absence (an attribute) is left.

        Raises:
            OSError: the kernel refuses.
        """

    @remove.register
    def _remove_link(self, resource: LinkResource) -> None:
        if links := self._links_if_there(resource.netns):
            links.remove(resource)

    @remove.register
    def _remove_namespace(self, resource: Namespace) -> None:
        self._forget(resource.name)
        if netns_path(resource.name).exists():
            _run("ip", "netns", "del", resource.name)

    @remove.register
    def _remove_directory(self, resource: Directory) -> None:
        path = Path(resource.path)
        if resource.volatile and path.is_dir():
            shutil.rmtree(path)
        elif path.is_dir() and not any(path.iterdir()):
            path.rmdir()

    @remove.register
    def _remove_file(self, resource: TextFile) -> None:
        Path(resource.path).unlink(missing_ok=True)

    @remove.register
    def _remove_daemon(self, resource: Daemon) -> None:
        daemons.stop(resource)

    @remove.register
    def _remove_functions(self, resource: VirtualFunctions) -> None:
        if self.nics.function_count(resource.nic):
            self.nics.set_function_count(resource.nic, 0)


def _name_or_id(text: str) -> str | int:
    return int(text) if text.isdigit() else text


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)  # noqa: S603 - fixed words and a checked name
    if done.returncode:
        raise OSError(os.EX_OSERR, done.stderr.strip() or f"{' '.join(command)} ended with {done.returncode}")
