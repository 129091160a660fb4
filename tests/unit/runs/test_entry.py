"""Lines: one form when we write, any form when we read, and a finger on the line when it is none."""

import pytest

from holdfast.base.errors import Corrupt, Invalid
from holdfast.runs.journal.entry import TYPES, Entry, format_line, parse_line

TIME = "2026-01-02T03:04:05.000006+00:00"


def test_our_form_is_canonical() -> None:
    entry = Entry("step", 1, 2, TIME, {"stepId": "a", "result": {"z": 1, "a": "é"}})
    assert format_line(entry) == (
        b'{"offset":2,"result":{"a":"\xc3\xa9","z":1},"session":1,"stepId":"a",'
        b'"timestamp":"2026-01-02T03:04:05.000006+00:00","type":"step"}\n'
    )


@pytest.mark.parametrize(
    "timestamp", ["2026-01-02T03:04:05Z", "2026-01-02T03:04:05.123Z", "2026-01-02T03:04:05.123456+02:00"]
)
def test_any_order_any_time_unknown_fields_and_no_result(timestamp: str) -> None:
    line = f'{{ "timestamp": "{timestamp}", "stepId": "llm#2", "type":"step","offset":3,"mood":[1], "session": 2 }}\r\n'
    entry = parse_line(line.encode(), key="k", number=4)
    assert entry == Entry("step", 2, 3, timestamp, {"stepId": "llm#2", "mood": [1]})
    assert entry.timestamp_ns > 0


def test_the_seven_types_are_the_specification_s() -> None:
    assert sorted(TYPES) == ["cancel", "complete", "error", "resume", "start", "step", "suspend"]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (b"{not json\n", "not JSON"),
        (b"\n", "not JSON"),
        (b"\xff\xfe\n", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[1]\n", "found list"),
        (b'{"type":"segments"}\n', "'segments' is not a type"),
        (b'{"type":"note","session":1,"offset":0,"timestamp":"2026-01-01T00:00:00Z"}', "'note' is not a type"),
        (b'{"type":["step"],"session":1,"offset":0,"timestamp":"2026-01-01T00:00:00Z"}', "is not a type"),
        (b'{"type":"step","session":"1","offset":0,"timestamp":"2026-01-01T00:00:00Z"}', "session '1'"),
        (b'{"type":"step","session":true,"offset":0,"timestamp":"2026-01-01T00:00:00Z"}', "session True"),
        (b'{"type":"step","session":1,"offset":-1,"timestamp":"2026-01-01T00:00:00Z"}', "offset -1"),
        (b'{"type":"step","session":1,"timestamp":"2026-01-01T00:00:00Z"}', "offset None"),
        (b'{"type":"step","session":1,"offset":0,"timestamp":"yesterday"}', "timestamp 'yesterday'"),
        (b'{"type":"step","session":1,"offset":0,"timestamp":"2026-01-01T00:00:00Z","result":NaN}', "NaN"),
    ],
)
def test_a_line_that_is_none_is_named_with_its_place(line: bytes, complaint: str) -> None:
    with pytest.raises(Corrupt, match=r"runs/r/journal\.jsonl: line 3 \(offset 34\): ") as corrupt:
        parse_line(line, key="runs/r/journal.jsonl", number=3, first=32)
    assert complaint in str(corrupt.value)


@pytest.mark.parametrize(
    "entry",
    [
        Entry("note", 1, 0, TIME),
        Entry("step", 1, 0, TIME, {"session": 7}),
        Entry("step", 1, 0, TIME, {"result": {1, 2}}),
        Entry("step", 1, 0, TIME, {"result": float("nan")}),
    ],
)
def test_what_cannot_be_written_is_refused(entry: Entry) -> None:
    with pytest.raises(Invalid):
        format_line(entry)
