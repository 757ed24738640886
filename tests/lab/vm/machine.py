"""What a machine with a stock Debian kernel is made of: all of it emulated, or User-Mode Linux, a kernel as a process.

The guest's root is this machine's own root, read-only (over 9p or hostfs) below a tmpfs overlay: so it runs this very
checkout with its own .venv and finds every program that is installed here, and whatever it writes is gone when it ends.
Control groups are of version 2, kernel modules load by themselves or by modprobe. Needs no root and no KVM.

Emulated (QEMU), it is some 10 to 20 times slower than the machine, and its clock knows nothing of that.

User-Mode Linux (Documentation/virt/uml) computes as fast as the machine; system calls, page faults and new processes
cost several times as much. It has one processor, no network card, no tracing, no pressure stall information (PSI) and
no RDMA: what needs those is emulated. Each page of a process may be a mapping of the host's: a process is killed beyond
vm.max_map_count (65,530: 256 MiB, page by page).
"""

from __future__ import annotations

import compileall
import os
import platform
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, Protocol

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
CORES: Final = 1
"""With a second emulated processor, to start a process costs half as much again: one interrupts the other."""
ACCELERATOR: Final = "tcg,thread=single"
"""Several processors take turns in one thread: with a thread each, QEMU before 8.1 may run what the other processor has
just overwritten, and a kernel that switches a static key (a program is attached, a timestamp wanted) oopses by int3."""
HARDENING_OFF: Final = "mitigations=off nokaslr init_on_alloc=0 hardened_usercopy=off randomize_kstack_offset=off"
"""Every page and object that is handed out would be cleared first."""
MEMORY_MIB: Final = 3072
CHECKOUT: Final = Path(__file__).parents[3]
SERVER: Final = Path(__file__).with_name("guest_server.sh")
SOURCES: Final = ("schemas", "services", "tests")
USER_MODE_PACKAGES: Final = ("user-mode-linux",)
"""Of Debian: its kernel 6.1 with nearly all of its modules."""
USER_MODE_MODULES: Final = ("kernel/fs/overlayfs/overlay.ko",)
INIT: Final = """\
#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc; mount -t sysfs sysfs /sys; mount -t devtmpfs dev /dev
for module in {modules}; do insmod /modules/$module; done
mkdir -p /lower /writes /root
{mount_root}
mount -t tmpfs writes /writes; mkdir /writes/upper /writes/work
mount -t overlay -o lowerdir=/lower,upperdir=/writes/upper,workdir=/writes/work overlay /root
mount --move /proc /root/proc; mount --move /sys /root/sys; mount --move /dev /root/dev
mkdir -p /root/dev/shm /root/dev/pts /root/lib/modules
mount --bind /root{module_tree} /root/lib/modules
mount -t tmpfs shm /root/dev/shm; mount -t devpts pts /root/dev/pts
mount -t tmpfs run /root/run; mkdir /root/run/exchange
{mount_exchange}
mount -t cgroup2 cgroup2 /root/sys/fs/cgroup
hostname guest; ifconfig lo 127.0.0.1 up
for word in $(cat /root/proc/cmdline); do case $word in interactive=*) terminal=${{word#*=}};; esac; done
terminal=$(echo $terminal | tr , ' ')
exec switch_root /root /bin/sh {server} {channel} ${{terminal:+interactive {checkout} {home} $terminal}}
"""
SHARED: Final = "trans=virtio,version=9p2000.L,msize=512000"


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


class Image(Protocol):
    """What a machine boots from; any number of machines may share it."""

    @property
    def release(self) -> str:
        """The kernel's, such as 6.12.117+deb12-amd64."""
        ...

    def command(
        self, exchange: Path, *, console: Path, channel: int, cards: Sequence[str], memory_mib: int, cores: int
    ) -> list[str]:
        """The command line of a machine that serves jobs.

        Args:
            exchange: the one directory that outlives the machine, /run/exchange in it.
            console: gets what the kernel says, unless that goes to stderr.
            channel: a file descriptor of a stream that carries the jobs' names.
            cards: options of qemu for network cards.
            memory_mib: of the machine.
            cores: of the machine, also more than there are here.
        """
        ...


@dataclass(frozen=True, slots=True)
class EmulatedImage:
    """For qemu."""

    kernel: Path
    initramfs: Path

    @property
    def release(self) -> str:
        """The kernel's, such as 6.12.117+deb12-amd64."""
        return self.kernel.name.removeprefix("vmlinuz-")

    def command(
        self, exchange: Path, *, console: Path, channel: int, cards: Sequence[str], memory_mib: int, cores: int
    ) -> list[str]:
        """As `Image.command`."""
        return [
            *self.arguments(exchange, memory_mib=memory_mib, cores=cores),
            *("-monitor", "none", "-serial", f"file:{console}"),
            *("-device", "virtio-serial-pci", "-chardev", f"socket,id=jobs,fd={channel}"),
            *("-device", "virtserialport,chardev=jobs,name=jobs"),
            *(cards or ("-nic", "none")),
        ]

    def arguments(
        self,
        exchange: Path,
        *,
        memory_mib: int = MEMORY_MIB,
        cores: int = CORES,
        interactive: tuple[str, int, int] | None = None,
    ) -> list[str]:
        """The command line of a machine without serial ports and network.

        Args:
            exchange: the one directory that outlives the machine, /run/exchange in it.
            memory_mib: of the machine.
            cores: of the machine, also more than there are here.
            interactive: TERM, rows and columns of a shell on its second serial port; None: it serves jobs.
        """
        share = "local,security_model=none,multidevs=remap"
        # A kernel that oopses says so and ends at once, instead of not answering until a deadline.
        append = f"console=ttyS0 quiet panic=-1 oops=panic {HARDENING_OFF}"
        return [
            *(QEMU, "-accel", ACCELERATOR, "-cpu", CPU, "-smp", str(cores)),
            *("-m", str(memory_mib), "-display", "none", "-no-reboot"),
            *("-kernel", str(self.kernel), "-initrd", str(self.initramfs)),
            *("-append", append + (" interactive={},{},{}".format(*interactive) if interactive else "")),
            *("-virtfs", f"{share},path=/,mount_tag=root,readonly=on"),
            *("-virtfs", f"{share},path={exchange},mount_tag=exchange"),
        ]


