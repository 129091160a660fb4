"""The table of the query guide is complete, and both of its sides give the same answers."""

from pathlib import Path

import pytest

from tests.tidy.tree import ROOT, SAMPLES
from tests.unit.cli.query_table import Sides, read, sayable, unsaid

PAGE = ROOT / "docs" / "how-to" / "query.md"


def test_every_line_gives_the_same_in_python_and_in_words_and_nothing_lacks_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = PAGE.read_text(encoding="utf-8")
    sides = Sides(page, f"file:{tmp_path / 'store'}", tmp_path, capsys)
    objections = [sides.objection(line) for line in read(page)]
    sides.close()
    assert [each for each in objections if each is not None] == []
    assert unsaid(sides.said) == []


def test_a_line_that_differs_and_a_method_without_words_are_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sample = (SAMPLES / "docs" / "query-table.md").read_text(encoding="utf-8")
    sides = Sides(sample, f"file:{tmp_path / 'store'}", tmp_path, capsys)
    same, other = (sides.objection(line) for line in read(sample))
    sides.close()
    assert same is None
    assert other is not None
    assert "line 31: Customer --where 'age > 40'" in other
    missing = unsaid(sides.said)
    assert {"Query.page", "Query.as_of(strict=)", "Term.matches", "LengthTerm.__ge__", "Grouped.having"} <= {*missing}
    assert not {"Query.where", "Query.count", "Term.__gt__"} & {*missing}
    assert {"Query.where", "Query.count", "Term.__gt__"} <= {*sayable()}
