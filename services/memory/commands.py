"""`turnbuckle swap attach|status|detach`: a disk as swap whose busy parts are mirrored to memory of other hosts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYetError
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.markup import escape
from rich.table import Table

from services._runtime.command.errors import CommandError, UnavailableError, UsageError
from services._runtime.command.output import format_size, print_json, print_note, stdout_console
from services.memory.host_check import MODULES, PACKAGES, check_swap, unused_disks

if TYPE_CHECKING:
    from services.memory.swap_devices import SwapDevices

__all__ = ["app", "check_swap"]
EXAMPLES: Final = """
Examples:

  turnbuckle swap attach /dev/vdb            (as root; refused where blkid finds anything on it)

  turnbuckle swap attach /dev/vdb --size 64GiB --slab-size 512MiB

  turnbuckle swap status --json | jq '.devices[].slabs[] | select(.state == "remote")'

  turnbuckle swap detach                     (reads every page back first)
"""
DEFAULT_NAME: Final = "swap"
_LOCK_WITHIN_S: Final = 60.0
_PROGRESS_S: Final = 5.0

app = typer.Typer(
    help="A disk as swap, whose busy parts are mirrored to free memory of other hosts.",
    epilog=EXAMPLES,
    no_args_is_help=True,
    rich_markup_mode="rich",
)


def _complete_disks(incomplete: str) -> list[str]:
    return [disk for disk, _ in unused_disks() if disk.startswith(incomplete)]


def _complete_names(incomplete: str) -> list[str]:
    return [name for name in _devices().names() if name.startswith(incomplete)]


NameArgument = Annotated[
    str, typer.Argument(help="Name of the swap device.", metavar="[NAME]", autocompletion=_complete_names)
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command("attach", epilog=EXAMPLES)
def attach_command(  # noqa: PLR0913 - a command's options are its parameters
    disk: Annotated[
        str, typer.Argument(help="Block device: a whole disk or a partition.", autocompletion=_complete_disks)
    ],
    *,
    size: Annotated[
        str | None, typer.Option("--size", help="Swap, such as 64GiB; default: as much as the disk has room for.")
    ] = None,
    slab_size: Annotated[
        str | None,
        typer.Option(
            "--slab-size", help="What goes to another host in one piece: 1MiB to 16GiB; default: by the size."
        ),
    ] = None,
    name: Annotated[str, typer.Option("--name", help="Small letters and digits, where there are several.")] = "swap",
    force: Annotated[
        bool, typer.Option("--force", help="Also where the disk holds something, which is lost. Never one in use.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Swap to DISK. Its busy parts are mirrored to other hosts once `turnbuckle run memory` runs here.

    Needs root. The kernel prefers it to other swap areas. It ends with the next boot: attach it again then.
    """
    from services.memory.adapters.disk import BlockDisk  # noqa: PLC0415 - quick --help
    from services.memory.adapters.programs import run  # noqa: PLC0415
    from services.memory.core.block_path import usual_slab_bytes  # noqa: PLC0415

    size_bytes, slab_bytes = _size(size, "--size"), _size(slab_size, "--slab-size")
    with _explained("attach"):
        room_bytes = size_bytes or BlockDisk().size_bytes(disk)
        slab_bytes = slab_bytes or usual_slab_bytes(room_bytes)
        run(["modprobe", "--all", *MODULES])
        print_note(f"cutting {disk} into slabs of {format_size(slab_bytes)}")
        with _devices().locked(name, _LOCK_WITHIN_S) as device:
            record = device.attach(disk, slab_bytes, size_bytes=size_bytes, overwrite=force)
    layout = record.layout
    made = {
        "name": name,
        "disk": disk,
        "size_bytes": layout.slabs * layout.slab_bytes,
        "slab_bytes": layout.slab_bytes,
        "slabs": layout.slabs,
        "service_runs": _devices().service_runs,
    }
    if as_json:
        print_json(made)
    else:
        stdout_console().print(
            f"{escape(name)}: {format_size(layout.slabs * layout.slab_bytes)} on {escape(disk)}, {layout.slabs} slabs"
        )
    if made["service_runs"] is False:
        print_note("all of it is on the disk until `turnbuckle run memory` runs here")


@app.command("detach", epilog=EXAMPLES)
def detach_command(name: NameArgument = DEFAULT_NAME, *, as_json: JsonOption = False) -> None:
    """Read every page back into memory, and undo all that `attach` has made. Needs root.

    Also what a killed `attach` or `detach` has left. Fails where memory is short for the pages: free some, and again.
    """
    with _explained("detach"), _devices().locked(name, _LOCK_WITHIN_S) as device:
        before = device.record is not None
        with ThreadPoolExecutor(1, "detach") as pool:
            detaching = pool.submit(device.detach)
            while True:
                try:
                    detaching.result(_PROGRESS_S)
                except NotYetError:
                    print_note(f"{format_size(_used_bytes(name) or 0)} are to be read back")
                else:
                    break
    if as_json:
        print_json({"name": name, "detached": before})
    else:
        stdout_console().print(f"{escape(name)} is detached" if before else f"no swap device {escape(name)} was there")


