"""The table of the query guide: each line asks one question in Python and in SQL, and both give the same rows."""

import ast
import asyncio
import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.main import run
from holdfast.ontology.query.query import Query
from tests.tidy.docs import blocks
from tests.tidy.tree import ROOT

LINE = re.compile(r"^\| `(?P<python>.*)` \| `(?P<sql>SELECT .*)` \|$", re.MULTILINE)


def test_every_line_gives_the_same_in_python_and_in_sql(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "how-to" / "query.md").read_text(encoding="utf-8")
    address, space = f"file:{tmp_path / 'store'}", dict[str, Any](__name__="__docs__")
    first, *others = [block.text for block in blocks(page) if block.runs]
    with asyncio.Runner() as runner:

        def done(source: str, mode: str) -> Any:
            code = compile(source, "<the table>", mode, flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
            made = eval(code, space)
            return runner.run(made) if inspect.iscoroutine(made) else made

        async def keys(query: Query[Any]) -> list[Any]:
            return [next(iter(row.values())) for row in await query.dicts()]

        done(first.replace('holdfast.open("memory:")', f"holdfast.open({address!r})"), "exec")
        done(next(text for text in others if text.startswith("customers, subscriptions")), "exec")
        lines = [(each["python"], each["sql"]) for each in LINE.finditer(page)]
        assert len(lines) > 12
        for python, sql in lines:
            found = done(python, "eval")
            if isinstance(found, Query):
                found = runner.run(keys(found))
            wanted = found if isinstance(found, list) else list(found.values()) if isinstance(found, dict) else [found]
            assert run(["sql", sql, "--store", address, "--json"]) == 0, sql
            shown = [next(iter(row.values())) for row in json.loads(capsys.readouterr().out)]
            assert sorted(shown) == sorted(wanted), sql
            assert wanted, python
        done("await onto.close()\nawait hf.close()", "exec")
