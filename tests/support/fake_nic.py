"""A NIC with SR-IOV as far as software sees one: a sysfs tree, and `devlink` and `ethtool` as shell scripts."""

from __future__ import annotations

from pathlib import Path

PCI_ADDRESS = "0000:03:00.0"

DEVLINK = """#!/bin/sh
state={directory}/mode
if [ "$*" = "-j dev eswitch show pci/{address}" ]; then
    [ -e $state ] || {{ echo 'kernel answers: Operation not supported' >&2; exit 1; }}
    printf '{{"dev":{{"pci/{address}":{{"mode":"%s"}}}}}}' "$(cat $state)"
elif [ "$1 $2 $3 $4 $5" = "dev eswitch set pci/{address} mode" ]; then
    printf %s "$6" > $state
else
    echo "unknown: $*" >&2; exit 1
fi
"""
ETHTOOL = """#!/bin/sh
state={directory}/feature-$2
case $1 in
-k) printf 'Features for %s:\\nhw-tc-offload: %s\\n' "$2" "$(cat $state 2>/dev/null || echo off)";;
-K) printf %s "$4" > $state;;
esac
"""


class FakeNic:
    """One physical function with its virtual functions; ``directory`` is a test's own."""

    def __init__(self, directory: Path, name: str, functions: int = 4) -> None:
        self.sysfs = directory / "sys"
        self.commands = directory / "bin"
        self.net = self.sysfs / "class" / "net"
        self._directory = directory
        self._device = self.sysfs / "devices" / "pci0000:00" / PCI_ADDRESS
        self._device.mkdir(parents=True)
        (self._device / "sriov_totalvfs").write_text(f"{functions}\n")
        (self._device / "sriov_numvfs").write_text("0\n")
        self.add_device(name, "p0")
        (self.net / name / "device").symlink_to(self._device)
        self.commands.mkdir()
        self.set_mode("legacy")
        for command, text in (("devlink", DEVLINK), ("ethtool", ETHTOOL)):
            script = self.commands / command
            script.write_text(text.format(directory=directory, address=PCI_ADDRESS))
            script.chmod(0o755)

    def add_device(self, name: str, port: str, switch: str = "e41d2d0003a4b5c6") -> None:
        """A port of the NIC's switch."""
        (self.net / name).mkdir(parents=True)
        (self.net / name / "phys_port_name").write_text(f"{port}\n")
        (self.net / name / "phys_switch_id").write_text(f"{switch}\n")

    def add_function(self, number: int, device: str) -> None:
        """The device of a virtual function, as its driver makes it."""
        (self._device / f"virtfn{number}" / "net" / device).mkdir(parents=True)

    def take_function(self, number: int, device: str) -> None:
        """The device has been moved to another namespace."""
        (self._device / f"virtfn{number}" / "net" / device).rmdir()

    def rename(self, old: str, new: str) -> None:
        """The kernel has renamed a device."""
        (self.net / old).rename(self.net / new)

    @property
    def mode(self) -> str:
        """The switch's mode."""
        return (self._directory / "mode").read_text()

    def set_mode(self, mode: str | None) -> None:
        """None: the NIC has no such switch."""
        if mode is None:
            (self._directory / "mode").unlink()
        else:
            (self._directory / "mode").write_text(mode)

    @property
    def function_count(self) -> int:
        """What was written to sriov_numvfs."""
        return int((self._device / "sriov_numvfs").read_text())

    def set_function_count(self, count: int) -> None:
        """Somebody else has made functions."""
        (self._device / "sriov_numvfs").write_text(str(count))
