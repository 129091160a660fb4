"""``holdfast pipeline load|compact`` on a store in a folder, through the real command, without Spark."""

import csv
import gzip
import json
from pathlib import Path
from uuid import UUID

import pyarrow.parquet as pq
import pytest

from holdfast.cli.main import run
from holdfast.objects import Client
from holdfast.ontology.session import Ontology
from tests.unit.cli.test_pipeline import PipelineDesk
from tests.unit.ontology.bulk_kit import Customer, customers, table
from tests.unit.ontology.shop import NOON

TYPE = "tests.unit.ontology.bulk_kit:Customer"
INLINE = ("--master", "local")


@pytest.fixture
def desk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> PipelineDesk:
    return PipelineDesk(tmp_path, capsys)


def test_files_are_loaded_in_one_commit_and_a_named_load_once(desk: PipelineDesk, tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    for number in range(2):
        pq.write_table(table(customers(number * 10, 10)), files / f"{number}.parquet")
    done = desk.json("load", TYPE, str(files), "--load-id", "first", *INLINE)
    assert (done["rows"], done["added"], done["commit_id"], done["replayed"]) == (20, 20, 1, False)
    again = desk.json("load", "Customer", str(files), "--load-id", "first", *INLINE)
    assert (again["rows"], again["commit_id"], again["replayed"]) == (0, 1, True)
    lines = tmp_path / "changed.json"
    lines.write_text("\n".join(map(json.dumps, customers(0, 3, "other"))), encoding="utf-8")
    words = ("load", "Customer", str(lines), "--format", "json", *INLINE)
    code, _, err = desk(*words)
    assert code != 0
    assert "3 objects are there already, with other fields: 'c00000'" in err
    assert desk.json(*words, "--on-conflict", "replace", "--if-head", "1")["replaced"] == 3
    gone = desk.json(*words, "--on-conflict", "replace", "--instead")
    assert (gone["retracted"], gone["same"], gone["commit_id"]) == (17, 3, 3)


FIXED = {"changed": NOON.isoformat(), "flag": True, "day": "2024-05-01", "blob": "/wA=", "tier": "gold", "tags": []}
CELLS = {
    "id": [str(UUID(int=number)) for number in range(3)],
    "changed": ["2024-05-01T12:00:00Z", "2024-05-01 14:00:00+02:00", "2024-05-01"],
    "text": ["01234", "null", '""'],
    "whole": ["7", str(2**53 + 1), "-1"],
    "number": ["1", "1e3", "Infinity"],
    "flag": ["true", "False", "1"],
    "day": ["2024-05-01"] * 3,
    "amount": ["12345678901234567.89", "1.10", "1E+3"],
    "blob": ["/wA=", "YWI=", "YWI="],
    "tier": ["gold", "std", "gold"],
    "level": ["", "2", "1"],
    "tags": ["[]", '["x"]', '["y"]'],
    "counts": ["{}", '{"a": 1}', '{"b": 2}'],
    "either": ["", "3", '"3"'],
    "place": ["", '{"lat": 1, "lng": 2.5}', "null"],
    "anything": ["", "05", "[1, null]"],
}
VALUES = [
    '"text": "1", "whole": 7, "number": 1, "amount": 12345678901234567.89, "counts": {"a": 1}',
    '"text": "", "whole": 9007199254740993, "number": 1.5, "amount": "1.10", "counts": {"b": 2}, "either": 3',
]


def written_file(path: Path) -> Path:
    """One of every kind of cell, or of value."""
    with path.open("w", encoding="utf-8", newline="") as file:
        if path.suffix == ".csv":
            csv.writer(file).writerows([CELLS, *zip(*CELLS.values(), strict=True)])
        else:
            fixed = [json.dumps({"id": str(UUID(int=place)), **FIXED})[:-1] for place in range(len(VALUES))]
            file.writelines(f"{some}, {rest}}}\n" for some, rest in zip(fixed, VALUES, strict=True))
    return path


@pytest.mark.parametrize("style", ["csv", "jsonl"])
def test_a_file_means_to_a_load_what_it_means_to_an_import(
    style: str, desk: PipelineDesk, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written_file(tmp_path / f"some.{style}")
    named = "tests.unit.ontology.shop:Everything"
    assert run(["onto", "import", named, str(path), "--store", desk.uri]) == 0
    capsys.readouterr()
    done = desk.json("load", named, str(path), "--format", style[:4], *INLINE)
    assert (done["same"], done["commit_id"]) == (done["rows"], None)
    code = run(["sql", "select amount from Everything order by id limit 1", "--store", desk.uri, "--format", "csv"])
    assert (code, "12345678901234567.89" in capsys.readouterr().out) == (0, True)


@pytest.mark.parametrize(
    ("body", "words", "left"),
    [
        ("id,name,gone\na,x,false\nb,y,true\n", ("--retract-column", "gone"), ["a"]),
        (
            "id,name,_change_type,_commit_version\na,x,insert,9\na,x,retract,10\nb,y,retract,2\nb,y,insert,10\n",
            (),
            ["b"],
        ),
    ],
)
def test_columns_of_csv_that_say_what_becomes_of_a_row(
    body: str, words: tuple[str, ...], left: list[str], desk: PipelineDesk, tmp_path: Path
) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "_SUCCESS").touch()
    (folder / "some.csv.gz").write_bytes(gzip.compress(body.encode()))
    desk.json("load", TYPE, str(folder), "--format", "csv", *words, *INLINE)

    async def names(store: Client) -> list[str]:
        async with Ontology(store, store.ambient, [Customer]) as onto:
            return [each.id for each in await onto.all(Customer)]

    assert desk.do(names) == left


@pytest.mark.parametrize(
    ("name", "words", "code", "said"),
    [
        ("custmers.csv", (), 4, "custmers.csv: there is no such file or folder"),
        ("some.csv", (), 2, "hint: add --format csv"),
        (
            "two.parquet",
            ("--latest-by", "aeg"),
            2,
            "latest_by is 'aeg', which is not a field of this type|age, id, name",
        ),
        ("two.parquet", ("--retract-column", "gone"), 2, "retract_column is 'gone', and|the columns: id, name, age"),
        ("none.parquet", ("--instead",), 2, "hint: set allow_empty to retract everything"),
        ("two.parquet", (), 8, "name the field whose greatest value wins (latest_by)"),
        ("other.parquet", (), 8, "say what to do with them: on_conflict skip or replace"),
    ],
)
def test_errors_say_what_is_wrong_and_what_there_is(
    name: str, words: tuple[str, ...], code: int, said: str, desk: PipelineDesk, tmp_path: Path
) -> None:
    (tmp_path / "some.csv").write_text("id,name\na,b\n")
    rows = {"none": [], "one": customers(0, 1), "other": customers(0, 1, "other")}
    for stem, some in {**rows, "two": [*rows["one"], *rows["other"]]}.items():
        pq.write_table(table(some), tmp_path / f"{stem}.parquet")
    desk.json("load", TYPE, str(tmp_path / "one.parquet"), *INLINE)
    found = desk.text("load", TYPE, str(tmp_path / name), *words, *INLINE, code=code)
    assert [each for each in said.split("|") if each not in found] == [], found


def test_compaction_is_shown_before_it_is_done(desk: PipelineDesk, tmp_path: Path) -> None:
    lines = tmp_path / "one.json"
    for number in range(9):
        lines.write_text(json.dumps(customers(number, 1)[0]), encoding="utf-8")
        desk.json("load", TYPE, str(lines), "--format", "json", *INLINE)
    shown = desk.json("compact", *INLINE)
    assert (shown["applied"], shown["rewrites"], shown["planned"][0]["files_after"]) == (False, [], 2)
    done = desk.json("compact", "Customer", "--apply", *INLINE)
    assert [each["published"] for each in done["rewrites"]] == [True]
    assert desk.json("compact", *INLINE)["planned"][0]["files"] == 2
    code, _, err = desk("compact", "Nothing", *INLINE)
    assert code != 0
    assert "no type Nothing with rows" in err
