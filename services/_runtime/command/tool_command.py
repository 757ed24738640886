"""Commands that pass their arguments to a tool, with help and completion from the tool's own description.

The tool describes its options only for ``--help`` and shell completion (`ToolParser`).
"""

from __future__ import annotations

import inspect
import json
import subprocess
from collections.abc import Callable
from functools import cache
from typing import Annotated, Any, ClassVar, Final

import typer
from rich.markup import escape
from typer.core import TyperCommand

from services._runtime.command.passthrough import PassthroughCommand
from services._runtime.command.tool_parser import DESCRIBE
from services._runtime.command.tool_shell import Tool, run_tool
from services._runtime.exit_code import JSON_OPTION

_JSON_HELP: Final = "Print JSON, one object a line."


class ToolCommand(PassthroughCommand):
    """A `PassthroughCommand` whose help is rendered as that of any other command."""

    tool: ClassVar[Tool]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep the arguments as they are; ``--help`` before a ``--`` shows the help and ends."""
        before = args[: args.index("--")] if "--" in args else args
        if {"-h", "--help"} & set(before) and not ctx.resilient_parsing:
            self.add_description()
            typer.echo(ctx.get_help())
            ctx.exit()
        return super().parse_args(ctx, args)

    def get_params(self, ctx: Any) -> list[Any]:
        """The tool's options, and ``--json`` and ``--help`` of this command."""
        own = [param for param in describe(self.tool)["params"] if param["name"] != "json"]
        return [*_click_command(own).params, *super().get_params(ctx)]

    def add_description(self) -> None:
        """Add to the sentence of the list what the tool has to say beyond its options."""
        self.help = "\n\n".join(filter(None, (self.tool.summary, escape(describe(self.tool)["about"]))))


@cache
def describe(tool: Tool) -> dict[str, Any]:
    """The tool's options; where it does not start, only the reason."""
    command = tool.describing(DESCRIBE)
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own tools
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
        return {"about": f"Its options cannot be shown here: {last}", "params": [], "commands": {}}
    found: dict[str, Any] = json.loads(done.stdout)
    for name in tool.first:
        found = found["commands"][name]
    return found


def add_tool(app: typer.Typer, tool: Tool, name: str, panel: str | None = None) -> None:
    """Make a tool a command of an application or group, under a heading of its list."""
    command_class = type(f"{name.title()}Command", (ToolCommand,), {"tool": tool})
    command = app.command(name, cls=command_class, help=tool.summary, epilog=examples_text(tool), rich_help_panel=panel)
    command(_runner(tool))


def examples_text(tool: Tool) -> str:
    """The end of its help."""
    return "\nExamples:\n" + "".join(f"\n  turnbuckle {line}\n" for line in tool.examples)


def single_command(tool: Tool) -> Any:
    """A tool as a click command of its own."""
    made = typer.Typer(add_completion=False, rich_markup_mode="rich")
    add_tool(made, tool, tool.name)
    return typer.main.get_command(made)


def command_group(text: str, *tools: Tool) -> typer.Typer:
    """Several tools as sub-commands, each under the first word of its arguments."""
    epilog = "\nExamples:\n" + "".join(examples_text(tool).partition("Examples:\n")[2] for tool in tools)
    made = typer.Typer(help=text, epilog=epilog, no_args_is_help=True, rich_markup_mode="rich")
    for tool in tools:
        add_tool(made, tool, tool.first[0])
    return made


def _runner(tool: Tool) -> Callable[[typer.Context], None]:
    def run(ctx: typer.Context) -> None:
        raise typer.Exit(run_tool(tool, ctx.args))

    return run


def _click_command(params: list[dict[str, Any]]) -> TyperCommand:
    """A command that has these parameters, made by typer's own means: a function with their signature."""

    def taken(**_: Any) -> None: ...

    given = [_parameter(param) for param in params]
    json_option = typer.Option(JSON_OPTION, help=_JSON_HELP)
    given.append(
        inspect.Parameter(
            "json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Annotated[bool, json_option]
        )
    )
    taken.__signature__ = inspect.Signature(given)  # type: ignore[attr-defined]
    taken.__annotations__ = {one.name: one.annotation for one in given}
    made = typer.Typer(add_completion=False)
    made.command()(taken)
    command = typer.main.get_command(made)
    assert isinstance(command, TyperCommand)
    return command


def _parameter(param: dict[str, Any]) -> inspect.Parameter:
    kind: Any = str if param["takes_value"] else bool
    shown: dict[str, Any] = {"help": escape(param["help"]), "show_default": False}
    if param["takes_value"]:
        shown["metavar"] = "|".join(param["choices"]) or param["metavar"]
    declaration = typer.Option(*param["flags"], **shown) if param["flags"] else typer.Argument(**shown)
    default: Any = inspect.Parameter.empty if param["required"] else None if param["takes_value"] else False
    optional = param["takes_value"] and not param["required"]
    annotation: Any = Annotated[kind | None, declaration] if optional else Annotated[kind, declaration]
    return inspect.Parameter(param["name"], inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
