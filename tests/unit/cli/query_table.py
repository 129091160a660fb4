"""The table of the query guide: each line asks one question twice, in Python and in words.

``read`` takes it from the page, ``Sides`` asks both sides and says what is not the same, and ``unsaid`` tells which
public methods and options of the query language no line uses. Only calls that a line makes itself count.
"""

import ast
import asyncio
import inspect
import json
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast import ontology
from holdfast.cli.main import run
from holdfast.ontology import meta
from holdfast.ontology.query.aggregation import Grouped
from holdfast.ontology.query.explain import Explanation
from holdfast.ontology.query.pagination import Page
from holdfast.ontology.query.query import Query
from holdfast.ontology.query.results import Changed, Linked, Meta
from holdfast.ontology.types.expressions.terms import Condition, ItemTerm, LengthTerm
from holdfast.ontology.types.fields import FieldExpr
from tests.tidy.docs import blocks

CLASSES: tuple[type, ...] = (Query, Grouped, FieldExpr, ItemTerm, LengthTerm, Condition)
OPERATORS = {f"__{name}__" for name in ("eq", "ne", "lt", "le", "gt", "ge", "and", "or", "invert")}
DECLARING = {"upgrader", "export_file", "import_file"}
"""Functions that say something about types or files, not about queries."""
FIRST = "| Python | `holdfast onto query` |"
LINE = re.compile(r"^\| `(?P<python>.*)` \| `(?P<words>.*)` \|$")
NAME = "<the table>"


class Line(NamedTuple):
    number: int
    python: str
    words: str


def read(page: str) -> list[Line]:
    """The lines of the table; an error for one that cannot be read."""
    lines = page.splitlines()
    begin = lines.index(FIRST) + 2
    found: list[Line] = []
    for number, text in enumerate(lines[begin:], begin + 1):
        if not text.startswith("|"):
            break
        match = LINE.match(text)
        assert match is not None, f"line {number} of the table: {text}"
        found.append(Line(number, *(match[name].replace(r"\|", "|") for name in ("python", "words"))))
    return found


# --- what can be said at all ---


@cache
def sayable(classes: tuple[type, ...] = CLASSES) -> dict[str, Callable[..., Any]]:
    """Public methods and operators, and what can be told them by name alone: ``RowTerm.asc(nulls=)``."""
    functions = {name: getattr(ontology, name) for name in ontology.__all__ if name not in DECLARING}
    found: dict[str, Callable[..., Any]] = {name: each for name, each in functions.items() if inspect.isfunction(each)}
    for cls in classes:
        for owner in cls.__mro__:
            if not owner.__module__.startswith("holdfast."):
                continue
            for name, method in vars(owner).items():
                if inspect.isfunction(method) and (not name.startswith("_") or name in OPERATORS):
                    found[f"{owner.__name__}.{name}"] = method
                    named = inspect.signature(method).parameters.values()
                    options = [each.name for each in named if each.kind is inspect.Parameter.KEYWORD_ONLY]
                    found |= {f"{owner.__name__}.{name}({option}=)": method for option in options}
    return found


@contextmanager
def recorded(said: set[str], classes: tuple[type, ...] = CLASSES) -> Iterator[None]:
    """While it lasts, what code of the table calls is noted."""
    codes = {method.__code__: name for name, method in sayable(classes).items() if "(" not in name}

    def note(frame: Any, event: str, _: Any) -> None:
        caller = frame.f_back
        if event != "call" or frame.f_code not in codes or caller is None or caller.f_code.co_filename != NAME:
            return
        name, method = codes[frame.f_code], sayable(classes)[codes[frame.f_code]]
        said.add(name)
        for each in inspect.signature(method).parameters.values():
            if each.kind is inspect.Parameter.KEYWORD_ONLY and frame.f_locals[each.name] != each.default:
                said.add(f"{name}({each.name}=)")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(before)


def unsaid(said: set[str], classes: tuple[type, ...] = CLASSES) -> list[str]:
    return sorted(set(sayable(classes)) - said)


# --- both sides ---


