"""Generates ``holdfast/platform/blocking.pyi``: what ``holdfast.connect`` gives, for type checkers.

    python -m tests.tidy.blocking          writes the file anew

At run time a view awaits whatever a method returns (``base/portal``). Type checkers need that said for each method: a
coroutine gives its result, an async iterator is an iterator, an async context manager is a context manager, and an
object with such methods is a view in turn. All of it is derived from the source of the classes, whose public methods
are listed below where not all of them are meant for users.
"""

import ast
import builtins
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.tidy.tree import ROOT

SOURCE = ROOT / "src" / "holdfast"
TARGET = SOURCE / "platform" / "blocking.pyi"

HEAD = '''"""What ``holdfast.connect`` gives, for type checkers.

Written by ``python -m tests.tidy.blocking``: do not edit. At run time these are views of the async objects of like
names: see ``base/portal``.
"""

'''

CALL = """
    @overload
    def call(self, function: Callable[..., Awaitable[T]], *args: Any, **kwargs: Any) -> T: ...
    @overload
    def call(self, function: Callable[..., AsyncIterator[T]], *args: Any, **kwargs: Any) -> Iterator[T]: ...
    @overload
    def call(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T: ...
"""
HANDS = {
    "Client": "    usage: Usage\n",
    "Holdfast": f"    store: BlockingClient\n    settings: Settings\n{CALL}"
    "    def __enter__(self) -> Self: ...\n    def __exit__(self, *details: object) -> None: ...\n",
}


@dataclass(frozen=True)
class Kind:
    """One class. ``public`` are its methods for users; all that have no underscore, if there are none."""

    module: str
    name: str
    public: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    bases: str = ""
    """Of the generated class."""


KINDS = (
    Kind("objects/store.py", "Store", ("find", "keys")),
    Kind(
        "objects/client.py",
        "Client",
        ("get", "get_unless", "head", "range", "put", "delete", "delete_many", "list", "close"),
        bases="BlockingStore",
    ),
    Kind("objects/register.py", "Register", ("read", "edit"), bases="Generic[T]"),
    Kind("objects/lease.py", "Lease", ("acquire", "try_acquire", "renew", "hand_over", "release", "guard", "hold")),
    Kind("ontology/feed.py", "Feed", ("__aiter__", "arrow", "changes", "follow")),
    Kind("ontology/query/aggregation.py", "Grouped", ("having", "agg"), bases="Generic[M]"),
    Kind("ontology/query/query.py", "Query", left_out=("info",), bases="Generic[M]"),
    Kind(
        "ontology/session.py",
        "Ontology",
        (
            "ensure",
            "retract",
            "pending",
            "discard",
            "commit",
            "register",
            "migrate",
            "query",
            "get",
            "all",
            "changes",
            "info",
            "flush",
            "close",
            "__aenter__",
            "__aexit__",
        ),
    ),
    Kind("platform/session.py", "Session", ("emit",), bases="BlockingOntology"),
    Kind("bus/worker/runner.py", "Runner", ("run", "drain")),
    Kind("bus/bus.py", "Bus"),
    Kind("telemetry/query/metrics.py", "Metrics"),
    Kind("telemetry/query/logs.py", "Logs"),
    Kind("platform/open.py", "Holdfast", left_out=("call",)),
)
VIEWS = {kind.name for kind in KINDS}


def generated() -> str:
    """The text of the module, formatted."""
    lines: dict[str, str] = {}
    classes: list[str] = []
    for kind in KINDS:
        tree = ast.parse((SOURCE / kind.module).read_text(encoding="utf-8"))
        made = next(node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == kind.name)
        methods = list(_public(made, kind))
        body = HANDS.get(kind.name, "") + "".join(map(_method, methods))
        found = ast.parse(f"class Blocking{kind.name}{f'({kind.bases})' if kind.bases else ''}:\n{body}")
        imports = _imports(tree, kind.module)
        for node in ast.walk(found):
            if isinstance(node, ast.Name):
                node.id = _named(node.id, kind, {each.name for each in methods}, imports, lines)
        classes.append(ast.unparse(found))
    text = "\n\n".join(classes)
    bounds = {"T": "", "M": ", bound=Mixin", "L": ", bound=Entity", "R": ", bound=Entity"}
    body = "\n".join(f'{name} = TypeVar("{name}"{bound})' for name, bound in bounds.items())
    extra = (
        "import builtins\n"
        "from collections.abc import AsyncIterator, Awaitable, Callable, Iterator\n"
        "from contextlib import AbstractContextManager\n"
        "from typing import Any, Generic, Literal, Self, TypeVar, overload\n"
        "from holdfast.ontology.types.model import Entity, Mixin\n"
    )
    return _formatted(f"{HEAD}\n{extra}" + "\n".join(sorted(lines.values())) + f"\n\n{body}\n\n" + text)


