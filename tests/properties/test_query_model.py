"""Random stores and questions: the library answers as a model of plain Python does, which reads no SQL and no files."""

from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.ontology.filters.operand import Sql, fill
from holdfast.ontology.filters.sql import _Compiler
from holdfast.ontology.types.expressions.ast import Comparison
from tests.properties.query_model.trial import trial
from tests.soak import SOAKING

SEEDS = range(1, 31) if SOAKING else range(1, 2)
COMMITS, QUESTIONS = (12, 15) if SOAKING else (8, 3)


@pytest.mark.parametrize("seed", SEEDS)
async def test_every_answer_is_that_of_the_model(seed: int) -> None:
    async with holdfast.open("memory:") as hf:
        assert await trial(hf, seed, commits=COMMITS, questions=QUESTIONS) == []


@pytest.mark.soak
async def test_every_answer_is_that_of_the_model_in_a_folder_too(tmp_path: Path) -> None:
    async with holdfast.open(tmp_path.as_uri()) as hf:
        assert await trial(hf, 11, commits=COMMITS, questions=QUESTIONS) == []


async def test_null_that_is_not_unequal_is_objected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    differs = _Compiler._differs

    def naive(self: Any, predicate: Comparison) -> Sql:
        return fill("({} AND NOT {})", differs(self, predicate), self._is_null(predicate.path))

    monkeypatch.setattr(_Compiler, "_differs", naive)
    async with holdfast.open("memory:") as hf:
        objections = await trial(hf, 2, commits=8, questions=3)
    assert {"all", "count"} <= {objection.answer for objection in objections}
