"""The table of the query guide on an S3 server: both of its sides give the same answers there, too."""

from pathlib import Path

import pytest

from tests.integration.servers import S3Server
from tests.soak import SOAKING
from tests.tidy.tree import ROOT
from tests.unit.cli.query_table import Line, Sides, read


def _options(line: Line) -> str:
    """What conditions say is the same everywhere: of lines with the same options one is asked."""
    return " ".join(each for each in line.words.split() if each.startswith("--"))


def test_every_line_gives_the_same_in_python_and_in_words(
    s3_server: S3Server,
    bucket: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("HOLDFAST_S3__ENDPOINT", s3_server.endpoint)
    monkeypatch.setenv("HOLDFAST_S3__ACCESS_KEY_ID", s3_server.access_key)
    monkeypatch.setenv("HOLDFAST_S3__SECRET_ACCESS_KEY", s3_server.secret_key)
    monkeypatch.setenv("HOLDFAST_S3__ALLOW_HTTP", "true")
    page = (ROOT / "docs" / "how-to" / "query.md").read_text(encoding="utf-8")
    sides = Sides(page, f"s3://{bucket}/shop", tmp_path, capsys)
    lines = {_options(line) or line.words: line for line in read(page)}.values()
    objections = [sides.objection(line) for line in (read(page) if SOAKING else lines)]
    sides.close()
    assert [each for each in objections if each is not None] == []
