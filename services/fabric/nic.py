"""A NIC's virtual functions, representors and switch mode, through sysfs, `devlink` and `ethtool`.

Only in the machine's own network namespace: sysfs shows the devices of the namespace in which it was mounted.
"""

from __future__ import annotations

import errno
import json
import re
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

_COMMAND_TIMEOUT_S: Final = 60.0
"""A change of mode loads a NIC's firmware tables anew, which takes seconds."""
_REPRESENTOR: Final = re.compile(r"^(?:c\d+)?pf(?P<pf>\d+)vf(?P<vf>\d+)$")
_PORT: Final = re.compile(r"^p(?P<port>\d+)$")

RunCommand = Callable[[Sequence[str]], str]
"""Runs a command; returns its standard output. Raises OSError with what it said."""


def run_command(command: Sequence[str]) -> str:
    """Run a command.

    Raises:
        OSError: it is not there, fails, or takes too long.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_TIMEOUT_S, check=False)  # noqa: S603 - fixed words and checked names
    except subprocess.TimeoutExpired as error:
        raise OSError(errno.ETIMEDOUT, f"`{' '.join(command)}` takes more than {_COMMAND_TIMEOUT_S:g} s") from error
    if done.returncode:
        raise OSError(errno.EIO, f"`{' '.join(command)}`: {done.stderr.strip() or done.returncode}")
    return done.stdout


class Nics:
    """Every NIC of the machine, by the name of its physical function's device."""

    def __init__(self, sysfs: Path, run: RunCommand = run_command) -> None:
        self._net = sysfs / "class" / "net"
        self._run = run

    def pci_address(self, nic: str) -> str | None:
        """PCI address such as 0000:03:00.0; None where the device is no NIC, or is not there."""
        try:
            address = (self._net / nic / "device").resolve(strict=True).name
        except OSError:
            return None
        return address if re.fullmatch(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", address) else None

    def function_limit(self, nic: str) -> int:
        """How many virtual functions it can have; 0 without SR-IOV."""
        return self._number(nic, "sriov_totalvfs")

    def function_count(self, nic: str) -> int:
        """How many virtual functions it has now."""
        return self._number(nic, "sriov_numvfs")

    def _number(self, nic: str, file: str) -> int:
        try:
            return int((self._net / nic / "device" / file).read_text(encoding="ascii"))
        except (FileNotFoundError, NotADirectoryError):
            return 0

    def set_function_count(self, nic: str, count: int) -> None:
        """Make so many virtual functions. From one number to another it goes only through 0.

        Raises:
            OSError: the driver refuses.
        """
        (self._net / nic / "device" / "sriov_numvfs").write_text(str(count), encoding="ascii")

    def switch_mode(self, nic: str) -> str | None:
        """``legacy`` or ``switchdev``; None where the NIC has no such switch.

        Raises:
            OSError: `devlink` fails.
        """
        handle = f"pci/{self.pci_address(nic)}"
        found = json.loads(self._run(("devlink", "-j", "dev", "eswitch", "show", handle)) or "{}")
        mode = found.get("dev", {}).get(handle, {}).get("mode")
        return None if mode is None else str(mode)

    def set_switch_mode(self, nic: str, mode: str) -> None:
        """Change the switch's mode.

        Raises:
            OSError: `devlink` fails; says why.
        """
        self._run(("devlink", "dev", "eswitch", "set", f"pci/{self.pci_address(nic)}", "mode", mode))

    def representor(self, nic: str, number: int) -> str | None:
        """Name of the device that stands for a virtual function.

        It shares the NIC's ``phys_switch_id``, and its ``phys_port_name`` is such as pf0vf3 (older drivers: 3).
        """
        switch = self._text(nic, "phys_switch_id")
        if not switch:
            return None
        own = _PORT.match(self._text(nic, "phys_port_name"))
        for entry in sorted(self._net.iterdir()):
            if entry.name == nic or self._text(entry.name, "phys_switch_id") != switch:
                continue
            name = self._text(entry.name, "phys_port_name")
            found = _REPRESENTOR.match(name)
            if found and int(found["vf"]) == number and (own is None or found["pf"] == own["port"]):
                return entry.name
            if found is None and name == str(number):
                return entry.name
        return None

    def _text(self, device: str, file: str) -> str:
        try:
            return (self._net / device / file).read_text(encoding="ascii").strip()
        except OSError:
            return ""  # EOPNOTSUPP where the driver has none

    def function_device(self, nic: str, number: int) -> str | None:
        """Name of a virtual function's own device; None while it has no driver, or is in another namespace."""
        try:
            names = sorted(entry.name for entry in (self._net / nic / "device" / f"virtfn{number}" / "net").iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return None
        return names[0] if names else None

    def feature(self, device: str, feature: str) -> str | None:
        """Whether an offload is on or off; None where the device has none such.

        Raises:
            OSError: `ethtool` fails.
        """
        if not (self._net / device).exists():
            return None
        for line in self._run(("ethtool", "-k", device)).splitlines():
            name, _, state = line.strip().partition(": ")
            if name == feature:
                return state.split()[0]
        return None

    def set_feature(self, device: str, feature: str, value: str) -> None:
        """Turn an offload on or off.

        Raises:
            OSError: `ethtool` fails; says why.
        """
        self._run(("ethtool", "-K", device, feature, value))
