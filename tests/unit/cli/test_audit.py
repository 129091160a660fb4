"""``holdfast audit`` on a store in a folder: table, JSON and page, and the exit code."""

import html
from pathlib import Path

import pytest

from holdfast.cli.pipeline.audit import page_of
from holdfast.objects import Client
from holdfast.pipeline.jobs.audited import Audited
from tests.unit.cli.desk import Desk
from tests.unit.pipeline.field import Field


async def fill(store: Client) -> str:
    """The key of one blob."""
    field = Field(store)
    await field.season(1, agents=2, batches=3)
    return field.manifests[0].raw_blob_key


@pytest.fixture
def desk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Desk:
    return Desk(tmp_path, capsys)


NOW = ("audit", "run", "--master", "local", "--older-than", "0s")


def test_an_audit_is_a_table_a_document_a_page_and_an_exit_code(desk: Desk, tmp_path: Path) -> None:
    blob = desk.do(fill)
    assert desk("pipeline", "run", "--master", "local")[0] == 0
    good = desk.json(*NOW, "--deep")
    assert (good["good"], good["findings"], good["checked"]["accepted"]) == (True, [], 6)
    desk.do(lambda store: store.delete(blob))
    page = tmp_path / "report.html"
    code, out, _ = desk(*NOW, "--html", str(page))
    assert code == 1
    assert "missing_blob: restore the object" in out
    assert "1 error; bytes of 1 in 64, through " in out
    shown = desk.json("audit", "show", code=1)
    assert [(each["rule"], each["severity"]) for each in shown["findings"]] == [("missing_blob", "error")]
    assert html.escape(shown["findings"][0]["key"]) in page.read_text()
    listed = desk.json("audit", "list")
    assert [each["errors"] for each in listed] == [1, 0]
    assert desk.json("audit", "show", good["audit_id"])["good"]
    code, _, err = desk("pipeline", "run", "audit", "--master", "local")
    assert (code, err.count("\n")) == (0, 1)  # what is younger than ten minutes is not judged yet


def test_a_page_that_cannot_be_written_is_an_error_and_can_be_written_again(desk: Desk, tmp_path: Path) -> None:
    desk.do(fill)
    code, out, err = desk(*NOW, "--html", "no/such/folder/x.html")
    assert (code, "nothing is wrong" in out) == (2, True)
    again = err.splitlines()[-1].rpartition("holdfast ")[2].split()
    assert desk(*again[:-1], str(tmp_path / "x.html"))[0] == 0
    assert "Nothing is wrong" in (tmp_path / "x.html").read_text()


def test_nothing_from_a_store_becomes_markup() -> None:
    finding = {"rule": "foreign_object", "severity": "warning", "key": "<script>", "message": "a & b", "remedy": "<b>"}
    record = Audited("id", "run", ("ingest",), "scan", 64, 0, 0, 0, {"x": 1}, {"foreign_object": 1}, (finding,))
    page = page_of(record)
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert "a &amp; b" in page
    assert "Nothing is wrong" in page
