"""Which types of the code stand for something that acts: a handle, a host, a store, a bus, a socket, a file, a clock.

Derived from syntax trees, not from names. A definition acts where its code

- uses a module that acts (`Modules.acting`), calls ``open`` or awaits;
- uses another definition that acts: calls it, inherits from it, or has it in an annotation of a field or parameter.

Class methods and static methods do not count: reading a file, they make values. Errors never count. A Protocol acts
where a class that acts has all its methods, with the same parameters.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

Function = ast.FunctionDef | ast.AsyncFunctionDef
_MAKES_VALUES = frozenset({"classmethod", "staticmethod"})


class Use(NamedTuple):
    """An annotation that names a type which acts."""

    line: int
    name: str
    """Of the parameter or field."""
    type_name: str


@dataclass(frozen=True)
class Module:
    """One source file."""

    name: str
    tree: ast.Module

    @cached_property
    def imports(self) -> Mapping[str, str]:
        """What a name stands for that was imported anywhere in the file."""
        found: dict[str, str] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                found |= {each.asname or each.name: f"{node.module}.{each.name}" for each in node.names}
            elif isinstance(node, ast.Import):
                for each in node.names:
                    root = each.name.partition(".")[0]
                    found[each.asname or root] = each.name if each.asname else root
        return found

    @cached_property
    def definitions(self) -> Mapping[str, ast.stmt]:
        """Classes, functions, and names that stand for an expression, such as a union of types."""
        found: dict[str, ast.stmt] = {}
        for node in self.tree.body:
            match node:
                case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    found[name] = node
                case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                    found[name] = node
        return found

    def names_in(self, node: ast.AST) -> Iterator[str]:
        """Full names of what an expression or definition uses."""
        for each in ast.walk(node):
            if isinstance(each, ast.Name | ast.Attribute) and (dotted := _dotted(each)):
                root, _, rest = dotted.partition(".")
                if root in self.definitions:
                    yield f"{self.name}.{dotted}"
                elif root in self.imports:
                    yield f"{self.imports[root]}.{rest}".rstrip(".")


class Modules:
    """The modules of a program, and which of their definitions act."""

    def __init__(self, trees: Iterable[tuple[str, ast.Module]], acting: Iterable[str]) -> None:
        """`acting`: modules, or names in modules, of which every use is an effect."""
        self._modules = [Module(name, tree) for name, tree in trees]
        self._acting = frozenset(acting)
        self._all = {
            f"{each.name}.{name}": (each, node) for each in self._modules for name, node in each.definitions.items()
        }
        self._found = self._spread()

    def acts(self, name: str) -> bool:
        """Whether a full name is that of a definition, or of a library's part, that acts."""
        return name in self._found or self._is_of_a_library(name)

    def uses(self, module: str, node: ast.AST) -> list[Use]:
        """Parameters and fields inside of a module, class or function whose annotation names what acts."""
        within = next(each for each in self._modules if each.name == module)
        return sorted(
            Use(annotation.lineno, name, found)
            for name, annotation in _annotations(node)
            for found in within.names_in(annotation)
            if self.acts(found)
        )

    def _is_of_a_library(self, name: str) -> bool:
        parts = name.split(".")
        return any(".".join(parts[:end]) in self._acting for end in range(1, len(parts) + 1))

    def _spread(self) -> set[str]:
        """From what acts by itself to all that uses it."""
        users: defaultdict[str, list[str]] = defaultdict(list)
        waiting = []
        for name, (module, node) in self._all.items():
            if name.endswith("Error"):
                continue
            for part in _own_code(node):
                used = set(module.names_in(part))
                if _opens_or_awaits(part) or any(self._is_of_a_library(each) for each in used):
                    waiting.append(name)
                for each in used:
                    users[each].append(name)
                    users[each.rpartition(".")[0]].append(name)  # a method of it, or a member
        found: set[str] = set()
        protocols = {name: _signatures(node) for name, (_, node) in self._all.items() if _is_protocol(node)}
        while waiting:
            name = waiting.pop()
            if name in found:
                continue
            found.add(name)
            waiting += users[name]
            given = _signatures(self._all[name][1])
            waiting += [other for other, asked in protocols.items() if asked and asked.items() <= given.items()]
        return found


def _dotted(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=name) if base := _dotted(value):
            return f"{base}.{name}"
    return ""


def _own_code(node: ast.stmt) -> Iterator[ast.AST]:
    """Of a class: its bases, fields and methods."""
    if not isinstance(node, ast.ClassDef):
        yield node
        return
    yield from node.bases
    for each in node.body:
        if isinstance(each, Function):
            if not _MAKES_VALUES & {_dotted(decorator) for decorator in each.decorator_list}:
                yield each
        elif isinstance(each, ast.AnnAssign):
            yield each


def _opens_or_awaits(node: ast.AST) -> bool:
    return any(
        isinstance(each, ast.Await | ast.AsyncFunctionDef)
        or (isinstance(each, ast.Call) and isinstance(each.func, ast.Name) and each.func.id == "open")
        for each in ast.walk(node)
    )


def _is_protocol(node: ast.stmt) -> bool:
    if not isinstance(node, ast.ClassDef):
        return False
    bases = (base.value if isinstance(base, ast.Subscript) else base for base in node.bases)
    return any(_dotted(base).rpartition(".")[2] == "Protocol" for base in bases)


def _signatures(node: ast.stmt) -> dict[str, tuple[bool, tuple[str, ...]]]:
    """Public methods of a class: whether each is a coroutine, and its parameters."""
    if not isinstance(node, ast.ClassDef):
        return {}
    return {
        each.name: (isinstance(each, ast.AsyncFunctionDef), tuple(one.arg for one in _arguments(each)))
        for each in node.body
        if isinstance(each, Function) and not each.name.startswith("_")
    }


def _arguments(function: Function) -> list[ast.arg]:
    given = function.args
    every = [*given.posonlyargs, *given.args, given.vararg, *given.kwonlyargs, given.kwarg]
    return [each for each in every if each is not None]


def _annotations(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    for each in ast.walk(node):
        if isinstance(each, Function):
            yield from ((one.arg, one.annotation) for one in _arguments(each) if one.annotation is not None)
        elif isinstance(each, ast.ClassDef):
            for field in each.body:
                if isinstance(field, ast.AnnAssign):
                    yield ast.unparse(field.target), field.annotation
