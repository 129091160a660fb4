"""``holdfast onto query``: pages, ends, single rows, streams and files, through the real command on one store."""

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import holdfast
from holdfast.cli.main import run
from holdfast.cli.onto.query import _names
from holdfast.ontology import Entity, Field, Relation

Ask = Callable[..., Any]


class Customer(Entity):
    id: Field[str] = Field(primary_key=True)
    age: Field[int | None] = Field(default=None)
    profile: Field[dict[str, str]] = Field(default_factory=dict)


class Knows(Relation[Customer, Customer]):
    since: Field[int] = Field(default=0)


class Sealed(Entity):
    id: Field[str] = Field(primary_key=True)
    seal: Field[bytes] = Field(default=b"")


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    address = f"file:{tmp_path_factory.mktemp('answers') / 'store'}"

    async def work() -> None:
        async with holdfast.open(address) as hf, hf.ontology(Customer, Knows) as onto:
            onto.ensure([Customer(id=each, age=age) for each, age in (("a", 30), ("b", 40), ("c", None), ("d", 30))])
            onto.ensure([Knows(left_key="a", right_key="b", since=1999), Knows(left_key="d", right_key="x")])
            await onto.commit()
            onto.ensure(Customer(id="b", age=41, profile={"city": "Rome"}))
            await onto.commit()

    asyncio.run(work())
    return address


@pytest.fixture
def asked(uri: str, capsys: pytest.CaptureFixture[str]) -> Ask:
    def ask(*words: str) -> Any:
        assert run(["onto", "query", *words, "--store", uri, "--json"]) == 0, capsys.readouterr().err
        return json.loads(capsys.readouterr().out)

    return ask


@pytest.mark.parametrize("order", [[], ["--order-by", "age desc nulls first"], ["--history"]])
def test_pages_follow_one_another_to_the_end(asked: Ask, order: list[str]) -> None:
    words = ["Customer", "--columns", "id", *order]
    found, after = [], list[str]()
    while True:
        page = asked(*words, "--page", "2", *after)
        assert page["commit_id"] == 2
        found += page["rows"]
        if page["cursor"] is None:
            break
        after = ["--after", page["cursor"]]
    assert found == asked(*words)
    assert len(found) == (5 if "--history" in order else 4)


