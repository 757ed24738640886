"""A virtual machine with a stock Debian kernel, where control groups are of version 2 and everything is emulated.

The guest's root is this machine's own root, read-only over 9p below a tmpfs overlay: so it runs this very checkout with
its own .venv, and whatever it writes is gone when it ends. Needs no root and no KVM; emulated, it is some 10 to 20
times slower than the machine, and its clock knows nothing of that.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from tests.lab.vm.initramfs import write_initramfs
from tests.lab.vm.packages import PackageError, find_package, unpacked

QEMU: Final = "qemu-system-x86_64"
KERNEL_PACKAGES: Final = ("linux-image-6.12-amd64", "linux-image-amd64")
"""Debian 12 and 13; both depend on the package with the current build of 6.12."""
MODULES: Final = (
    "kernel/fs/netfs/netfs.ko.xz",
    "kernel/net/9p/9pnet.ko.xz",
    "kernel/net/9p/9pnet_virtio.ko.xz",
    "kernel/fs/9p/9p.ko.xz",
    "kernel/fs/overlayfs/overlay.ko.xz",
)
"""In the order of their dependencies."""
CPU: Final = "max,la57=off"
"""Five levels of page tables make every miss of the emulated TLB dearer: imports took nearly twice as long."""
MEMORY_MIB: Final = 3072
CHECKOUT: Final = Path(__file__).parents[3]
INIT: Final = """\
#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc; mount -t sysfs sysfs /sys; mount -t devtmpfs dev /dev
for module in {modules}; do insmod /modules/$module; done
mkdir -p /lower /writes /root
shared=trans=virtio,version=9p2000.L,msize=512000
mount -t 9p -o ro,cache=loose,$shared root /lower
mount -t tmpfs writes /writes; mkdir /writes/upper /writes/work
mount -t overlay -o lowerdir=/lower,upperdir=/writes/upper,workdir=/writes/work overlay /root
mount --move /proc /root/proc; mount --move /sys /root/sys; mount --move /dev /root/dev
mkdir -p /root/dev/shm /root/dev/pts
mount -t tmpfs shm /root/dev/shm; mount -t devpts pts /root/dev/pts
mount -t tmpfs run /root/run; mkdir /root/run/exchange
mount -t 9p -o $shared exchange /root/run/exchange
mount -t cgroup2 cgroup2 /root/sys/fs/cgroup
hostname guest; ifconfig lo 127.0.0.1 up
chroot /root /bin/sh /run/exchange/job > /root/run/exchange/output 2>&1 < /root/dev/null
echo $? > /root/run/exchange/exit-code
poweroff -f
"""


class MachineError(Exception):
    """The machine could not be built, or ended without an exit code; the message holds the end of its console."""


class Ended(NamedTuple):
    """How a command in the guest ended."""

    exit_code: int
    output: str
    """stdout and stderr."""
    seconds: float
    """On this machine's clock, with booting."""


@cache
def missing() -> str | None:
    """Why no machine can be built here, or None."""
    if platform.machine() != "x86_64":
        return f"needs an x86-64 machine, this is {platform.machine()}"
    for program, package in ((QEMU, "qemu-system-x86"), ("apt-get", "apt, on Debian"), ("dpkg-deb", "dpkg, on Debian")):
        if shutil.which(program) is None:
            return f"needs {program}: apt-get install {package}"
    try:
        find_package(KERNEL_PACKAGES, cache_directory())
    except PackageError as error:
        return str(error)
    return None


def cache_directory() -> Path:
    """Where fetched packages stay between runs: outside of the checkout, never committed."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "turnbuckle-vm"


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine that is off; every `run` boots it afresh."""

    kernel: Path
    initramfs: Path
    work_directory: Path

    @property
    def exchange(self) -> Path:
        """The one directory that outlives a run: /run/exchange in the guest, emptied by the next run."""
        return self.work_directory / "exchange"

    @property
    def release(self) -> str:
        """The kernel's, such as 6.12.117+deb12-amd64."""
        return self.kernel.name.removeprefix("vmlinuz-")

    def run(
        self, command: Sequence[str], *, environment: Mapping[str, str] | None = None, within_s: float = 300.0
    ) -> Ended:
        """Boot, run a command as root in the checkout, and switch off.

        Raises:
            MachineError: no exit code within `within_s`: it did not boot, or the command hangs.
        """
        shutil.rmtree(self.exchange, ignore_errors=True)
        self.exchange.mkdir()
        variables = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(Path.home()), "LANG": "C.UTF-8"}
        assignments = [f"{name}={value}" for name, value in (variables | dict(environment or {})).items()]
        job = shlex.join(["env", "-i", *assignments, *command])
        (self.exchange / "job").write_text(f"cd {shlex.quote(str(CHECKOUT))} && exec {job}\n", encoding="utf-8")
        started_s = time.monotonic()
        console = self._boot(within_s)
        seconds = time.monotonic() - started_s
        output = _read(self.exchange / "output")
        exit_code = _read(self.exchange / "exit-code").strip()
        if not exit_code:
            raise MachineError(
                f"no exit code after {seconds:.0f} s from {shlex.join(command)}\n"
                f"output:\n{output[-4000:]}\nconsole:\n{console[-4000:]}"
            )
        return Ended(int(exit_code), output, seconds)

    def _boot(self, within_s: float) -> str:
        """Until it switches itself off, or is killed at the deadline; returns what the console said."""
        share = "local,security_model=none,multidevs=remap"
        arguments = [
            *(QEMU, "-accel", "tcg,thread=multi", "-cpu", CPU, "-smp", str(min(2, os.cpu_count() or 1))),
            *("-m", str(MEMORY_MIB), "-nic", "none", "-nographic", "-no-reboot"),
            *("-kernel", str(self.kernel), "-initrd", str(self.initramfs)),
            *("-append", "console=ttyS0 quiet panic=-1 mitigations=off nokaslr"),
            *("-virtfs", f"{share},path=/,mount_tag=root,readonly=on"),
            *("-virtfs", f"{share},path={self.exchange},mount_tag=exchange"),
        ]
        try:
            done = subprocess.run(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=within_s,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            return (error.output or b"").decode(errors="replace")
        return done.stdout.decode(errors="replace")


def _read(file: Path) -> str:
    return file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""


def build(work_directory: Path) -> Machine:
    """Fetch kernel and busybox unless they are in the cache, and make the initramfs.

    Raises:
        MachineError: a package cannot be fetched, or is not as expected.
    """
    packages = cache_directory()
    try:
        kernel_files = unpacked(
            find_package(KERNEL_PACKAGES, packages), packages, ("./boot/vmlinuz-*", "./lib/modules/*")
        )
        busybox_files = unpacked(find_package(("busybox-static",), packages), packages, ("./bin/busybox",))
        [kernel] = kernel_files.glob("boot/vmlinuz-*")
        [modules] = kernel_files.glob("lib/modules/*")
    except (PackageError, ValueError) as error:
        raise MachineError(f"no kernel or no busybox: {error}") from error
    initramfs = work_directory / "initramfs"
    drivers = [modules / module for module in MODULES]
    init = INIT.format(modules=" ".join(driver.name.removesuffix(".xz") for driver in drivers))
    write_initramfs(initramfs, init, busybox_files / "bin/busybox", drivers)
    return Machine(kernel, initramfs, work_directory)
