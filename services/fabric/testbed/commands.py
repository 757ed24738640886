"""`turnbuckle lab`: the dual-ToR lab by hand."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from dataclasses import asdict
from enum import StrEnum
from itertools import repeat
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from pydantic import ValidationError

from schemas.rates import parse_rate
from services._runtime.command.errors import CommandError
from services._runtime.command.output import print_json, print_note, stdout_console
from services.fabric.model import Bfd
from services.fabric.testbed.faults import Direction, Fault, FaultKind, alternating
from services.fabric.testbed.topology import DEFAULT_PREFIX, LabSettings

if TYPE_CHECKING:
    from services.fabric.testbed.schedule import Occurrence

lab_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Networks on this machine to try things on: two switches per host (needs FRR), a shared uplink. Needs root.",
    epilog="""
Examples:

  turnbuckle lab up dual-tor --hosts 3

  turnbuckle lab meter dual-tor --fault blackhole --faults 5

  turnbuckle lab fault dual-tor link-down --host 1 --switch 2 --for 10

  turnbuckle lab down dual-tor

  turnbuckle lab up dumbbell --pairs 2 --rate 100Mbit
""",
)
up_app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")


class TopologyName(StrEnum):
    """What most commands are about."""

    DUAL_TOR = "dual-tor"


class LabName(StrEnum):
    """What can be built."""

    DUAL_TOR = "dual-tor"
    DUMBBELL = "dumbbell"


TopologyArgument = Annotated[TopologyName, typer.Argument(metavar="dual-tor", help="The topology.")]
DUMBBELL_PREFIX: Final = "db"
DumbbellPrefixOption = Annotated[str, typer.Option("--prefix", help="Of namespaces' names; several may stand at once.")]
PrefixOption = Annotated[str, typer.Option("--prefix", help="Of namespaces' names; several labs may stand at once.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]

UP_EXAMPLES = """
Examples:

  turnbuckle lab up dual-tor

  turnbuckle lab up dual-tor --hosts 4 --bfd 10x3 --fast-path

  ip netns exec tb-a1 ping 172.16.0.2
"""
DUMBBELL_EXAMPLES = """
Examples:

  turnbuckle lab up dumbbell

  turnbuckle lab up dumbbell --pairs 3 --rate 1Gbit
"""
DOWN_EXAMPLES = """
Examples:

  turnbuckle lab down dual-tor

  turnbuckle lab down dual-tor --prefix mine

  turnbuckle lab down dumbbell
"""
STATUS_EXAMPLES = """
Examples:

  turnbuckle lab status dual-tor

  turnbuckle lab status dual-tor --json | jq '.paths[] | select(.uplinks | length < 2)'
"""
FAULT_EXAMPLES = """
Examples:

  turnbuckle lab fault dual-tor blackhole --host 1 --switch 1 --for 10

  turnbuckle lab fault dual-tor blackhole --direction to-host

  turnbuckle lab fault dual-tor link-down --alternate --for 20 --every 40 --times 5

  turnbuckle lab fault dual-tor --restore
"""
METER_EXAMPLES = """
Examples:

  turnbuckle lab meter dual-tor

  turnbuckle lab meter dual-tor --fault blackhole --faults 10

  turnbuckle lab meter dual-tor --fault link-down --json | jq '.measurements[].outages'
"""


def up_command(  # noqa: PLR0913 - a command's options are its parameters
    *,
    prefix: PrefixOption = "tb",
    hosts: Annotated[int, typer.Option("--hosts", min=2, max=4, help="How many.")] = 2,
    bfd: Annotated[str, typer.Option("--bfd", metavar="MSxN|off", help="Interval in ms and multiplier.")] = "50x3",
    no_realtime: Annotated[bool, typer.Option("--no-realtime", help="Run FRR at normal priority.")] = False,
    fast_path: Annotated[bool, typer.Option("--fast-path", help="Run the fast path on every host.")] = False,
    reconciler: Annotated[
        bool, typer.Option("--reconciler", help="Run a reconciler for every host; the kernel needs cls_flower.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Build hosts and switches, and wait until every application reaches every other over both uplinks.

    It stays until `turnbuckle lab down`. The application of host N lives in namespace PREFIX-aN with 172.16.0.N.
    """
    from services.fabric.testbed.lab import Lab  # noqa: PLC0415 - quick --help

    given = {"prefix": prefix, "hosts": hosts, "realtime": not no_realtime}
    settings = _settings({**given, "fast_path": fast_path, "reconciler": reconciler}, bfd)
    lab = Lab.up(settings, print_note)
    if as_json:
        print_json(lab.status())
    else:
        stdout_console().print(f"lab {prefix}: {hosts} hosts, ready after {lab.ready_after_s:.1f} s")
        stdout_console().print(f"try: ip netns exec {lab.topology.hosts[0].application_netns} ping -c 3 172.16.0.2")


