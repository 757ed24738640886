"""`turnbuckle rules NODE` and `turnbuckle paths [NODE]`: what a reconciler has installed, and whether paths agree."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Annotated, Final, TypeVar

import typer
from rich.markup import escape
from rich.table import Table

from schemas.codec import to_plain
from schemas.message import Message
from schemas.network import (
    DiffReply,
    DiffRequest,
    NetworkStateReply,
    NetworkStateRequest,
    RulesReply,
    RulesRequest,
    RuleState,
)
from schemas.streams import TC_STREAM
from schemas.subjects import RECONCILER_DIFF, RECONCILER_RULES, RECONCILER_STATE, TC_EVENTS, SubjectTemplate
from services._runtime.bus.api import Delivery, NoResponderError, RequestRefusedError, RequestTimeoutError
from services._runtime.bus.nats import NatsBus
from services._runtime.bus.nats_history import read_stored
from services._runtime.bus.options import BusOptions
from services._runtime.command.connection import QUERY_TIMEOUT_S, ContextOption, ServerOption, connected, find_server
from services._runtime.command.errors import CommandError, UnavailableError
from services._runtime.command.output import print_json, print_note, stdout_console
from services.cli.network.lines import operation_line
from services.reconciler.commands import start_command

RULES_EXAMPLES: Final = """
Examples:

  turnbuckle rules gpu-07

  turnbuckle rules gpu-07 --device rep0 --json | jq '.rules[] | select(.in_hw == false)'

  turnbuckle rules gpu-07 --diff
"""
PATHS_EXAMPLES: Final = """
Examples:

  turnbuckle paths

  turnbuckle paths gpu-07

  turnbuckle paths --json | jq '.[].paths[] | select(.agree | not)'
