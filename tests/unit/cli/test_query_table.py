"""The table of the query guide: each line asks one question in Python and in words, and both give the same."""

import ast
import asyncio
import inspect
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.cli.main import run
from holdfast.ontology.query.explain import Explanation
from holdfast.ontology.query.query import Query
from tests.tidy.docs import blocks
from tests.tidy.tree import ROOT

LINE = re.compile(r"^\| `(?P<python>.*)` \| `(?P<words>(?:Customer|Subscription).*)` \|$", re.MULTILINE)


def test_every_line_gives_the_same_in_python_and_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "how-to" / "query.md").read_text(encoding="utf-8")
    address, space = f"file:{tmp_path / 'store'}", dict[str, Any](__name__="__docs__")
    first, *others = [block.text for block in blocks(page) if block.runs]
    with asyncio.Runner() as runner:

        def done(source: str, mode: str) -> Any:
            code = compile(source, "<the table>", mode, flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
            made = eval(code, space)
            return runner.run(made) if inspect.iscoroutine(made) else made

        async def whole(query: Query[Any]) -> pa.Table:
            return await query.arrow()

        done(first.replace('holdfast.open("memory:")', f"holdfast.open({address!r})"), "exec")
        done(next(text for text in others if text.startswith("customers, subscriptions")), "exec")
        lines = [(each["python"].replace(r"\|", "|"), each["words"]) for each in LINE.finditer(page)]
        assert len(lines) > 40
        for python, text in lines:
            found = done(python, "eval")
            found = runner.run(whole(found)) if isinstance(found, Query) else found
            words = shlex.split(text)
            file = tmp_path / words[-1] if "--output" in words else None
            if file is not None:
                words[-1] = str(file)
            assert run(["onto", "query", *words, "--store", address, "--json"]) == 0, text
            shown = json.loads(capsys.readouterr().out)
            shown = shown if file is None else _read(file)
            wanted = _uses(shown) if isinstance(found, Explanation) else _parsed(shown)
            assert _parsed(json.loads(json.dumps(_plain(found), default=str))) == wanted, text
        done("await onto.close()\nawait hf.close()", "exec")


def _read(path: Path) -> Any:
    return (pq.read_table(path) if path.suffix == ".parquet" else pa.ipc.open_file(path).read_all()).to_pylist()


def _plain(found: Any) -> Any:
    """As the command shows it."""
    match found:
        case Explanation():
            return _uses(found.document())
        case int():
            return [{"count": found}]
        case list():
            return [each if isinstance(each, dict) else vars(each) for each in found]
        case pa.Table():
            rows = found.to_pylist()
        case _:
            rows = pa.table(found).to_pylist()
    return rows


def _parsed(rows: Any) -> Any:
    """Columns of no simple type are texts of JSON in tables."""
    return [
        {name: json.loads(one) if isinstance(one, str) and one[:1] in ("{", "[") else one for name, one in row.items()}
        if isinstance(row, dict)
        else row
        for row in rows
    ]


def _uses(document: dict[str, Any]) -> list[list[str]]:
    return [[file["use"] for file in table["files"]] for table in document["tables"]]
