"""Reading Python source for the tidy rules: parse once, resolve what an expression names."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property


@dataclass(frozen=True)
class Finding:
    line: int
    message: str


@dataclass
class Source:
    """One file: its path from the root of the project, and its text."""

    path: str
    text: str
    lines: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self.lines = self.text.splitlines()

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.path)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.tree))

    @cached_property
    def imported(self) -> dict[str, str]:
        """Local name -> the full dotted name it stands for."""
        names: dict[str, str] = {}
        for node in self.nodes:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    local = alias.asname or alias.name.partition(".")[0]
                    names[local] = alias.name if alias.asname else local
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for alias in node.names:
                    names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        return names

    def full_name(self, node: ast.expr) -> str | None:
        """``dt.now`` under ``from datetime import datetime as dt`` is ``datetime.datetime.now``."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or node.id not in self.imported:
            return None
        return ".".join([self.imported[node.id], *reversed(parts)])

    def named(self) -> Iterator[tuple[ast.expr, str]]:
        """Every expression that names something imported, with its full name."""
        for node in self.nodes:
            if isinstance(node, ast.Attribute | ast.Name) and (name := self.full_name(node)):
                yield node, name