"""
_PAGE: Final = 3_000
_LISTED: Final = 50
"""Rules and operations that a table shows where no --limit is given."""
ReplyT = TypeVar("ReplyT", bound=Message)

NodeArgument = Annotated[str, typer.Argument(help="Name of the node, as its reconciler has it.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def rules_command(  # noqa: PLR0913 - a command's options are its parameters
    node: NodeArgument,
    *,
    device: Annotated[str | None, typer.Option("--device", "-d", help="Only this port.")] = None,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="List at most so many rules.")] = None,
    diff: Annotated[bool, typer.Option("--diff", help="What would be written now; nothing is.")] = False,
    as_json: JsonOption = False,
    server: ServerOption = None,
    context: ContextOption = None,
) -> None:
    """List the tc rules on NODE's managed ports: whose packets go to which VTEP, and whether the NIC has them.

    Unmanaged rules on the same ports are listed last. Exit code 1 with --diff if the kernel differs from what it
    should hold.
    """
    options = find_server(server, context)
    if diff:
        difference = asyncio.run(_query_diff(options, node))
        print_json(to_plain(difference)) if as_json else _print_diff(difference)
        if difference.total:
            raise typer.Exit(1)
        return
    most = limit or (None if as_json else _LISTED)
    reply = asyncio.run(_query_rules(options, node, device, most))
    print_json(to_plain(reply)) if as_json else _print_rules(reply)


def paths_command(
    node: Annotated[str | None, typer.Argument(help="Only this node.")] = None,
    *,
    as_json: JsonOption = False,
    server: ServerOption = None,
    context: ContextOption = None,
) -> None:
    """Show each node's next hops to each VTEP as the kernel, FRR and BFD have them, and why rules are not in force.

    Without NODE it asks every node whose reconciler has told of rules in the last week. Exit code 1 where kernel, FRR
    and BFD disagree.
    """
    replies = asyncio.run(_query_paths(find_server(server, context), node))
    if as_json:
        print_json([to_plain(reply) for reply in replies])
    else:
        for reply in replies:
            _print_paths(reply)
    if any(path.reason and not path.agree for reply in replies for path in reply.paths):
        raise typer.Exit(1)


async def query_node(
    bus: NatsBus, template: SubjectTemplate, node: str, request: Message, reply_type: type[ReplyT]
) -> ReplyT:
    """Ask a node's reconciler.

    Raises:
        UnavailableError: nobody answers under this name.
        CommandError: it says why it cannot answer.
    """
    try:
        reply = await bus.request(template.subject(bus.root, node=node), request, timeout_s=QUERY_TIMEOUT_S)
    except NoResponderError as error:
        raise UnavailableError(f"no reconciler of node {node!r} answers: {start_command(node)}") from error
    except RequestTimeoutError as error:
        raise UnavailableError(f"the reconciler of {node!r} did not answer within {QUERY_TIMEOUT_S:g} s") from error
    except RequestRefusedError as error:
        raise CommandError(f"{node}: {error}") from error
    if not isinstance(reply, reply_type):
        raise CommandError(f"the reconciler answered with {reply.type_name}: are the versions the same?")
    return reply


async def _query_rules(options: BusOptions, node: str, device: str | None, most: int | None) -> RulesReply:
    async with connected(options) as bus:
        found: list[RuleState] = []
        while True:
            page = _PAGE if most is None else min(_PAGE, most - len(found))
            request = RulesRequest(device=device, limit=page, offset=len(found))
            reply = await query_node(bus, RECONCILER_RULES, node, request, RulesReply)
            found += reply.rules
            if not reply.rules or len(found) >= (reply.total if most is None else min(most, reply.total)):
                return RulesReply(node=reply.node, total=reply.total, rules=tuple(found))


async def _query_diff(options: BusOptions, node: str) -> DiffReply:
    async with connected(options) as bus:
        return await query_node(bus, RECONCILER_DIFF, node, DiffRequest(), DiffReply)


async def _query_paths(options: BusOptions, node: str | None) -> list[NetworkStateReply]:
    async with connected(options) as bus:
        if node is not None:
            return [await query_node(bus, RECONCILER_STATE, node, NetworkStateRequest(), NetworkStateReply)]
        replies = []
        for name in await _known_nodes(bus):
            try:
                replies.append(await query_node(bus, RECONCILER_STATE, name, NetworkStateRequest(), NetworkStateReply))
            except CommandError as error:
                print_note(str(error))
        if not replies:
            raise UnavailableError("no reconciler answers: start one: turnbuckle run reconciler")
        return replies


async def _known_nodes(bus: NatsBus) -> list[str]:
    """Nodes whose reconciler has published a reconcile result: each publishes its first one."""
    names: set[str] = set()

    def take(delivery: Delivery) -> None:
        names.add(TC_EVENTS.parse(bus.root, delivery.subject)["node"])

    await read_stored(bus, TC_STREAM, TC_EVENTS.pattern(bus.root), 0.0, take)
    return sorted(names)


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, no_wrap=True)
    return table


def _print_rules(reply: RulesReply) -> None:
    table = _table("device", "MAC", "VTEP", "VNI", "hardware", "pref", "handle", "note")
    for rule in reply.rules:
        cells = (rule.device, rule.mac, rule.vtep, str(rule.vni or ""), hardware(rule.in_hw), str(rule.pref))
        style = None if rule.managed and not rule.note else "yellow" if rule.managed else "dim"
        table.add_row(*map(escape, cells), f"{rule.handle:#x}", escape(rule.note), style=style)
    console = stdout_console()
    console.print(table)
    if len(reply.rules) < reply.total:
        console.print(f"{len(reply.rules)} of {reply.total} rules; --limit or --json lists more", style="dim")


def _print_diff(reply: DiffReply) -> None:
    console = stdout_console()
    style = "yellow" if reply.total else "green"
    console.print(
        f"{reply.node}: {reply.installed} of {reply.desired} rules are in sync; {reply.total} writes are due; "
        f"{reply.unmanaged} unmanaged rules",
        style=style,
    )
    for operation in reply.operations[:_LISTED]:
        console.print(escape(f"  {operation_line(operation)}"))
    if reply.total > _LISTED:
        console.print(f"  and {reply.total - _LISTED} more", style="dim")
    if reply.problem:
        console.print(escape(reply.problem), style="red")


def _print_paths(reply: NetworkStateReply) -> None:
    console = stdout_console()
    console.print(
        escape(
            f"{reply.node}: {reply.installed} rules ({reply.in_hw} in hardware, {reply.not_in_hw} not; "
            f"offload {reply.offload}), {reply.macs} MACs behind {len(reply.vteps)} VTEPs, {reply.writes} writes"
        ),
        style="bold",
    )
    for problem in reply.problems:
        console.print(escape(f"  {problem}"), style="red")
    if reply.drained:
        console.print(escape(f"  drained: {', '.join(reply.drained)} (turnbuckle fabric drain --undo)"), style="yellow")
    table = _table("destination", "kernel", "FRR", "BFD up", "override", "")
    for path in reply.paths:
        frr, bfd = (_hops(hops) if hops is not None else "?" for hops in (path.frr, path.bfd_up))
        consistency = "[green]agree[/]" if path.agree else f"[red]{escape(path.reason)}[/]"
        consistency += f" [yellow]suspect: {escape(path.suspect)}[/]" if path.suspect else ""
        cells = (path.destination, _hops(path.kernel), frr, bfd, _hops(path.override))
        table.add_row(*map(escape, cells), consistency)
    if reply.paths:
        console.print(table)


def hardware(in_hw: bool | None) -> str:
    """Where a rule is."""
    return {True: "in_hw", False: "not_in_hw", None: ""}[in_hw]


def _hops(hops: Iterable[str]) -> str:
    """Next hops without the gateway that FRR gives every unnumbered link."""
    return " ".join(hop.removeprefix("169.254.0.1@") for hop in hops)
