"""`make vm-shell`: a shell as root in a machine. Leave it with `exit`; Ctrl-A X switches the machine off at once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.lab.vm.machine import MachineError, build

HINTS = """\
A Debian kernel {release}, emulated; it boots within 10 to 20 s. Root and checkout are this machine's own: what you
write is gone at the end, but for /run/exchange ({exchange} here, until you leave). Modules load by modprobe.
Leave with: exit. If it hangs: Ctrl-A X.
"""


def main() -> int:
    """Boot, hand the terminal over, and clear up."""
    with tempfile.TemporaryDirectory(prefix="turnbuckle-vm-") as directory:
        work = Path(directory)
        exchange = work / "exchange"
        exchange.mkdir()
        try:
            image = build(work)
        except MachineError as error:
            print(f"vm-shell: {error}", file=sys.stderr)  # noqa: T201 - a command
            return 1
        print(HINTS.format(release=image.release, exchange=exchange), flush=True)  # noqa: T201 - a command
        columns, rows = shutil.get_terminal_size()
        arguments = image.arguments(exchange, interactive=(os.environ.get("TERM", "dumb"), rows, columns))
        # A second serial port for the shell: nothing that the kernel says gets between.
        serial = ["-chardev", "stdio,id=terminal,mux=on,signal=off", "-mon", "terminal", "-serial", "null"]
        return subprocess.run(
            [*arguments, *serial, "-serial", "chardev:terminal", "-nic", "none"], check=False
        ).returncode


if __name__ == "__main__":
    raise SystemExit(main())
