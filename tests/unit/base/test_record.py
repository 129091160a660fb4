"""Records: fields that are declared once, unknown fields that are kept, and errors that name the field."""

from dataclasses import dataclass, replace
from typing import Annotated

import pytest
from pydantic import Field

from holdfast.base import codec
from holdfast.base.errors import Corrupt, Incompatible
from holdfast.base.record import UNLESS_EMPTY, ControlRecord, Moment, Record, Timestamp

AT = "2026-02-11T12:00:00.000000+00:00"


@dataclass(frozen=True)
class Visit(Record):
    WHAT = "a visit"

    id: str
    at_ns: Annotated[Moment, Field(alias="at")]
    seen: Timestamp = AT
    left_ns: Annotated[Moment | None, Field(alias="left_at")] = None
    notes: Annotated[tuple[str, ...], UNLESS_EMPTY] = ()


@dataclass(frozen=True)
class Mark(ControlRecord):
    FORMAT = "test.mark"
    WHAT = "a mark"

    place: str


def test_a_document_is_read_and_written_back_with_its_unknown_fields() -> None:
    document = {"id": "v1", "at": AT, "seen": "2026-02-11T12:00:00Z", "left_at": None, "colour": {"red": 1}}
    visit = Visit.parse(document, key="k")
    assert (visit.id, visit.left_ns, visit.notes, visit.extra) == ("v1", None, (), {"colour": {"red": 1}})
    assert visit.document() == document
    changed = replace(visit, left_ns=visit.at_ns, notes=("late",))
    assert changed.document(write_id="w") == {**document, "left_at": AT, "notes": ("late",), "write_id": "w"}
    assert replace(visit, extra={}) == visit, "unknown fields do not make two records different"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"at": 5}, "at"),
        ({"at": "soon"}, "at"),
        ({"id": None}, "id"),
        ({"seen": "soon"}, "seen"),
        ({"notes": 1}, "notes"),
    ],
)
def test_a_document_that_does_not_fit_is_corrupt_and_names_the_field(change: dict[str, object], field: str) -> None:
    with pytest.raises(Corrupt, match=rf"^k: not a visit \({field}"):
        Visit.parse({"id": "v1", "at": AT, **change}, key="k")
    with pytest.raises(Corrupt, match=r"\(at: Field required\)"):
        Visit.parse({"id": "v1"}, key="k")


def test_a_control_record_has_a_format_a_version_and_a_write_id() -> None:
    body = Mark("here").encode("w1")
    assert codec.decode(body, key="k") == {"place": "here", "format": "test.mark", "version": 1, "write_id": "w1"}
    assert Mark.decode(body, key="k").place == "here"
    with pytest.raises(Incompatible, match="newer than this client reads"):
        Mark.decode(body.replace(b'"version":1', b'"version":2'), key="k")
    with pytest.raises(Corrupt, match=r"expected 'test\.mark'"):
        Mark.decode(body.replace(b"test.mark", b"other.one"), key="k")
