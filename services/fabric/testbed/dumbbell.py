"""A dumbbell for experiments by hand: pairs of hosts, left and right, whose traffic shares one uplink of a given rate.

Each host is a named namespace, so that `ip netns exec` finds it; bridges and uplinks have one of their own
(`services._jobs.sandbox.racks`: the left hosts are one rack, the right ones the other). It needs neither FRR nor a bus.
The state file is written before anything is made, so that `down` finds it after a crash.
"""

from __future__ import annotations

import os
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from schemas.rates import rate_text
from services._host.netns import inside, netns_path
from services._jobs.sandbox.network import DEVICE, PREFIX_LENGTH, NetworkNamespace, NetworkUnavailableError
from services._jobs.sandbox.racks import RackPlan, connect
from services._runtime.atomic_file import write_atomically
from services._runtime.command.errors import CommandError
from services.fabric.testbed import build, network, state_file

MAX_PAIRS: Final = 16
_SWITCHES: Final = "switches"
_SUBNET: Final = f"10.77.0.0/{PREFIX_LENGTH}"


class DumbbellSettings(BaseModel):
    """What a dumbbell is like."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    prefix: Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9]{0,9}$")]
    pairs: Annotated[int, Field(ge=1, le=MAX_PAIRS)] = 2
    bits_per_s: Annotated[int, Field(ge=1)] = 100_000_000

    @property
    def plan(self) -> RackPlan:
        """``l1``, ``l2``... in one rack, ``r1``, ``r2``... in the other.

        Raises:
            ValueError: the rate cannot be kept.
        """
        hosts = [f"{side}{number}" for side in "lr" for number in range(1, self.pairs + 1)]
        return RackPlan.of(hosts, 2, self.bits_per_s)

    def namespace(self, host: str) -> str:
        """Name of a host's namespace, or of that of the bridges."""
        return f"{self.prefix}-{host}"

    @property
    def namespaces(self) -> tuple[str, ...]:
        """All of them."""
        return tuple(self.namespace(host) for host in (_SWITCHES, *self.plan.nodes))

    def commands(self) -> list[str]:
        """What one may try first."""
        left, right = self.namespace("l1"), self.namespace("r1")
        address = self.plan.address("l1")
        job = f"WORLD_SIZE=2 MASTER_ADDR={address} MASTER_PORT=29500 python3 docs/examples/jobs/traffic.py"
        return [
            f"ip netns exec {right} env RANK=1 {job} &",
            f"ip netns exec {left} env RANK=0 {job}",
            f"ip -n {left} route replace {_SUBNET} dev {DEVICE} src {address} congctl cubic",
            f"tc -n {self.namespace(_SWITCHES)} -s qdisc show dev rack-1-up",
            f"turnbuckle lab down dumbbell --prefix {self.prefix}",
        ]


class DumbbellState(BaseModel):
    """Everything that `down` needs."""

    settings: DumbbellSettings
    namespaces: dict[str, int | None] = Field(default_factory=dict)
    """Name -> inode; None: about to be made."""

    def save(self) -> None:
        """Write it atomically."""
        path = _path(self.settings.prefix)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, self.model_dump_json(indent=1))


def _name(prefix: str) -> str:
    """Of its directory: no dual-ToR lab has such a prefix."""
    return f"dumbbell-{prefix}"


def _path(prefix: str) -> Path:
    return state_file.directory_of(_name(prefix)) / "dumbbell.json"


def load(prefix: str) -> DumbbellState | None:
    """The state; None: there is no such dumbbell.

    Raises:
        CommandError: it cannot be read.
    """
    path = _path(prefix)
    try:
        return DumbbellState.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise CommandError(f"{path} cannot be read ({error}); remove it and what it names by hand") from error


def up(settings: DumbbellSettings) -> str:
    """Make one; returns what is there, in a sentence.

    Raises:
        CommandError: it exists already, or something was refused: what was made is removed.
        ValueError: the rate cannot be kept.
    """
    plan, prefix = settings.plan, settings.prefix
    with state_file.lock_lab(_name(prefix)):
        if load(prefix) is not None:
            raise CommandError(f"dumbbell {prefix} stands already: turnbuckle lab down dumbbell --prefix {prefix}")
        if taken := [name for name in settings.namespaces if state_file.inode_of(name) is not None]:
            raise CommandError(f"other namespaces have its names: {', '.join(taken)}; choose another --prefix")
        state = DumbbellState(settings=settings)
        try:
            _build(state)
        except BaseException:
            with suppress(CommandError):
                _remove(state)
            raise
    return (
        f"dumbbell {prefix}: {settings.pairs} pairs, {settings.namespace('l1')} ({plan.address('l1')}) to "
        f"{settings.namespace('r1')} ({plan.address('r1')}) and so on; they share {rate_text(settings.bits_per_s)}/s "
        "each way"
    )


def _build(state: DumbbellState) -> None:
    settings = state.settings
    for name in settings.namespaces:
        state.namespaces[name] = None
        state.save()
        network.make_namespace(name)
        state.namespaces[name] = state_file.inode_of(name)
        state.save()
    with ExitStack() as opened:

        def open_namespace(host: str) -> NetworkNamespace:
            name = settings.namespace(host)
            with inside(name), suppress(OSError):  # as `NetworkNamespace.create`
                Path("/proc/sys/net/ipv6/conf/default/disable_ipv6").write_text("1", encoding="ascii")
            found = NetworkNamespace(os.open(netns_path(name), os.O_RDONLY | os.O_CLOEXEC))
            opened.callback(found.close)
            return found

        try:
            connect(
                settings.plan, open_namespace(_SWITCHES), {host: open_namespace(host) for host in settings.plan.nodes}
            )
        except (NetworkUnavailableError, OSError) as error:
            raise CommandError(f"the dumbbell cannot be made: {error}") from error


def down(prefix: str) -> list[str] | None:
    """Remove one; returns what had to be left, in sentences. None: there is none.

    Raises:
        CommandError: something of it cannot be removed: the state file stays, for another try.
    """
    with state_file.lock_lab(_name(prefix)):
        state = load(prefix)
        return None if state is None else _remove(state)


def _remove(state: DumbbellState) -> list[str]:
    left = build.remove_namespaces(state.namespaces)
    state_file.forget(_name(state.settings.prefix))
    return left