@app.command("status", epilog=EXAMPLES)
def status_command(*, as_json: JsonOption = False) -> None:
    """Show this host's swap devices: where each slab is, what it has moved, and why it left remote memory."""
    devices = _devices()
    with _explained("status"):
        found = [each for name in devices.names() if (each := _status(devices, name)) is not None]
    if as_json:
        print_json({"service_runs": devices.service_runs, "devices": found})
        return
    for device in found:
        _print(device)
    if not found:
        print_note("no swap device is attached: turnbuckle swap attach DISK")
    elif devices.service_runs is False:
        print_note("nothing maps slabs to other hosts: turnbuckle run memory")


def _devices() -> SwapDevices:
    from services.memory.settings import STATE_DIRECTORY, MemorySettings  # noqa: PLC0415 - quick --help
    from services.memory.swap_devices import SwapDevices  # noqa: PLC0415

    given = os.environ.get(MemorySettings.variable("state_directory"))
    return SwapDevices(Path(given) if given else STATE_DIRECTORY)


def _status(devices: SwapDevices, name: str) -> dict[str, Any] | None:
    """None: a journal of another boot."""
    record = devices.record(name)
    if record is None:
        return None
    slabs = [
        {
            "number": slab.number,
            "state": slab.state.value,
            "daemon": slab.daemon,
            "attempts": slab.attempt,
            "pages": _pages(name, slab.number),
            "reason": slab.reason,
        }
        for slab in record.slabs
    ]
    return {
        "name": name,
        "disk": record.layout.disk,
        "attached": record.attached,
        "size_bytes": record.layout.slabs * record.layout.slab_bytes,
        "used_bytes": _used_bytes(name),
        "slab_bytes": record.layout.slab_bytes,
        "slabs": slabs,
    }


def _pages(name: str, number: int) -> int | None:
    from services.memory.adapters.device_mapper import path_of  # noqa: PLC0415
    from services.memory.adapters.page_io import pages_moved  # noqa: PLC0415

    try:
        return pages_moved(path_of(f"{name}-{number}"))
    except OSError:
        return None


def _used_bytes(name: str) -> int | None:
    from services.memory.adapters.device_mapper import path_of  # noqa: PLC0415
    from services.memory.adapters.swap import used_bytes  # noqa: PLC0415

    return used_bytes(path_of(name))


def _print(device: dict[str, Any]) -> None:
    console, used_bytes = stdout_console(), device["used_bytes"]
    used = f"{format_size(used_bytes)} in use" if used_bytes is not None else "the kernel does not swap to it"
    head = f"{device['name']}: {format_size(device['size_bytes'])} on {device['disk']}, {used}"
    remote = sum(slab["state"] == "remote" for slab in device["slabs"])
    console.print(escape(f"{head}; {remote} of {len(device['slabs'])} slabs in remote memory"), style="bold")
    if not device["attached"]:
        console.print(f"  half made or half undone: turnbuckle swap detach {escape(device['name'])}", style="red")
    table = Table(box=None, pad_edge=False)
    for column in ("slab", "state", "daemon", "attempts", "pages", "last left because"):
        table.add_column(column, no_wrap=column != "last left because")
    for slab in device["slabs"]:
        pages = "" if slab["pages"] is None else str(slab["pages"])
        cells = (slab["number"], slab["state"], slab["daemon"], slab["attempts"], pages, slab["reason"])
        table.add_row(*(escape(str(cell)) for cell in cells))
    console.print(table)


def _size(text: str | None, option: str) -> int | None:
    from schemas.sizes import parse_size  # noqa: PLC0415

    if text is None:
        return None
    try:
        size_bytes = parse_size(text)
    except ValueError as error:
        raise UsageError(f"{option} {text}: {error}") from error
    if size_bytes <= 0:
        raise UsageError(f"{option} {text}: has to be more than 0")
    return size_bytes


@contextmanager
def _explained(command: str) -> Iterator[None]:
    """Errors as sentences that say what to do.

    Raises:
        CommandError: whatever of ours was raised inside.
    """
    from services.memory.adapters.nbd_device import NbdDeviceError  # noqa: PLC0415
    from services.memory.adapters.programs import ProgramError  # noqa: PLC0415
    from services.memory.core.block_path import LayoutError  # noqa: PLC0415
    from services.memory.journal import JournalError  # noqa: PLC0415
    from services.memory.mapper import SwapDeviceError  # noqa: PLC0415
    from services.memory.swap_devices import DeviceBusyError  # noqa: PLC0415

    if command != "status" and os.geteuid() != 0:
        raise CommandError(f"only root may do that: sudo turnbuckle swap {command}")
    try:
        yield
    except (SwapDeviceError, LayoutError, JournalError) as error:
        raise CommandError(str(error)) from error
    except DeviceBusyError as error:
        raise UnavailableError(f"{error} for {_LOCK_WITHIN_S:g} s already: try again") from error
    except NbdDeviceError as error:
        raise UnavailableError(str(error)) from error
    except ProgramError as error:
        hint = f": {PACKAGES}" if "is not installed" in str(error) else " (turnbuckle doctor says what is missing)"
        raise UnavailableError(f"{error}{hint}") from error
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise CommandError(f"{where}{error.strerror or error}") from error
