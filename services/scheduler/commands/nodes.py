"""`turnbuckle jobs nodes`: the nodes that jobs run on."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from schemas.codec import to_plain
from schemas.scheduling import QueueReply, QueueRequest
from schemas.services.scheduler import SCHEDULER_QUEUE
from services._runtime.command.connection import ContextOption, ServerOption
from services._runtime.command.output import print_json, stdout_console
from services.scheduler.commands.asking import ask_once
from services.scheduler.commands.queue_view import node_table, slots_held

EXAMPLES: Final = """
Examples:

  turnbuckle jobs nodes

  turnbuckle jobs nodes --json | jq '.[] | select(.silent) | .node'
"""


def nodes_command(
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    server: ServerOption = None,
    context: ContextOption = None,
) -> None:
    """List the nodes: slots, which jobs hold them, and why nothing is started on one."""
    reply = ask_once((server, context), SCHEDULER_QUEUE, QueueRequest(ended_within_s=0), QueueReply)
    if as_json:
        held = slots_held(reply.jobs)
        print_json([to_plain(node) | {"jobs": dict(held.get(node.node, {}))} for node in reply.nodes])
        return
    stdout_console().print(node_table(reply))