class Sides:
    """A store that the page's first example fills, asked in Python and in words."""

    def __init__(self, page: str, address: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._runner, self._address, self._folder, self._capsys = asyncio.Runner(), address, folder, capsys
        self._cursor = ""
        self.said: set[str] = set()
        self.space: dict[str, Any] = {"__name__": "__docs__"}
        first, *others = [block.text for block in blocks(page) if block.runs]
        self._done(first.replace('holdfast.open("memory:")', f"holdfast.open({address!r})"), "exec")
        self._done(next(text for text in others if text.startswith("customers, subscriptions")), "exec")

    def close(self) -> None:
        self._done("await onto.close()\nawait hf.close()", "exec")
        self._runner.close()

    def _done(self, source: str, mode: str) -> Any:
        code = compile(source, NAME, mode, flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        made = eval(code, self.space)
        return self._runner.run(made) if inspect.iscoroutine(made) else made

    def python(self, line: Line) -> Any:
        """What the left side gives; of a query, all of it."""

        async def whole(query: Query[Any]) -> Any:
            return await query.all()

        named = re.fullmatch(r"(\w+) := (.*)", line.python)
        with recorded(self.said):
            found = self._done(named[2] if named else line.python, "eval")
        if named:
            self.space[named[1]] = found
        return self._runner.run(whole(found)) if isinstance(found, Query) else found

    def words(self, line: Line) -> Any:
        """What the right side prints, or writes into a file."""
        words = [self._cursor if each == "CURSOR" else each for each in shlex.split(line.words)]
        file = None
        if "--output" in words:
            file = self._folder / words[words.index("--output") + 1]
            words[words.index("--output") + 1] = str(file)
        assert run(["onto", "query", *words, "--store", self._address, "--json"]) == 0, line
        printed = self._capsys.readouterr().out
        if file is not None:
            return _table(file)
        if "--stream" in words:
            return [json.loads(text) for text in printed.splitlines()]
        found = json.loads(printed)
        if isinstance(found, dict) and "cursor" in found:
            self._cursor = found["cursor"] or ""
        return found

    def objection(self, line: Line) -> str | None:
        """What is not the same, if anything."""
        left, right = self.python(line), self.words(line)
        one, other = _plain(left, right), _shown(left, right)
        return None if one == other else f"line {line.number}: {line.words}: {one!r} in Python, {other!r} in words"


def _table(path: Path) -> pa.Table:
    return pq.read_table(path) if path.suffix == ".parquet" else pa.ipc.open_file(path).read_all()


def _plain(found: Any, beside: Any) -> Any:
    """A result of Python, as the command shows such a one."""
    match found:
        case pa.Table():
            return found.to_pylist()
        case pd.DataFrame():
            return pa.Table.from_pandas(found, preserve_index=False).to_pylist()
        case pl.DataFrame():
            return found.to_arrow().to_pylist()
        case Page():
            return (
                [_fields(*pair) for pair in _paired(found.rows, beside["rows"])],
                found.commit_id,
                found.cursor is None,
            )
        case Explanation():
            return _explained(found.document())
        case bool() | int():
            return [{"count": found}]
        case dict():
            return [found]
        case list():
            return [_plain_one(*pair) for pair in _paired(found, beside)]
        case None:
            return None
    return _fields(found, beside)


def _shown(found: Any, beside: Any) -> Any:
    """What the command has printed, in the same shape."""
    match found:
        case pa.Table() | pd.DataFrame() | pl.DataFrame():
            return beside.to_pylist()
        case Page():
            return beside["rows"], beside["commit_id"], beside["cursor"] is None
        case Explanation():
            return _explained(beside)
        case [Meta(), *_]:
            return [row["_meta"] for row in beside]
    return beside


def _paired(found: list[Any], beside: list[Any]) -> Iterator[tuple[Any, Any]]:
    """Each with the row that should be the same one, if there are enough of them."""
    return zip(found, [*beside, *[{}] * len(found)], strict=False)


def _plain_one(one: Any, beside: dict[str, Any]) -> Any:
    match one:
        case dict():
            return one
        case Meta():
            return {"commit_id": one.commit_id, "key": list(one.key), "retracted": one.retracted, "erased": one.erased}
        case Linked():
            ends = {"left": one.left, "right": one.right}
            theirs = {f"{end}.{name}": value for end, each in ends.items() for name, value in _fields(each, {}).items()}
            return {**_fields(one.relation, beside), **theirs}
        case Changed():
            sides = {name: side and _fields(side, {}) for name, side in (("before", one.before), ("after", one.after))}
            return {"entity_key": one.key[0], "action": one.action, **sides}
    return _fields(one, beside)


def _fields(one: Any, beside: dict[str, Any]) -> dict[str, Any]:
    """Rows of history say their commit themselves."""
    told = {"commit_id": meta(one).commit_id, "retracted": meta(one).retracted}
    return {**vars(one), **(told if "commit_id" in beside else {})}


def _explained(document: dict[str, Any]) -> Any:
    tables = [(each["type"], [file["use"] for file in each["files"]]) for each in document["tables"]]
    return document["head"], document["commits"], document["history"], tables, document["profile"] is None