@dataclass(frozen=True, slots=True)
class UserModeImage:
    """For User-Mode Linux."""

    program: Path
    initramfs: Path
    release: str

    def command(
        self, exchange: Path, *, console: Path, channel: int, cards: Sequence[str], memory_mib: int, cores: int
    ) -> list[str]:
        """As `Image.command`; has one core, and no cards.

        Raises:
            MachineError: a network card, or more cores.
        """
        if cards or cores != 1:
            raise MachineError("User-Mode Linux has one processor and no network card here: take the emulated machine")
        return [
            *(str(self.program), f"mem={memory_mib}M", f"initrd={self.initramfs}", "noreboot"),
            *("con=null", "con0=null,fd:2", "ssl=null", f"ssl0=fd:{channel}"),
            *("quiet", "panic=-1", "oops=panic", f"exchange={exchange}"),
        ]


def build(work_directory: Path) -> EmulatedImage:
    """Fetch kernel and busybox unless they are in the cache, and make the initramfs of an emulated machine.

    Raises:
        MachineError: a program is missing, or a package cannot be fetched or is not as expected.
    """
    files, modules = _kernel(KERNEL_PACKAGES, "./boot/vmlinuz-*", "lib/modules")
    [kernel] = files.glob("boot/vmlinuz-*")
    initramfs = work_directory / "initramfs"
    _write(
        initramfs,
        [modules / module for module in MODULES],
        mount_root=f"mount -t 9p -o ro,cache=loose,{SHARED} root /lower",
        mount_exchange=f"mount -t 9p -o {SHARED} exchange /root/run/exchange",
        module_tree=modules.parent,
        channel="'/dev/vport*p1'",
    )
    return EmulatedImage(kernel, initramfs)


def build_user_mode(work_directory: Path) -> UserModeImage:
    """Fetch User-Mode Linux and busybox unless they are in the cache, and make the initramfs.

    Raises:
        MachineError: a program is missing, or a package cannot be fetched or is not as expected.
    """
    files, modules = _kernel(USER_MODE_PACKAGES, "./usr/bin/linux.uml", "usr/lib/uml/modules")
    initramfs = work_directory / "initramfs-user-mode"
    _write(
        initramfs,
        [modules / module for module in USER_MODE_MODULES],
        # Of a hostfs the option is the directory. Words such as exchange=... become variables of the first process.
        mount_root="mount -t hostfs -o ro,/ none /lower",
        # A kernel that asks for IPv6's module while a device is set up waits for itself: both need the same lock.
        mount_exchange='mount -t hostfs -o "$exchange" none /root/run/exchange; chroot /root /sbin/modprobe ipv6',
        module_tree=modules.parent,
        channel="/dev/ttyS0",
    )
    return UserModeImage(files / "usr/bin/linux.uml", initramfs, modules.name)


def _kernel(names: Sequence[str], program: str, modules: str) -> tuple[Path, Path]:
    """Files of a package with a kernel, and the directory of its modules, named as its release.

    Args:
        names: of packages, the first that there is.
        program: pattern of the kernel's own file.
        modules: where directories of modules lie.
    """
    if reason := missing():
        raise MachineError(reason)
    packages = cache_directory()
    try:
        files = unpacked(find_package(names, packages), packages, (program, f"./{modules}/*"))
        [directory] = files.glob(f"{modules}/*")
        with_module_index(directory)
    except (PackageError, ValueError) as error:
        raise MachineError(f"no kernel: {error}") from error
    return files, directory


def _write(
    initramfs: Path,
    drivers: Sequence[Path],
    *,
    mount_root: str,
    mount_exchange: str,
    module_tree: Path,
    channel: str,
) -> None:
    packages = cache_directory()
    try:
        busybox_files = unpacked(find_package(("busybox-static",), packages), packages, ("./bin/busybox",))
    except PackageError as error:
        raise MachineError(f"no busybox: {error}") from error
    init = INIT.format(
        modules=" ".join(driver.name.removesuffix(".xz") for driver in drivers),
        mount_root=mount_root,
        mount_exchange=mount_exchange,
        module_tree=shlex.quote(str(module_tree)),
        server=shlex.quote(str(SERVER)),
        channel=channel,
        checkout=shlex.quote(str(CHECKOUT)),
        home=shlex.quote(str(Path.home())),
    )
    write_initramfs(initramfs, init, busybox_files / "bin/busybox", drivers)
    # Where this machine writes no bytecode, every boot would compile everything anew, many times slower.
    for directory in SOURCES:
        compileall.compile_dir(CHECKOUT / directory, quiet=2)
