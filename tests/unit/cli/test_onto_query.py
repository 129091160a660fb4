"""``holdfast onto query`` on a store in a folder, through the real command."""

import asyncio
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import holdfast
from holdfast.cli.main import run
from holdfast.cli.onto.query import _names
from holdfast.cli.rows import _plain
from holdfast.ontology import Entity, Field, Relation


class Customer(Entity):
    id: Field[str] = Field(primary_key=True)
    age: Field[int]
    profile: Field[dict[str, str]] = Field(default_factory=dict)


class Knows(Relation[Customer, Customer]):
    since: Field[int] = Field(default=0)


class Past(Entity):
    id: Field[str] = Field(primary_key=True)


class Sealed(Entity):
    id: Field[str] = Field(primary_key=True)
    seal: Field[bytes] = Field(default=b"")


@pytest.fixture
def uri(tmp_path: Path) -> str:
    address = f"file:{tmp_path / 'store'}"

    async def work() -> None:
        async with holdfast.open(address) as hf, hf.ontology(Customer, Knows) as onto:
            onto.ensure([Customer(id="a", age=30, profile={"city": "Rome"}), Customer(id="b", age=40)])
            onto.ensure(Knows(left_key="a", right_key="b", since=1999))
            await onto.commit()
            onto.ensure(Customer(id="b", age=41))
            await onto.commit()

    asyncio.run(work())
    return address


def test_questions_in_words(uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    def asked(*words: str) -> Any:
        assert run(["onto", "query", *words, "--store", uri, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    assert asked("Customer", "--where", "age > 40") == [{"id": "b", "age": 41, "profile": {}}]
    assert asked("Customer", "--where", 'profile.city == "Rome"')[0]["profile"] == {"city": "Rome"}
    assert asked("Customer", "--as-of", "1", "--order-by", "age desc", "--columns", "id,age") == [
        {"id": "b", "age": 40},
        {"id": "a", "age": 30},
    ]
    assert asked("Customer", "--history", "--columns", "id", "--offset", "2") == [
        {"id": "b", "commit_id": 2, "retracted": False}
    ]
    assert asked("Customer", "--since", "1", "--count") == [{"count": 1}]
    assert asked("Knows", "--where", "right.age == 41 and since < 2000", "--order-by", "left.age") == [
        {"left_key": "a", "right_key": "b", "since": 1999}
    ]
    explained = asked("Customer", "--where", 'id == "a"', "--explain")
    assert [file["use"] for file in explained["tables"][0]["files"]] == ["rows", "pruned"]


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
    assert _plain(Decimal(text)) == shown


def test_rows_as_text(uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["onto", "query", "Customer", "--limit", "1", "--store", uri]
    assert run([*words, "--format", "csv"]) == 0
    assert capsys.readouterr().out.splitlines() == ["id,age,profile", 'a,30,"{""city"":""Rome""}"']
    assert run([*words, "--profile"]) == 0
    assert "state, commits 1 to 2 of 2" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["Customr"], 4, "there is no type Customr"),
        (["Customer", "--where", "aeg > 3"], 2, "did you mean age?"),
        (["Customer", "--where", 'age > "x"'], 2, "age"),
        (["Customer", "--where", "age >"], 2, "expected"),
        (["Customer", "--columns", "idd"], 2, "did you mean id?"),
        (["Customer", "--order-by", "age up"], 2, "is not an order"),
        (["Customer", "--since", "1", "--between", "1", "2"], 2, "exclude each other"),
    ],
)
def test_mistakes(uri: str, capsys: pytest.CaptureFixture[str], words: list[str], code: int, message: str) -> None:
    assert run(["onto", "query", *words, "--store", uri]) == code
    assert message in capsys.readouterr().err


def test_ends_between_and_orders_in_words(uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    def asked(*words: str) -> Any:
        assert run(["onto", "query", *words, "--store", uri, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    assert asked("Customer", "--between", "2", "2", "--columns", "id")[0]["commit_id"] == 2
    assert asked("Knows", "--where", "left.age == 30", "--order-by", "right.age desc", "--count") == [{"count": 1}]
    assert asked("Customer", "--order-by", "profile.city desc nulls first", "--columns", "`id`") == [
        {"id": "b"},
        {"id": "a"},
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--as-of", "1", "--between", "1", "2"), "exclude each other"),
        (("--count", "--explain"), "exclude each other"),
        (("--between", "2", "1"), "commit 2 is after commit 1"),
        (("--as-of", "\u00b2"), "neither a commit nor a time nor a tag"),
        (("--as-of", "9", "--strict"), "there is no commit 9 yet"),
        (("--output", "rows.txt"), "does not say which format it has"),
        (("--output", "rows.csv", "--format", "json"), "a file is not written as json"),
        (("--output", "nowhere/rows.csv"), "name a file that can be written"),
        (("--columns", "id,`x"), "does not name columns"),
    ],
)
def test_mistakes_in_options(
    uri: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    words: tuple[str, ...],
    said: str,
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    assert run(["onto", "query", "Customer", *words, "--store", uri]) != 0
    assert said in capsys.readouterr().err
    assert list((tmp_path / "empty").iterdir()) == []


@pytest.mark.parametrize("name", ["rows.parquet", "rows.arrow", "rows.csv", "rows.jsonl"])
def test_rows_go_into_files(uri: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str) -> None:
    target = tmp_path / name
    words = ["onto", "query", "Customer", "--columns", "id,age", "--output", str(target), "--store", uri, "--json"]
    assert run(words) == 0
    assert json.loads(capsys.readouterr().out) == {"rows": 2, "file": str(target)}
    if name.endswith("jsonl"):
        assert json.loads(target.read_text().splitlines()[0]) == {"id": "a", "age": 30}
    elif name.endswith("csv"):
        assert target.read_text().splitlines() == ["id,age", "a,30", "b,41"]
    else:
        found = pq.read_table(target) if name.endswith("parquet") else pa.ipc.open_file(target).read_all()
        assert found.to_pylist() == [{"id": "a", "age": 30}, {"id": "b", "age": 41}]


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


def test_a_type_that_was_dropped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    address = f"file:{tmp_path / 'store'}"

    async def work() -> None:
        async with holdfast.open(address) as hf, hf.ontology(Past) as onto:
            onto.ensure([Past(id="a"), Past(id="b")])
            await onto.commit()

    asyncio.run(work())
    assert run(["onto", "schema", "drop", "Past", "--store", address, "--json"]) == 0
    token = json.loads(capsys.readouterr().out)["token"]
    assert run(["onto", "schema", "drop", "Past", "--token", token, "--store", address]) == 0
    capsys.readouterr()
    assert run(["onto", "query", "Past", "--as-of", "1", "--count", "--store", address, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"count": 2}]
    assert run(["onto", "query", "Past", "--store", address]) == 4
    assert "dropped" in capsys.readouterr().err
