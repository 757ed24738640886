"""A Slurm cluster of this machine: real munged, slurmctld and slurmds with a directory and ports of their own."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from services.cli.toolkit.supervisor import free_port

WITHIN_S: Final = 60.0
COMMANDS: Final = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol", "scancel")

_CONF: Final = """\
ClusterName=lab
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={directory}/munge.socket
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool.%n
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd.%n.pid
SlurmctldLogFile={directory}/slurmctld.log
SlurmdLogFile={directory}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/builtin
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0
PriorityType=priority/basic
KillWait=2
MinJobAge=20
ReturnToService=2
MpiDefault=none
AccountingStorageType=accounting_storage/none
JobRequeue=1
EnforcePartLimits=ALL
SlurmdParameters=config_overrides
{nodes}
PartitionName=all Nodes=ALL Default=YES State=UP MaxTime=INFINITE
"""


def missing() -> str | None:
    """Why it cannot be started here, or None."""
    if os.geteuid() != 0:
        return "needs root"
    paths = ("/usr/sbin", "/usr/bin", "/sbin", "/bin")
    for command in COMMANDS:
        if not any(Path(path, command).exists() for path in paths):
            return f"needs the command {command}: apt-get install slurm-wlm munge"
    return None


class SlurmLab:
    """Nodes n1, n2 and so on."""

    def __init__(self, directory: Path, nodes: int = 4, cpus: int = 2, gpus: int = 0) -> None:
        self.directory = directory
        self.names = [f"n{number}" for number in range(1, nodes + 1)]
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        host, port = socket.gethostname(), free_port()
        lines = [
            f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={free_port()} CPUs={cpus} RealMemory=1000"
            + (f" Gres=gpu:tesla:{gpus}" if gpus else "")
            for name in self.names
        ]
        if gpus:  # any device does, as long as nobody is kept from others by control groups
            lines.insert(0, "GresTypes=gpu")
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "state").mkdir(exist_ok=True)
        conf = _CONF.format(host=host, port=port, directory=directory, nodes="\n".join(lines))
        self.conf = directory / "slurm.conf"
        self.conf.write_text(conf)
        if gpus:
            text = f"NodeName={','.join(self.names)} Name=gpu Type=tesla File=/dev/tty[0-{gpus - 1}]\n"
            (directory / "gres.conf").write_text(text)

    @property
    def environment(self) -> dict[str, str]:
        """By which Slurm's commands, and the adapter, find this cluster."""
        return {"SLURM_CONF": str(self.conf), "TURNBUCKLE_SLURM__ALLOW_ROOT": "true"}

    async def start(self) -> None:
        """Start everything, until all nodes are idle."""
        key = self.directory / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        munge = self.directory / "munge"
        options = {"key-file": key, "socket": f"{munge}.socket", "pid-file": f"{munge}.pid"}
        options |= {"log-file": f"{munge}.log", "seed-file": f"{munge}.seed"}
        self._start(
            "munged", "munged", "--foreground", "--force", *(f"--{name}={path}" for name, path in options.items())
        )
        await self.until(lambda: Path(f"{munge}.socket").exists(), "munged")
        self.start_controller()
        for name in self.names:
            self.start_node(name)
        await self.until(lambda: self._idle() == len(self.names), "idle nodes")

    def start_controller(self) -> None:
        """Start slurmctld."""
        self._start("slurmctld", "slurmctld", "-D")

    def stop_controller(self) -> None:
        """End slurmctld."""
        self._end("slurmctld", signal.SIGTERM)

    def restart(self, daemon: str) -> None:
        """Start slurmctld, or a node's slurmd, once it has ended."""
        if daemon == "slurmctld":
            self.start_controller()
        else:
            self.start_node(daemon)

    def start_node(self, name: str) -> None:
        """Start a node's slurmd."""
        self._start(name, "slurmd", "-D", "-N", name)

    def drained(self) -> list[str]:
        """Nodes that take no jobs until somebody resumes them."""
        lines = self.call("sinfo", "--noheader", "--Node", "--format=%N %T").splitlines()
        return [name for name, state in map(str.split, lines) if state.startswith("drain")]

    async def until_saved(self, job_id: int) -> None:
        """Wait until slurmctld has a job's present state on its disk: it writes a while after each change."""
        path = self.directory / "state" / "job_state"
        before_ns = path.stat().st_mtime_ns if path.exists() else 0
        self.call("scontrol", "update", f"jobid={job_id}", "admincomment=saved")
        await self.until(lambda: path.exists() and path.stat().st_mtime_ns > before_ns, "a saved state")

    def kill(self, daemon: str) -> None:
        """Kill slurmctld, or a node's slurmd; what it started lives on."""
        self._end(daemon, signal.SIGKILL)

    def stop(self) -> None:
        """Cancel all jobs, and end everything."""
        self.call("scancel", "--user=root", check=False)
        deadline_s = time.monotonic() + 20
        while self.call("squeue", "--noheader", check=False).strip() and time.monotonic() < deadline_s:
            time.sleep(0.1)
        for name in [*self.names, "slurmctld", "munged"]:
            if name in self._daemons:
                self._end(name, signal.SIGTERM)

    def call(self, *command: str, check: bool = True) -> str:
        """What a command of Slurm prints."""
        done = subprocess.run(command, env=self._environment(), capture_output=True, text=True, timeout=60, check=False)
        assert not check or done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    async def until(self, condition: object, what: str) -> None:
        """Wait for something, or fail with the daemons' logs."""
        assert callable(condition)
        deadline_s = time.monotonic() + WITHIN_S
        while not await asyncio.to_thread(condition):
            for name, daemon in self._daemons.items():
                assert daemon.poll() is None, f"{name} has ended: {self._logs()}"
            assert time.monotonic() < deadline_s, f"{what} not within {WITHIN_S:g} s: {self._logs()}"
            await asyncio.sleep(0.05)

    def _idle(self) -> int:
        return self.call("sinfo", "--noheader", "--Node", "--format=%T", check=False).split().count("idle")

    def _logs(self) -> str:
        return "\n".join(f"{path.name}: {path.read_text()[-1500:]}" for path in sorted(self.directory.glob("*.log")))

    def _environment(self) -> Mapping[str, str]:
        return {**os.environ, "SLURM_CONF": str(self.conf), "PATH": f"{os.environ['PATH']}:/usr/sbin"}

    def _start(self, name: str, *command: str) -> None:
        with (self.directory / f"{name}.out.log").open("ab") as log:
            self._daemons[name] = subprocess.Popen(
                command,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _end(self, name: str, number: int) -> None:
        daemon = self._daemons.pop(name)
        daemon.send_signal(number)
        try:
            daemon.wait(20)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()
