"""``holdfast pipeline load|compact`` on a store in a folder, through the real command, without Spark."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.unit.cli.test_pipeline import PipelineDesk
from tests.unit.ontology.bulk_kit import customers, table

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
    code, _, err = desk("load", "Customer", str(tmp_path / "nowhere"), *INLINE)
    assert code != 0
    assert "name a file or folder, and its --format" in err


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