def dumbbell_command(
    *,
    prefix: DumbbellPrefixOption = DUMBBELL_PREFIX,
    pairs: Annotated[int, typer.Option("--pairs", min=1, max=16, help="Of hosts, left and right.")] = 2,
    rate: Annotated[
        str, typer.Option("--rate", metavar="RATE", help="Of the uplink that all pairs share.")
    ] = "100Mbit",
    as_json: JsonOption = False,
) -> None:
    """Build pairs of hosts whose traffic shares one uplink, without FRR, and print commands to try.

    It stays until `turnbuckle lab down dumbbell`. Hosts are the namespaces PREFIX-l1, PREFIX-r1 and so on.
    """
    from services.fabric.testbed import dumbbell  # noqa: PLC0415 - quick --help

    try:
        settings = dumbbell.DumbbellSettings(prefix=prefix, pairs=pairs, bits_per_s=parse_rate(rate))
        summary = dumbbell.up(settings)
    except ValidationError as error:
        first = error.errors()[0]
        raise typer.BadParameter(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--rate") from error
    if as_json:
        print_json({"namespaces": settings.namespaces, "commands": settings.commands()})
        return
    for line in (summary, "try:", *(f"  {command}" for command in settings.commands())):
        print(line)  # noqa: T201 - to be copied: not wrapped at the terminal's width


def down_command(
    topology: Annotated[LabName, typer.Argument(metavar="dual-tor|dumbbell", help="The topology.")],
    *,
    prefix: Annotated[str, typer.Option("--prefix", help="Default: tb, of a dumbbell db.")] = "",
    as_json: JsonOption = False,
) -> None:
    """Remove the lab, also one that is left over from a crash. What it has not made is left alone, and named."""
    chosen = prefix or (DUMBBELL_PREFIX if topology is LabName.DUMBBELL else DEFAULT_PREFIX)
    left = _remove(topology, chosen)
    for line in left or ():
        print_note(line)
    if as_json:
        print_json({"removed": left is not None, "left": left or []})
    elif left is None:
        print_note(f"there is no {'dumbbell' if topology is LabName.DUMBBELL else 'lab'} {chosen}")


def _remove(topology: LabName, prefix: str) -> list[str] | None:
    """What had to be left; None: there is no such lab."""
    from services.fabric.testbed import build, dumbbell, state_file  # noqa: PLC0415 - quick --help

    if topology is LabName.DUMBBELL:
        return dumbbell.down(prefix)
    with state_file.lock_lab(prefix):
        state = state_file.load(prefix)
        return None if state is None else build.remove(state, print_note)


def status_command(topology: TopologyArgument, *, prefix: PrefixOption = "tb", as_json: JsonOption = False) -> None:  # noqa: ARG001 - there is one topology
    """Show paths, daemons and faults of the lab."""
    from services.fabric.testbed.lab import Lab  # noqa: PLC0415 - quick --help

    status = Lab.attach(prefix).status()
    if as_json:
        print_json(status)
        return
    console = stdout_console()
    console.print(f"lab {prefix}: {status['hosts']} hosts, BFD {status['bfd']}, FRR {status['scheduling']}")
    for path in status["paths"]:
        colour = "green" if path["uplinks"] == ["p1", "p2"] else "yellow" if path["uplinks"] else "red"
        console.print(f"  {path['from']}->{path['to']}  [{colour}]{' '.join(path['uplinks']) or 'no route'}[/]")
    for netns, daemons in status["daemons"].items():
        console.print(f"  {netns}  {' '.join(daemons) or '[red]no daemon runs[/]'}")
    for name, lives in status["companions"].items():
        console.print(f"  {name}  {'[green]runs[/]' if lives else '[red]has ended[/]'}")
    if status["deaf"]:
        console.print(f"[red]no packet gets through:[/] {', '.join(status['deaf'])}")
    console.print("faults: " + (", ".join(status["faults"]) or "none"))


def fault_command(  # noqa: PLR0913 - a command's options are its parameters
    topology: TopologyArgument,  # noqa: ARG001 - there is one
    kind: Annotated[FaultKind | None, typer.Argument(help="What breaks.", show_default=False)] = None,
    *,
    prefix: PrefixOption = "tb",
    host: Annotated[int, typer.Option("--host", min=1, help="Whose link.")] = 1,
    switch: Annotated[int, typer.Option("--switch", min=1, max=2, help="At which switch.")] = 1,
    direction: Annotated[Direction, typer.Option("--direction", help="What a blackhole swallows.")] = Direction.BOTH,
    seconds: Annotated[float | None, typer.Option("--for", min=0.01, metavar="SECONDS", help="Then restore.")] = None,
    every: Annotated[
        float | None, typer.Option("--every", min=0.02, metavar="SECONDS", help="Again and again.")
    ] = None,
    times: Annotated[int | None, typer.Option("--times", min=1, help="How often; else until Ctrl-C.")] = None,
    alternate: Annotated[bool, typer.Option("--alternate", help="At both switches in turn.")] = False,
    restore: Annotated[bool, typer.Option("--restore", help="Restore KIND there, or without KIND everything.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Break something at the switches, for a while or until --restore.

    Ctrl-C restores what is broken at that moment.
    """
    from services.fabric.testbed.lab import Lab  # noqa: PLC0415 - quick --help
    from services.fabric.testbed.schedule import FaultTiming  # noqa: PLC0415

    again = every is not None or times is not None or alternate
    if kind is None and not restore:
        raise typer.BadParameter(f"name the fault: {', '.join(FaultKind)}; or --restore", param_hint="KIND")
    if seconds is None and again:
        raise typer.BadParameter("--every, --times and --alternate need --for", param_hint="--for")
    if every is not None and seconds is not None and every <= seconds:
        raise typer.BadParameter("must be longer than --for", param_hint="--every")
    lab = Lab.attach(prefix)
    fault = None if kind is None else Fault(kind=kind, host=host, switch=switch, direction=direction)
    occurrences: list[Occurrence] = []
    try:
        if restore or fault is None:
            lab.restore(fault)
        elif seconds is None:
            lab.inject(fault)
        else:
            timing = FaultTiming(seconds, (every or 2 * seconds) - seconds, 0.0, times if again else 1)
            occurrences = _run_schedule(lab, alternating(fault) if alternate else repeat(fault), timing)
    except ValueError as error:
        raise CommandError(str(error)) from error
    if as_json:
        ended = [{**asdict(one), "fault": str(one.fault)} for one in occurrences]
        print_json({"in_force": [str(one) for one in lab.faults], "occurrences": ended})


def meter_command(  # noqa: PLR0913 - a command's options are its parameters
    topology: TopologyArgument,  # noqa: ARG001 - there is one
    *,
    prefix: PrefixOption = "tb",
    kind: Annotated[FaultKind | None, typer.Option("--fault", help="What breaks; else only the floor.")] = None,
    direction: Annotated[Direction, typer.Option("--direction", help="What a blackhole swallows.")] = Direction.BOTH,
    count: Annotated[int, typer.Option("--faults", min=1, help="How many.")] = 4,
    down_s: Annotated[float, typer.Option("--down", min=0.1, help="Seconds that each lasts.")] = 2.0,
    seconds: Annotated[float, typer.Option("--for", min=0.5, help="Length without --fault.")] = 5.0,
    flows: Annotated[int, typer.Option("--flows", min=1, max=64, help="Each way.")] = 6,
    rate_hz: Annotated[int, typer.Option("--rate", min=10, max=2_000, help="Packets per second of a flow.")] = 500,
    as_json: JsonOption = False,
) -> None:
    """Send numbered datagrams between the applications of hosts 1 and 2, both ways, and time how long they stand still.

    A fault is made where the traffic is, out and in turn. An outage is the longest interval between the sending of two
    successive packets that arrived; the floor is what is shown without a fault.
    """
    from services.fabric.testbed.lab import Lab  # noqa: PLC0415 - quick --help
    from services.fabric.testbed.meter import OutageMeter, measure_faults, measure_floor, plain  # noqa: PLC0415

    lab = Lab.attach(prefix)
    with OutageMeter(lab, flows=flows, rate_hz=rate_hz) as meter:
        floor = measure_floor(meter, seconds if kind is None else 1.0)
        measurements = [] if kind is None else measure_faults(meter, kind, direction, count, down_s, print_note)
        result = plain(meter, floor, measurements)
    if as_json:
        print_json(result)
        return
    for line in result["summary"]:
        stdout_console().print(line)


def _settings(given: dict[str, Any], bfd: str) -> LabSettings:
    try:
        return LabSettings(**given, bfd=None if bfd == "off" else Bfd.parse(bfd))
    except ValidationError as error:
        first = error.errors()[0]
        raise typer.BadParameter(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--bfd") from error


def _run_schedule(lab: Any, series: Iterator[Fault], timing: Any) -> list[Occurrence]:
    from services.fabric.testbed.schedule import FaultSchedule  # noqa: PLC0415 - quick --help

    schedule = FaultSchedule(lab, series, timing, print_note)
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: schedule.stop())
    schedule.run()
    print_note(f"{len(schedule.occurrences)} faults, all restored")
    return schedule.occurrences


up_app.command("dual-tor", epilog=UP_EXAMPLES)(up_command)
up_app.command("dumbbell", epilog=DUMBBELL_EXAMPLES)(dumbbell_command)
lab_app.add_typer(up_app, name="up", help="Build a network.", epilog=UP_EXAMPLES + DUMBBELL_EXAMPLES)
for _name, _command, _examples in (
    ("down", down_command, DOWN_EXAMPLES),
    ("status", status_command, STATUS_EXAMPLES),
    ("fault", fault_command, FAULT_EXAMPLES),
    ("meter", meter_command, METER_EXAMPLES),
):
    lab_app.command(_name, epilog=_examples)(_command)
