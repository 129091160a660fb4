"""Scans of files: whatever a statement reads of a file that is here in part goes with its name."""

from dataclasses import replace

from holdfast.ontology import Entity, Field
from holdfast.ontology.format.index import Entry
from holdfast.ontology.format.parquet.byte_ranges import Reading
from holdfast.ontology.query.cache.loaded import Loaded
from holdfast.ontology.query.cache.scans import Pool, numbered, scans
from holdfast.ontology.types.typeinfo import type_info


class Thing(Entity):
    id: Field[str] = Field(primary_key=True)
    value: Field[int]


SHAPE = type_info(Thing)
WHOLE = Loaded(1, Entry(1, 1, "a"), 9, 99, ("id", "value"), frozenset(), unique=True, path="it's/1.parquet")
PARTLY = replace(WHOLE, number=2, path="2.parquet", partly=True)


def test_whole_files_are_named_and_others_bound_with_what_is_read_of_them() -> None:
    ((text, params),) = scans(SHAPE, [WHOLE, PARTLY], ["value"], None, Pool("", set()))
    assert "read_parquet(['it''s/1.parquet', ?::VARCHAR], union_by_name = true)" in text
    (bound,) = params
    assert isinstance(bound, Reading)
    assert (bound, bound.columns) == ("2.parquet", frozenset({*SHAPE.keys, "value"}))
    assert numbered(SHAPE, WHOLE, ["value"], 1).params == ()
    (alone,) = numbered(SHAPE, PARTLY, ["value"], 1).params
    assert (alone, alone.columns) == (bound, bound.columns)


def test_files_that_are_read_together_are_read_alike() -> None:
    """In one of them a row lacks the column of its key, so that the column is read of all."""
    lacking = replace(PARTLY, number=3, path="3.parquet", lacking=frozenset({"id"}))
    for files in ([lacking, PARTLY], [PARTLY, lacking]):
        ((text, params),) = scans(SHAPE, files, ["id"], None, Pool("", set()))
        by_column = '"entity_key" AS "id"' not in text
        assert all(by_column <= ("id" in each.columns) for each in params)
