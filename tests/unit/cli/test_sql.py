"""``holdfast sql`` on a store in a folder, through the real command and on a real terminal."""

import asyncio
import io
import json
import os
import pty
import signal
import subprocess
import sys
import time
from decimal import Decimal
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import holdfast
from holdfast.cli.main import run
from holdfast.cli.rows import json_value
from holdfast.ontology import Entity, Field


class Town(Entity):
    name: Field[str] = Field(primary_key=True)
    people: Field[int]


@pytest.fixture
def uri(tmp_path: Path) -> str:
    address = f"file:{tmp_path / 'store'}"

    async def work() -> None:
        async with holdfast.open(address) as hf, hf.ontology(Town) as onto:
            onto.ensure([Town(name="Ayr", people=5), Town(name="Bath", people=9)])
            await onto.commit()
            onto.ensure(Town(name="Bath", people=10))
            await onto.commit()

    asyncio.run(work())
    return address


def test_rows_in_every_format(uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    def asked(*words: str) -> str:
        assert run(["sql", "select name, people from Town order by name", *words, "--store", uri]) == 0
        return capsys.readouterr().out

    assert asked().split() == ["name", "people", "Ayr", "5", "Bath", "10"]
    assert json.loads(asked("--json")) == [{"name": "Ayr", "people": 5}, {"name": "Bath", "people": 10}]
    assert asked("--format", "jsonl").splitlines()[1] == '{"name": "Bath", "people": 10}'
    assert asked("--format", "csv").splitlines() == ["name,people", "Ayr,5", "Bath,10"]
    assert asked("--format", "csv", "--as-of", "1").splitlines() == ["name,people", "Ayr,5", "Bath,9"]


def test_several_statements_print_several_results(uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = "select 1 as a; select name from Town order by name"
    assert run(["sql", text, "--format", "csv", "--store", uri]) == 0
    assert capsys.readouterr().out.splitlines() == ["a", "1", "name", "Ayr", "Bath"]
    assert run(["sql", text, "--json", "--store", uri]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert found == [[{"a": 1}], [{"name": "Ayr"}, {"name": "Bath"}]]


@pytest.mark.parametrize("name", ["rows.parquet", "rows.arrow", "rows.csv", "rows.jsonl"])
def test_rows_go_into_files(uri: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str) -> None:
    target = tmp_path / name
    text = "select name, people from Town order by name"
    assert run(["sql", text, "--output", str(target), "--store", uri, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"rows": 2, "file": str(target)}
    if name.endswith("jsonl"):
        assert json.loads(target.read_text().splitlines()[0]) == {"name": "Ayr", "people": 5}
    elif name.endswith("csv"):
        assert target.read_text().splitlines() == ["name,people", "Ayr,5", "Bath,10"]
    else:
        found = pq.read_table(target) if name.endswith("parquet") else pa.ipc.open_file(target).read_all()
        assert found.to_pylist() == [{"name": "Ayr", "people": 5}, {"name": "Bath", "people": 10}]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("19.900000000000000000", "19.9"),
        ("5.000000000000000000", "5"),
        ("0E-18", "0"),
        ("1.50", "1.50"),
        ("1E+3", "1E+3"),
        ("100", 100),
    ],
)
def test_decimals_have_the_places_that_they_need(text: str, shown: str | int) -> None:
    assert json_value(Decimal(text)) == shown


def test_a_moment_may_be_a_tag(uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["onto", "tag", "set", "start", "1", "--store", uri]) == 0
    capsys.readouterr()
    people = ["sql", "select sum(people) as n from Town", "--format", "csv", "--store", uri]
    assert run([*people, "--as-of", "start"]) == 0
    assert capsys.readouterr().out.splitlines() == ["n", "14"]
    assert run([*people, "--as-of", "stert"]) == 2
    answer = capsys.readouterr().err
    assert "neither a commit nor a time nor a tag" in answer
    assert "did you mean start?" in answer


def test_a_statement_from_standard_input(
    uri: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("select sum(people) as n from Town__history"))
    assert run(["sql", "--json", "--store", uri]) == 0
    assert json.loads(capsys.readouterr().out) == [{"n": 24}]


def test_what_is_refused(uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sql", "delete from Town", "--store", uri]) == 7
    assert "can only be read" in capsys.readouterr().err
    assert run(["sql", "select * from Tow", "--store", uri]) == 4
    assert "did you mean Town?" in capsys.readouterr().err


def test_the_shell(uri: str, tmp_path: Path) -> None:
    """On a terminal of its own: a statement over two lines, completion, mistakes, commands, Ctrl-C, and the end."""
    ours, theirs = pty.openpty()
    environ = {**os.environ, "HOME": str(tmp_path), "TERM": "dumb"}
    command = [sys.executable, "-m", "holdfast", "sql", "--format", "jsonl", "--store", uri]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environ) as shell:
        os.close(theirs)
        seen = _until(ours, "sql> ")
        for typed in ("select people\nfrom Town__h\t where people = 9;", "select x;", ".tables;", ".nothing"):
            os.write(ours, f"{typed}\n".encode())
            seen += _until(ours, "sql> ")
        endless = "with recursive t(n) as (select 1 union all select n + 1 from t) select max(n) from t"
        used = psutil.Process(shell.pid).cpu_times
        before = used().user
        os.write(ours, f"{endless};\n".encode())
        while used().user < before + 0.5:  # a signal before the statement runs would discard the line
            time.sleep(0.05)
        shell.send_signal(signal.SIGINT)
        seen += _until(ours, "interrupted\r\nsql> ")
        os.write(ours, b".quit\n")
        assert shell.wait(timeout=60) == 0
    os.close(ours)
    assert '{"people": 9}' in seen
    assert '{"name": "Town", "kind": "entity"}' in seen
    assert "error: Binder Error" in seen
    assert "unknown command .nothing" in seen
    assert "from Town__history where people = 9;" in (tmp_path / ".holdfast_sql_history").read_text()


def _until(terminal: int, prompt: str) -> str:
    seen = ""
    while not seen.endswith(prompt):
        seen += os.read(terminal, 4096).decode()
    return seen
