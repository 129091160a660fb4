"""Imports and exports: policies, preconditions, files of other programs, and files that do not fit."""

import csv
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.base.errors import Conflict, Invalid, NotFound
from holdfast.ontology import Entity, Field, InvalidValue, Relation
from holdfast.ontology.bulk import texts
from holdfast.ontology.bulk.decide import Policy
from holdfast.ontology.bulk.transfer import FileFormat, export_file, import_file
from holdfast.ontology.session import Ontology
from tests.unit.ontology.desk import Desk

NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)


class Guest(Entity):
    id: Field[str] = Field(primary_key=True)
    age: Field[int] = Field(default=0)
    seen: Field[datetime | None] = Field(default=None)


class Meets(Relation[Guest, Guest]):
    place: Field[str] = Field(default="")


class Number(Entity):
    id: Field[int] = Field(primary_key=True)
    real: Field[float] = Field(default=0.0)
    text: Field[str] = Field(default="")


async def started(desk: Desk) -> None:
    async with desk.session(Guest) as onto:
        onto.ensure([Guest(id="a", age=1), Guest(id="b", age=2)])
        await onto.commit()


def lines(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


async def ages(onto: Ontology) -> dict[str, int]:
    return {one.id: one.age for one in await onto.all(Guest)}


@pytest.mark.parametrize(
    ("policy", "expected"), [(Policy.SKIP, {"a": 1, "b": 2, "c": 9}), (Policy.REPLACE, {"a": 9, "b": 2, "c": 9})]
)
async def test_policies(policy: Policy, expected: dict[str, int], tmp_path: Path, desk: Desk) -> None:
    await started(desk)
    path = lines(tmp_path / "g.jsonl", {"id": "a", "age": 9}, {"id": "b", "age": 2}, {"id": "c", "age": 9})
    async with desk.session(Guest) as onto:
        with pytest.raises(Conflict, match="1 objects are there already, with other fields: 'a'"):
            await import_file(onto, Guest, path)
        with pytest.raises(Conflict, match="2 objects are there already"):
            await import_file(onto, Guest, path, on_conflict=policy, absent=True)
        with pytest.raises(Conflict, match="commit 7 was expected"):
            await import_file(onto, Guest, path, on_conflict=policy, if_head=7)
        onto.ensure(Guest(id="queued"))
        with pytest.raises(Invalid, match="1 intents are queued"):
            await import_file(onto, Guest, path)
        onto.discard()
        done = await import_file(onto, Guest, path, on_conflict=policy, if_head=1, metadata={"from": "test"})
        assert (done.rows, done.added, done.same, done.skipped + done.replaced) == (3, 1, 1, 1)
        assert await ages(onto) == expected


async def test_files_of_other_programs(tmp_path: Path, desk: Desk) -> None:
    pq.write_table(pa.table({"id": ["p"], "age": [5], "seen": [NOON]}), tmp_path / "p.parquet")
    with (tmp_path / "c.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("id", "age", "seen"), ("12", "7", ""), ("d", "8", "2024-01-01T12:00:00Z")])
    lines(tmp_path / "j.txt", {"id": "j", "seen": "2024-01-01T12:00:00Z"}, {"id": "k", "age": 4})
    lines(tmp_path / "m.jsonl", {"left_key": "p", "right_key": "12", "place": "x"})
    async with desk.session(Guest, Meets) as onto:
        await import_file(onto, Guest, tmp_path / "p.parquet")
        await import_file(onto, Guest, tmp_path / "c.csv")
        await import_file(onto, Guest, tmp_path / "j.txt", style=FileFormat.JSONL)
        await import_file(onto, Meets, tmp_path / "m.jsonl")
        assert await ages(onto) == {"p": 5, "12": 7, "d": 8, "j": 0, "k": 4}
        assert {one.seen for one in await onto.all(Guest)} == {None, NOON}
        assert [(one.left_key, one.right_key) for one in await onto.all(Meets)] == [("p", "12")]
        for name, message in (("g.dat", "which format"), ("none.csv", "No such file")):
            with pytest.raises(Invalid, match=message):
                await import_file(onto, Guest, tmp_path / name)


async def test_an_export_is_of_one_moment_and_appears_whole(tmp_path: Path, desk: Desk) -> None:
    await started(desk)
    async with desk.session(Guest) as onto:
        onto.ensure(Guest(id="a", age=3))
        await onto.commit()
    then = await export_file(desk.store, "Guest", tmp_path / "then.csv", as_of=1)
    now = await export_file(desk.store, "Guest", tmp_path / "now.csv")
    assert (then.rows, then.commit_id, now.commit_id) == (2, 1, 2)
    assert (tmp_path / "then.csv").read_text().splitlines() == ["id,age,seen", "a,1,", "b,2,"]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["now.csv", "then.csv"]
    with pytest.raises(NotFound):
        await export_file(desk.store, "Missing", tmp_path / "x.csv")
    with pytest.raises(Invalid, match="No such file"):
        await export_file(desk.store, "Guest", tmp_path / "none" / "x.csv")


FILES: list[tuple[str, bytes, str]] = [
    ("empty.parquet", b"", "not a file of this format"),
    ("empty.arrow", b"", "not a file of this format"),
    ("short.parquet", b"PAR1 and no more", "not a file of this format"),
    ("utf16.csv", "id,real\n1,2\n".encode("utf-16"), "not a file of this format"),
    ("latin.jsonl", '{"id":1,"text":"é"}\n'.encode("latin-1"), "not a file of this format"),
    ("open.csv", b'id,text\n1,"never closed\n', "not a file of this format"),
    ("few.csv", b"id,text\n1\n", "not as many cells"),
    ("many.csv", b"id,text\n1,2,3\n", "not as many cells"),
    ("twice.csv", b"id,id\n1,2\n", "two columns id"),
    ("strange.csv", b"id,nope\n1,2\n", "no field nope"),
    ("comma.csv", b'id,real\n1,"2,5"\n', "valid number"),
    ("none.jsonl", b'{"real": 1}\n', "id is missing"),
    ("null.jsonl", b'{"id": null}\n', "valid integer"),
    ("half.jsonl", b'{"id": 1.5}\n', "fractional part"),
    ("twice.jsonl", b'{"id": 1, "id": 2}\n', "'id' is there twice"),
    ("list.jsonl", b"[1]\n", "not a JSON object"),
    ("deep.jsonl", b'{"id": 1, "text": ' + b"[" * 100_000 + b"]" * 100_000 + b"}\n", "not JSON"),
    ("surrogate.jsonl", b'{"id": 1, "text": "\\ud800"}\n', "surrogates"),
    ("same.jsonl", b'{"id": 1}\n{"id": "1", "real": 2}\n', "in the load more than once: '1'"),
]
TABLES: list[tuple[dict[str, Any], str]] = [
    ({"entity_key": ["9"], "fields_json": ["{"]}, "is not JSON"),
    ({"entity_key": ["9"], "fields_json": pa.array([None], pa.string())}, "something else than texts"),
    ({"entity_key": [9], "fields_json": ['{"id":9}']}, "something else than texts"),
    ({"entity_key": ["9"], "fields_json": ['{"id":9,"real":"x"}']}, "real"),
    ({"id": [1, None]}, "row 1"),
    ({"id": [1.5]}, "fractional part"),
    ({"id": [1], "real": ["x"]}, "valid number"),
    ({"id": [1], "nope": [1]}, "has no field nope"),
]


@pytest.mark.parametrize(
    ("name", "body", "message"), [*FILES, *(("t.parquet", table, message) for table, message in TABLES)]
)
async def test_files_that_do_not_fit_are_refused(
    name: str, body: bytes | dict[str, Any], message: str, tmp_path: Path, desk: Desk
) -> None:
    if isinstance(body, bytes):
        (tmp_path / name).write_bytes(body)
    else:
        pq.write_table(pa.table(body), tmp_path / name)
    async with desk.session(Number) as onto:
        with pytest.raises((Invalid, Conflict), match=message):
            await import_file(onto, Number, tmp_path / name)
        assert (await onto.info()).commit_id == 0


async def test_an_error_names_the_row_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, desk: Desk) -> None:
    monkeypatch.setattr(texts, "READ_ROWS", 10)
    rows: list[Any] = [{"id": number} for number in range(40)]
    rows[33]["text"] = "\ud800"
    async with desk.session(Number) as onto:
        with pytest.raises(InvalidValue, match=r"counting from row 30: Number.text, number 3") as caught:
            await import_file(onto, Number, lines(tmp_path / "n.jsonl", *rows))
    assert caught.value.row == 33


async def test_odd_files_that_fit_are_imported_and_exported_again(tmp_path: Path, desk: Desk) -> None:
    (tmp_path / "bom.csv").write_bytes(b"\xef\xbb\xbfid,text\r\n1,a\r\n")
    (tmp_path / "bom.jsonl").write_bytes(b'\xef\xbb\xbf{"id": 2}\n\n')
    (tmp_path / "empty.csv").write_bytes(b"")
    (tmp_path / "empty.jsonl").write_bytes(b"")
    long = "x" * 300_000
    lines(tmp_path / "odd.jsonl", {"id": 2**62, "real": float("inf"), "text": long}, {"id": 3, "text": "\0"})
    async with desk.session(Number) as onto:
        for name in ("bom.csv", "bom.jsonl", "empty.csv", "empty.jsonl", "odd.jsonl"):
            await import_file(onto, Number, tmp_path / name)
        for style in FileFormat:
            await export_file(desk.store, "Number", tmp_path / f"out.{style.value}")
            again = await import_file(onto, Number, tmp_path / f"out.{style.value}")
            assert (again.rows, again.same, again.commit) == (4, 4, None)
        assert {one.id: (one.real, len(one.text)) for one in await onto.all(Number)} == {
            1: (0.0, 1),
            2: (0.0, 0),
            3: (0.0, 1),
            2**62: (float("inf"), 300_000),
        }
