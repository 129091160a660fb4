"""The tidy rules: what neither ruff, mypy nor import-linter can check.

A rule is a pure function from a source file to findings, with a predicate on paths. Every rule has a bad sample under
``tests/bad_samples/tidy`` in which each line that must be found ends in ``# FIRES``. The size of folders is
checked by ``large_folders``.
"""

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from tests.tidy.source import Finding, Source

MODULE_LINES = 1_000
FOLDER_MODULES = 15

LARGE_FOLDERS = {
    "tests/integration": "one module per subject, and the programs that it starts",
    "tests/properties": "one module per model",
    "tests/sim": "one module per protocol and its naive variants",
    "tests/spark": "one module per use of Spark, and the programs that it starts",
    "tests/unit/cli": "one module per noun",
    "tests/unit/pipeline": "one module per job and table",
}
"""Folders that may be larger, each with the reason. One that has become small enough must be removed from this list."""

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
# Only these may start a loop or a thread; all other code is awaited by its caller.
EDGES = (
    "src/holdfast/base/aio.py",
    "src/holdfast/base/portal.py",
    "src/holdfast/cli/",
    "src/holdfast/pipeline/",
    "src/holdfast/server/",
    "src/holdfast/sim/",
)

# Words that the style guide replaces by the field's own. After a dot they are names of attributes and modules.
RIDDLES = re.compile(
    r"(?<!\.)\b(?:whoever|somebody|nobody|wish(?:es|ed)?|told|heard|at hand|let no|what is taken|the short way)\b",
    re.IGNORECASE,
)
WORDED = (".importlinter", ".md", ".py", ".service", ".toml", "Makefile")
UNCHECKED = ("tests/tidy/rules.py",)  # it names the words

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


def in_tests(path: str) -> bool:
    return path.startswith("tests/") and path.endswith(".py")


def is_python(path: str) -> bool:
    return path.endswith(".py")


def long_module(source: Source) -> Iterator[Finding]:
    if len(source.lines) > MODULE_LINES:
        yield Finding(len(source.lines), f"module of {len(source.lines)} lines, at most {MODULE_LINES}; split it")


def unseeded_random(source: Source) -> Iterator[Finding]:
    for call in source.nodes:
        if isinstance(call, ast.Call) and not call.args and source.full_name(call.func) == "random.Random":
            yield Finding(call.lineno, "random.Random() without a seed cannot be replayed; take an injected one")


def loop_or_thread(source: Source) -> Iterator[Finding]:
    for node, name in source.named():
        if name in LOOPS_AND_THREADS:
            yield Finding(node.lineno, f"{name}: only the edges start loops, threads or processes")
    for part in source.nodes:
        if isinstance(part, ast.Attribute) and part.attr in METHODS_OF_A_LOOP:
            yield Finding(part.lineno, f"{part.attr}: only the edges use the loop itself")


def suppressed(source: Source) -> Iterator[Finding]:
    for node in source.nodes:
        if (
            isinstance(node, ast.Call)
            and source.full_name(node.func) == "contextlib.suppress"
            and {"Exception", "BaseException"} & {ast.unparse(argument) for argument in node.args}
        ):
            yield Finding(node.lineno, "every exception is suppressed here; name the expected ones")


def idle_test(source: Source) -> Iterator[Finding]:
    for node in source.nodes:
        if (
            isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            and node.name.startswith("test_")
            and not any(_is_check(part) for part in ast.walk(node))
        ):
            yield Finding(node.lineno, f"{node.name} checks nothing")


def _is_check(node: ast.AST) -> bool:
    if isinstance(node, ast.Assert):
        return not isinstance(node.test, ast.Constant)  # a constant cannot fail
    if isinstance(node, ast.Call):
        return bool(CHECKING_CALL.search(ast.unparse(node.func)))
    return isinstance(node, ast.Raise)


def skipped_test(source: Source) -> Iterator[Finding]:
    for node, name in source.named():
        if name in {"pytest.skip", "pytest.importorskip", "pytest.xfail"} or name.startswith(
            ("pytest.mark.skip", "pytest.mark.xfail")
        ):
            yield Finding(node.lineno, "a skipped test passes silently")


def unexplained(source: Source) -> Iterator[Finding]:
    for number, line in enumerate(source.lines, 1):
        if UNEXPLAINED.search(line):
            yield Finding(number, "a lint exception gives its reason in a second comment on its line")


def riddle(source: Source) -> Iterator[Finding]:
    for number, line in enumerate(source.lines, 1):
        if match := RIDDLES.search(line):
            yield Finding(number, f"write a plain technical word instead of {match.group()!r}")


RULES = (
    Rule("long_module", is_python, long_module),
    Rule("unseeded_random", lambda path: in_src(path) and path != "src/holdfast/base/ids.py", unseeded_random),
    Rule("loop_or_thread", lambda path: in_src(path) and not path.startswith(EDGES), loop_or_thread),
    Rule("suppressed", in_src, suppressed),
    Rule("idle_test", in_tests, idle_test),
    Rule("skipped_test", in_tests, skipped_test),
    Rule("unexplained", lambda path: is_python(path) and not path.startswith("tests/"), unexplained),
    Rule("riddle", lambda path: path.endswith(WORDED) and not path.startswith(UNCHECKED), riddle),
)


def large_folders(paths: Iterable[str], exceptions: Mapping[str, str]) -> list[str]:
    """Folders with too many modules, and exceptions that are no longer needed."""
    modules = Counter(
        str(path.parent) for path in map(PurePosixPath, paths) if path.suffix == ".py" and "__" not in path.name
    )
    large = {folder: count for folder, count in modules.items() if count > FOLDER_MODULES}
    return [
        f"{folder}: {large[folder]} modules, at most {FOLDER_MODULES}; a sub-package is missing"
        for folder in sorted(large.keys() - exceptions.keys())
    ] + [f"{folder}: no longer large; remove its exception" for folder in sorted(exceptions.keys() - large.keys())]
