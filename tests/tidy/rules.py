"""The tidy rules: what ruff, mypy and import-linter do not say about the shape of this project.

A rule is a pure function from a source file to findings, and a predicate on paths. Every rule has a bad sample under
``tests/bad_samples/tidy`` in which each line that must be found ends in ``# FIRES``.
"""

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.tidy.source import Finding, Source

MODULE_LINES = 400
FUNCTION_LINES = 70

AMBIENT = {
    "time": {"time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "sleep"},
    "datetime": {"datetime.now", "datetime.utcnow", "datetime.today", "date.today"},
    "uuid": {"uuid1", "uuid4"},
    "os": {"urandom", "getrandom"},
    "asyncio": {"to_thread"},
}
AMBIENT_NAMES = {f"{module}.{name}" for module, names in AMBIENT.items() for name in names}
AMBIENT_HOMES = {f"src/holdfast/base/{name}.py" for name in ("clock", "ids", "aio")}

LOOPS_AND_THREADS = {
    "asyncio.run",
    "asyncio.Runner",
    "asyncio.new_event_loop",
    "concurrent.futures.ThreadPoolExecutor",
    "concurrent.futures.ProcessPoolExecutor",
    "multiprocessing.Process",
    "threading.Thread",
    "threading.Timer",
}
METHODS_OF_A_LOOP = {"run_in_executor", "run_until_complete", "run_forever"}
# The edges: where a loop begins. Everything else is awaited by somebody.
EDGES = (
    "src/holdfast/base/aio.py",
    "src/holdfast/base/portal.py",
    "src/holdfast/cli/",
    "src/holdfast/pipeline/",
    "src/holdfast/server/",
    "src/holdfast/sim/",
)

NOTE_TO_SELF = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "X" * 3, "HA" + "CK")) + r")\b")
# A lint exception is followed by a second comment that gives the reason.
UNEXPLAINED = re.compile(r"#\s*(?:(?:ruff:\s*|flake8:\s*)?noqa\b|type:\s*ignore\b|mypy:|pragma:)[^#]*$")
CHECKING_CALL = re.compile(r"raises|warns|check|assert|expect|verify|law")


@dataclass(frozen=True)
class Rule:
    name: str
    applies: Callable[[str], bool]
    find: Callable[[Source], Iterator[Finding]]


def in_src(path: str) -> bool:
    return path.startswith("src/") and path.endswith(".py")


def is_python(path: str) -> bool:
    return path.endswith(".py")


def long_module(source: Source) -> Iterator[Finding]:
    if len(source.lines) > MODULE_LINES:
        yield Finding(len(source.lines), f"module of {len(source.lines)} lines; split it at a noun")


def long_function(source: Source) -> Iterator[Finding]:
    for node in source.functions:
        length = (node.end_lineno or node.lineno) - node.lineno + 1
        if length > FUNCTION_LINES:
            yield Finding(node.lineno, f"{node.name} has {length} lines")


def ambient(source: Source) -> Iterator[Finding]:
    for node, name in source.named():
        module, _, rest = name.partition(".")
        drawn = module == "random" and rest and rest != "Random"
        if name in AMBIENT_NAMES or drawn or module == "secrets":
            yield Finding(node.lineno, f"{name} is ambient; take a clock, a source of randomness or ids")
    for call in source.nodes:
        if isinstance(call, ast.Call) and not call.args and source.full_name(call.func) == "random.Random":
            yield Finding(call.lineno, "random.Random() without a seed is ambient")


def loop_or_thread(source: Source) -> Iterator[Finding]:
    for node, name in source.named():
        if name in LOOPS_AND_THREADS:
            yield Finding(node.lineno, f"{name}: only the edges start loops, threads or processes")
    for call in source.nodes:
        # Whatever the loop is called here.
        if isinstance(call, ast.Attribute) and call.attr in METHODS_OF_A_LOOP:
            yield Finding(call.lineno, f"{call.attr}: only the edges use the loop itself")


def assert_statement(source: Source) -> Iterator[Finding]:
    for node in source.nodes:
        if isinstance(node, ast.Assert):
            yield Finding(node.lineno, "assert vanishes under -O; use check()")


def stub(source: Source) -> Iterator[Finding]:
    for number, line in enumerate(source.lines, 1):
        if NOTE_TO_SELF.search(line):
            yield Finding(number, "a note to self; do it or leave it out")
    for node in source.nodes:
        if isinstance(node, ast.Name) and node.id == "NotImplementedError":
            yield Finding(node.lineno, "a stub")


def swallowed(source: Source) -> Iterator[Finding]:
    for node in source.nodes:
        if isinstance(node, ast.ExceptHandler):
            if node.type is None:
                yield Finding(node.lineno, "bare except")
            elif _is_broad(node.type) and all(_does_nothing(statement) for statement in node.body):
                yield Finding(node.lineno, "every exception is swallowed here")
        elif (
            isinstance(node, ast.Call)
            and source.full_name(node.func) == "contextlib.suppress"
            and any(_is_broad(argument) for argument in node.args)
        ):
            yield Finding(node.lineno, "every exception is suppressed here")


def _is_broad(node: ast.expr) -> bool:
    if isinstance(node, ast.Tuple):
        return any(_is_broad(element) for element in node.elts)
    return isinstance(node, ast.Name) and node.id in {"Exception", "BaseException"}


def _does_nothing(statement: ast.stmt) -> bool:
    constant = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return constant or isinstance(statement, ast.Pass | ast.Continue | ast.Break)


def idle_test(source: Source) -> Iterator[Finding]:
    for node in source.functions:
        if node.name.startswith("test_") and not any(_is_check(part) for part in ast.walk(node)):
            yield Finding(node.lineno, f"{node.name} checks nothing")


def _is_check(node: ast.AST) -> bool:
    if isinstance(node, ast.Assert):
        # A constant cannot fail.
        return not isinstance(node.test, ast.Constant)
    if isinstance(node, ast.Call):
        return bool(CHECKING_CALL.search(ast.unparse(node.func)))
    return isinstance(node, ast.Raise)


def unexplained(source: Source) -> Iterator[Finding]:
    for number, line in enumerate(source.lines, 1):
        if UNEXPLAINED.search(line):
            yield Finding(number, "a lint exception gives its reason in a second comment on its line")


def skipped_test(source: Source) -> Iterator[Finding]:
    for node, name in source.named():
        if name in {"pytest.skip", "pytest.importorskip", "pytest.xfail"} or name.startswith(
            ("pytest.mark.skip", "pytest.mark.xfail")
        ):
            yield Finding(node.lineno, "a test that is skipped passes silently")


RULES = (
    Rule("long_module", is_python, long_module),
    Rule("long_function", is_python, long_function),
    Rule("ambient", lambda path: in_src(path) and path not in AMBIENT_HOMES, ambient),
    Rule("loop_or_thread", lambda path: in_src(path) and not path.startswith(EDGES), loop_or_thread),
    Rule("assert_statement", in_src, assert_statement),
    Rule("stub", in_src, stub),
    Rule("swallowed", in_src, swallowed),
    Rule("unexplained", lambda path: is_python(path) and not path.startswith("tests/"), unexplained),
    Rule("idle_test", lambda path: path.startswith("tests/") and is_python(path), idle_test),
    Rule("skipped_test", lambda path: path.startswith("tests/") and is_python(path), skipped_test),
)
