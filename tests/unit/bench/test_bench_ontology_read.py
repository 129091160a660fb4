"""The benchmark of reading an ontology: everybody holds the same data, and it runs."""

import json
import sys
from pathlib import Path

import pytest

from bench.ontology_read import __main__ as program
from bench.ontology_read import measure
from bench.ontology_read.data import History, Size
from bench.ontology_read.questions import QUESTIONS
from tests.tidy.tree import leaks


def test_a_history_is_the_same_for_everybody_and_adds_up() -> None:
    size = Size(50, 4)
    one, other = History(size), History(size)
    first, second = list(one.commits()), list(other.commits())
    assert [number for number, _ in first] == [1, 2, 3, 4]
    assert all(mine.equals(theirs) for (_, mine), (_, theirs) in zip(first, second, strict=True))
    state = {row["id"]: row for _, table in first for row in table.to_pylist()}
    assert list(state.values()) == one.state().to_pylist()


def test_it_runs_and_keeps_its_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "read.json"
    for peer in measure.INSTALLED:
        monkeypatch.setitem(measure.INSTALLED, peer, False)
    monkeypatch.setattr(sys, "argv", ["bench.ontology_read", "--quick", "--store", "file", "--out", str(out)])
    program.main()
    assert "file: 200 entities, 3 commits" in capsys.readouterr().out
    (found,) = json.loads(out.read_text())["results"]["file"].values()
    for when in ("before", "after"):
        assert list(found[when]) == [question.name for question in QUESTIONS]
        assert found[when]["latest"]["warm"].keys() == {"floor", "ours"}
    assert not leaks(out.read_text())
