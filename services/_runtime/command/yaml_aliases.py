"""YAML whose aliases are bounded: a few lines can otherwise stand for billions of values ("billion laughs")."""

from __future__ import annotations

from typing import Any, Final

import yaml

MAX_VALUES: Final = 10_000
"""Values that a file with aliases may stand for, each alias counted as all that it stands for."""


class BoundedLoader(yaml.SafeLoader):
    """A SafeLoader for files of people; the check costs one addition per value, and comes before any expansion."""

    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self._values = 0
        self._sizes: dict[int, int] = {}
        """By identity of a composed node: the values that it stands for."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """As PyYAML's; raises ComposerError at an alias that is too much, or that stands inside of its own value."""
        if not self.check_event(yaml.AliasEvent):
            before = self._values
            self._values += 1
            node = super().compose_node(parent, index)
            self._sizes[id(node)] = self._values - before
            return node
        event = self.peek_event()  # type: ignore[no-untyped-call]  # in the stubs
        node = super().compose_node(parent, index)
        if (size := self._sizes.get(id(node))) is None:
            problem = f"the alias *{event.anchor} stands inside of the value that it stands for"
            raise yaml.composer.ComposerError(None, None, problem, event.start_mark)
        self._values += size
        if self._values > MAX_VALUES:
            problem = f"with the alias *{event.anchor} the file stands for more than {MAX_VALUES} values"
            raise yaml.composer.ComposerError(None, None, problem, event.start_mark)
        return node


def describe_yaml_error(error: Exception, file: str) -> str:
    """``app.yaml:7: not valid YAML: ...``, in one line."""
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        place = f"{file}:{mark.line + 1}" if mark else file
        hint = " (YAML is indented with spaces, not tabs)" if "\\t" in str(error.problem) else ""
        return f"{place}: not valid YAML: {error.problem or error.context}{hint}"
    if isinstance(error, RecursionError):
        return f"{file}: not valid YAML: nested too deeply"
    return f"{file}: not valid YAML: {(str(error).splitlines() or ['unknown'])[0]}"
