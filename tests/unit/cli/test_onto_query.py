"""``holdfast onto query`` on a store in a folder, through the real command."""

import asyncio
import json
from decimal import Decimal
from pathlib import Path

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