def test_people_see_the_cursor_below_the_rows(uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["onto", "query", "Customer", "--columns", "id", "--page", "3", "--store", uri]
    assert run(words) == 0
    shown = capsys.readouterr()
    assert shown.out.split() == ["id", "a", "b", "c"]
    line = shown.err.splitlines()[-1]
    assert line.startswith("as of commit 2; the next page: --after ")
    assert run([*words, "--after", line.split()[-1], "--format", "csv"]) == 0
    shown = capsys.readouterr()
    assert shown.out.split() == ["id", "d"]
    assert shown.err == "as of commit 2; this is the last page\n"


def test_ends_are_columns(asked: Ask) -> None:
    first, second = asked("Knows", "--linked")
    assert first == {
        "left_key": "a",
        "right_key": "b",
        "since": 1999,
        "left.id": "a",
        "left.age": 30,
        "left.profile": {},
        "right.id": "b",
        "right.age": 41,
        "right.profile": {"city": "Rome"},
    }
    assert (second["left.id"], second["right.id"], second["right.age"]) == ("d", None, None)
    some = ("Knows", "--columns", "right.profile,since", "--where", "left.age == 30")
    assert asked(*some) == [{"right.profile": {"city": "Rome"}, "since": 1999}, {"right.profile": None, "since": 0}]
    (then,) = asked("Knows", "--columns", "right.age", "--limit", "1", "--as-of", "1", "--meta")
    assert then["right.age"] == 40
    assert then["right._meta"] == {"commit_id": 1, "key": ["b"], "retracted": False, "erased": False}
    assert asked("Knows", "--linked", "--page", "1")["rows"] == [first]


def test_a_row_by_itself(asked: Ask, uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert asked("Customer", "--first", "--order-by", "age desc") == {"id": "b", "age": 41, "profile": {"city": "Rome"}}
    assert asked("Customer", "--where", "age > 99", "--first") is None
    assert asked("Customer", "--where", "age is null", "--one")["id"] == "c"
    assert run(["onto", "query", "Customer", "--where", "age > 40", "--one", "--store", uri]) == 0
    assert capsys.readouterr().out.splitlines()[:2] == ["id       b", "age      41"]
    assert run(["onto", "query", "Customer", "--where", "age > 99", "--one", "--store", uri]) == 4
    assert run(["onto", "query", "Customer", "--where", "age == 30", "--one", "--store", uri]) == 8
    assert "more than one Customer is like that" in capsys.readouterr().err


def test_differences_know_their_commits(asked: Ask) -> None:
    (changed,) = asked("Customer", "--diff", "1", "2", "--meta")
    assert [changed[f"{side}._meta"]["commit_id"] for side in ("before", "after")] == [1, 2]


def test_a_hop_from_some_of_them(asked: Ask) -> None:
    words = ("Customer", "--columns", "id")
    assert asked(*words, "--via", "first 1 by age along Knows") == [{"id": "b"}]
    assert asked(*words, "--via", "first 1 by age desc nulls first, id along Knows") == []
    assert asked(*words, "--via", "skip 1 by id along Knows where since > 0") == []
    assert asked(*words, "--via", 'Knows where left_key == "a" and right_key != "z"') == [{"id": "b"}]


@pytest.mark.parametrize("name", ["rows.parquet", "rows.arrow", "rows.csv", "rows.jsonl"])
def test_rows_and_figures_go_into_files(asked: Ask, tmp_path: Path, name: str) -> None:
    def read() -> list[dict[str, Any]]:
        path = tmp_path / name
        if name.endswith("jsonl"):
            return [json.loads(line) for line in path.read_text().splitlines()]
        if name.endswith("csv"):
            header, *lines = path.read_text().splitlines()
            values = [line.split(",") for line in lines]
            return [
                dict(zip(header.split(","), [int(x) if x.isdigit() else x for x in row], strict=True)) for row in values
            ]
        found = pq.read_table(path) if name.endswith("parquet") else pa.ipc.open_file(path).read_all()
        return found.to_pylist()  # type: ignore[no-any-return]  # pyarrow has no types

    target = str(tmp_path / name)
    words = ("Customer", "--columns", "id,age", "--where", "age > 0")
    assert asked(*words, "-o", target) == {"rows": 3, "file": target}
    assert read() == asked(*words)
    page = asked(*words, "--page", "1", "--output", target)
    assert (page["rows"], page["commit_id"], page["cursor"] is None) == (1, 2, False)
    assert read() == [{"id": "a", "age": 30}]
    groups = ("Customer", "--where", "age > 0", "--group-by", "age")
    assert asked(*groups, "--output", target) == {"rows": 2, "file": target}
    assert read() == asked(*groups)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_stream_is_lines(asked: Ask, uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["onto", "query", "Customer", "--columns", "id", "--order-by", "id", "--stream", "--store", uri]
    assert run([*words, "--format", "csv"]) == 0
    assert capsys.readouterr().out.split() == ["id", "a", "b", "c", "d"]
    assert run(words) == 0
    assert capsys.readouterr().out.splitlines()[0] == '{"id": "a"}'
    target = tmp_path / "rows.csv"
    assert asked("Customer", "--columns", "id", "--stream", "--output", str(target)) == {"rows": 4, "file": str(target)}
    assert sorted(target.read_text().split()) == ["a", "b", "c", "d", "id"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("Customer --after abc", "say how many rows a page has"),
        ("Customer --page 2 --after abc", "this is not a cursor of a page"),
        ("Customer --page 2 --after é", "this is not a cursor of a page"),
        ("Customer --page 2 --limit 3", "leave out --limit and --offset"),
        ("Customer --page 2 --count", "two kinds of questions"),
        ("Customer --page 2 --format csv --json", "a page is one document"),
        ("Customer --first --one", "two kinds of questions"),
        ("Customer --linked", "is not a relation"),
        ("Knows --columns left.aeg", "did you mean left.age?"),
        ("Knows --linked --count --agg count()", "two kinds of questions"),
        ("Knows --linked --agg count()", "columns of its own"),
        ("Customer --as-of 9 --strict", "there is no commit 9 yet"),
        ("Customer --stream --format table", "a stream is JSON lines or CSV"),
        ("Customer --stream --output x.parquet", "a stream is JSON lines or CSV"),
        ("Customer --output rows.txt", "does not say which format it has"),
        ("Customer --output rows.csv --format json", "a file is not written as json"),
        ("Customer --output nowhere/rows.csv", "name a file that can be written"),
        ("Customer --columns id,`x", "does not name columns"),
        ("Customer --via 'first along Knows'", "does not say where it begins"),
        ("Customer --via 'by aeg along Knows'", "did you mean age?"),
        ("Customer --via 'Knows where left.age > 3'", "filtered by the relation's own fields"),
        ("Customer --path 'first 1 along Knows to age > 3'", "use --order-by, --limit and --offset"),
    ],
)
def test_what_cannot_be_asked_is_said(
    uri: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    parts = [part.strip("'") for part in re.findall(r"'[^']*'|\S+", words)]
    assert run(["onto", "query", *parts, "--store", uri]) != 0
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_cursor_of_another_question_is_refused(asked: Ask, uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    cursor = asked("Customer", "--page", "1")["cursor"]
    words = ["onto", "query", "Customer", "--where", "age > 1", "--page", "1", "--after", cursor, "--store", uri]
    assert run(words) == 2
    assert "this cursor is of another query" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "names"),
    [("", ()), ("id", ("id",)), (" id , age ", ("id", "age")), ("`a,``b`,left.x", ("a,`b", "left.x"))],
)
def test_names_of_columns(text: str, names: tuple[str, ...]) -> None:
    assert _names(text) == names


def test_bytes_are_shown_as_conditions_take_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    address = f"file:{tmp_path / 'store'}"

    async def work() -> None:
        async with holdfast.open(address) as hf, hf.ontology(Sealed) as onto:
            onto.ensure([Sealed(id="a", seal=b"\x00\xff"), Sealed(id="b", seal=b"")])
            await onto.commit()

    asyncio.run(work())
    assert run(["onto", "query", "Sealed", "--where", 'seal == "AP8="', "--store", address, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"id": "a", "seal": "AP8="}]
