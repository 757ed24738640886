"""What a virtual machine with a stock Debian kernel is made of; everything in it is emulated.

The guest's root is this machine's own root, read-only over 9p below a tmpfs overlay: so it runs this very checkout with
its own .venv and finds every program that is installed here, and whatever it writes is gone when it ends. Control
groups are of version 2, kernel modules load by themselves or by modprobe. Needs no root and no KVM; emulated, it is
some 10 to 20 times slower than the machine, and its clock knows nothing of that.
"""

from __future__ import annotations

import compileall
import os
import platform
import shlex
import shutil
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from tests.lab.vm.initramfs import write_initramfs
from tests.lab.vm.packages import PackageError, find_package, unpacked, with_module_index

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
"""What the root needs, in the order of their dependencies."""
CPU: Final = "max,la57=off,erms=off,fsrm=off"
"""Five levels of page tables make every miss of the emulated TLB dearer: imports took nearly twice as long. And a guest
that is told of fast `rep movsb` copies and clears pages by it, which is emulated byte by byte."""
MEMORY_MIB: Final = 3072
CHECKOUT: Final = Path(__file__).parents[3]
SERVER: Final = Path(__file__).with_name("guest_server.sh")
SOURCES: Final = ("schemas", "services", "tests")
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
mkdir -p /root/dev/shm /root/dev/pts /root/lib/modules
mount --bind /root{module_tree} /root/lib/modules
mount -t tmpfs shm /root/dev/shm; mount -t devpts pts /root/dev/pts
mount -t tmpfs run /root/run; mkdir /root/run/exchange
mount -t 9p -o $shared exchange /root/run/exchange
mount -t cgroup2 cgroup2 /root/sys/fs/cgroup
hostname guest; ifconfig lo 127.0.0.1 up
for word in $(cat /root/proc/cmdline); do case $word in interactive=*) terminal=${{word#*=}};; esac; done
exec switch_root /root /bin/sh {server} ${{terminal:+interactive {checkout} {home} $(echo $terminal | tr , ' ')}}
"""


class MachineError(Exception):
    """A machine could not be built or did not boot, or a job did not end; the message holds the end of its console."""


@cache
def missing() -> str | None:
    """Why no machine can be built here, or None."""
    if platform.machine() != "x86_64":
        return f"needs an x86-64 machine, this is {platform.machine()}"
    for program, package in (
        (QEMU, "qemu-system-x86"),
        ("apt-get", "apt, on Debian"),
        ("dpkg-deb", "dpkg, on Debian"),
        ("depmod", "kmod"),
    ):
        if shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") is None:
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
class Image:
    """What a machine boots from; any number of machines may share it."""

    kernel: Path
    initramfs: Path

    @property
    def release(self) -> str:
        """The kernel's, such as 6.12.117+deb12-amd64."""
        return self.kernel.name.removeprefix("vmlinuz-")

    def arguments(
        self,
        exchange: Path,
        *,
        memory_mib: int = MEMORY_MIB,
        cores: int | None = None,
        interactive: tuple[str, int, int] | None = None,
    ) -> list[str]:
        """The command line of a machine without serial ports and network.

        Args:
            exchange: the one directory that outlives the machine, /run/exchange in it.
            memory_mib: of the machine.
            cores: of the machine, also more than there are here; None: up to two.
            interactive: TERM, rows and columns of a shell on its second serial port; None: it serves jobs.
        """
        share = "local,security_model=none,multidevs=remap"
        # A kernel that oopses says so and ends at once, instead of not answering until a deadline.
        append = "console=ttyS0 quiet panic=-1 oops=panic mitigations=off nokaslr"
        return [
            *(QEMU, "-accel", "tcg,thread=multi", "-cpu", CPU, "-smp", str(cores or min(2, os.cpu_count() or 1))),
            *("-m", str(memory_mib), "-display", "none", "-no-reboot"),
            *("-kernel", str(self.kernel), "-initrd", str(self.initramfs)),
            *("-append", append + (" interactive={},{},{}".format(*interactive) if interactive else "")),
            *("-virtfs", f"{share},path=/,mount_tag=root,readonly=on"),
            *("-virtfs", f"{share},path={exchange},mount_tag=exchange"),
        ]


def build(work_directory: Path) -> Image:
    """Fetch kernel and busybox unless they are in the cache, and make the initramfs.

    Raises:
        MachineError: a program is missing, or a package cannot be fetched or is not as expected.
    """
    if reason := missing():
        raise MachineError(reason)
    packages = cache_directory()
    try:
        kernel_files = unpacked(
            find_package(KERNEL_PACKAGES, packages), packages, ("./boot/vmlinuz-*", "./lib/modules/*")
        )
        busybox_files = unpacked(find_package(("busybox-static",), packages), packages, ("./bin/busybox",))
        [kernel] = kernel_files.glob("boot/vmlinuz-*")
        [modules] = kernel_files.glob("lib/modules/*")
        with_module_index(kernel_files, modules.name)
    except (PackageError, ValueError) as error:
        raise MachineError(f"no kernel or no busybox: {error}") from error
    initramfs = work_directory / "initramfs"
    drivers = [modules / module for module in MODULES]
    init = INIT.format(
        modules=" ".join(driver.name.removesuffix(".xz") for driver in drivers),
        module_tree=shlex.quote(str(modules.parent)),
        server=shlex.quote(str(SERVER)),
        checkout=shlex.quote(str(CHECKOUT)),
        home=shlex.quote(str(Path.home())),
    )
    write_initramfs(initramfs, init, busybox_files / "bin/busybox", drivers)
    # Where this machine writes no bytecode, every boot would compile everything anew, many times slower.
    for directory in SOURCES:
        compileall.compile_dir(CHECKOUT / directory, quiet=2)
    return Image(kernel, initramfs)