def _named(name: str, kind: Kind, methods: set[str], imports: dict[str, str], lines: dict[str, str]) -> str:
    """A name of an annotation as the stub has it; what it imports is noted in ``lines``."""
    if name in methods and hasattr(builtins, name):
        return f"builtins.{name}"  # a method of this name hides it
    if name not in imports:
        return name
    if lines.setdefault(name, imports[name]) == imports[name]:
        return name
    lines[f"{kind.name}{name}"] = f"{imports[name]} as {kind.name}{name}"  # two modules have something of this name
    return f"{kind.name}{name}"


def _public(made: ast.ClassDef, kind: Kind) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    seen: set[str] = set()
    """Overloaded: a stub has no implementation."""
    for node in made.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            wanted = node.name in kind.public if kind.public else not node.name.startswith("_")
            overloaded = any(ast.unparse(each) == "overload" for each in node.decorator_list)
            if wanted and node.name not in kind.left_out and (overloaded or node.name not in seen):
                yield node
            seen |= {node.name} if overloaded else set()


def _method(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    decorators = [ast.unparse(each) for each in node.decorator_list]
    returns = _text(node.returns)
    if node.name == "__aiter__":
        name = "__iter__"
    else:
        name = {"__aenter__": "__enter__", "__aexit__": "__exit__"}.get(node.name, node.name)
    if "asynccontextmanager" in decorators:
        returns = returns.replace("AsyncIterator[", "AbstractContextManager[", 1)
    returns = returns.replace("AbstractAsyncContextManager[", "AbstractContextManager[").replace(
        "AsyncIterator[", "Iterator["
    )
    kept = [f"    @{each}\n" for each in decorators if each in ("property", "overload")]
    arguments = node.args
    arguments.defaults = [ast.Constant(...) for _ in arguments.defaults]
    arguments.kw_defaults = [ast.Constant(...) if each is not None else None for each in arguments.kw_defaults]
    for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg):
        if each is not None and each.annotation is not None:
            each.annotation = ast.parse(
                _viewed(_text(each.annotation)) if each.arg == "self" else _text(each.annotation), mode="eval"
            ).body
    return "".join(kept) + f"    def {name}({ast.unparse(arguments)}) -> {_viewed(returns)}: ...\n"


def _text(annotation: ast.expr | None) -> str:
    """An annotation without the quotes around its names."""
    if annotation is None:
        return "None"

    class Unquoted(ast.NodeTransformer):
        def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
            if isinstance(node.value, ast.Name) and node.value.id == "Literal":
                return node
            self.generic_visit(node)
            return node

        def visit_Constant(self, node: ast.Constant) -> ast.expr:
            return ast.parse(node.value, mode="eval").body if isinstance(node.value, str) else node

    return ast.unparse(Unquoted().visit(annotation))


def _viewed(text: str) -> str:
    tree = ast.parse(text, mode="eval")
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in VIEWS:
            node.id = f"Blocking{node.id}"
    return ast.unparse(tree)


def _imports(tree: ast.Module, module: str) -> dict[str, str]:
    """How each name that a module has is imported from elsewhere."""
    own = "holdfast." + module.removesuffix(".py").replace("/", ".")
    found: dict[str, str] = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            found[node.name] = f"from {own} import {node.name}"
        elif isinstance(node, ast.Assign):
            found |= {each.id: f"from {own} import {each.id}" for each in node.targets if isinstance(each, ast.Name)}
    for statement in ast.walk(tree):
        if isinstance(statement, ast.ImportFrom):
            for each in statement.names:
                shown = each.name if each.asname is None else f"{each.name} as {each.asname}"
                found[each.asname or each.name] = f"from {statement.module} import {shown}"
        elif isinstance(statement, ast.Import):
            for each in statement.names:
                found[each.asname or each.name] = ast.unparse(ast.Import([each]))
    return {name: line for name, line in found.items() if name not in VIEWS | {"T", "M", "L", "R"}}


def _formatted(text: str) -> str:
    ruff = str(Path(sys.executable).parent / "ruff")
    for command in (["check", "--select", "I,F401", "--fix", "-q"], ["format", "-q"]):
        arguments = [ruff, *command, "--stdin-filename", str(TARGET), "-"]
        text = subprocess.run(arguments, input=text, capture_output=True, text=True, check=False, cwd=ROOT).stdout
    return text


if __name__ == "__main__":
    TARGET.write_text(generated(), encoding="utf-8")
