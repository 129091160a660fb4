"""Lines of a journal, keys of runs, segments and their head lines: what is written, and what can be read."""

import pytest

from holdfast.base.errors import Corrupt, Incompatible, Invalid
from holdfast.objects.store import check_key
from holdfast.runs import layout
from holdfast.runs.journal.entry import Entry, format_line, parse_line
from holdfast.runs.journal.segments import (
    Ref,
    SegmentPolicy,
    parse_head,
)

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


@pytest.mark.parametrize("run_id", ["INC-4821", "a b", "ünïcödé", "x" * 200, "order:7#2[k]", ".hidden", "5f2c.child"])
def test_an_id_that_fits_gives_keys_that_every_store_takes(run_id: str) -> None:
    assert layout.check_run_id(run_id) == run_id
    for key in (
        layout.journal_key(run_id),
        layout.segment_key(run_id, 2, 64, "a" * 24),
        layout.payload_key(run_id, "a" * 32),
        layout.mail_key(run_id, "e" * 200, "m-" + "a" * 32),
        layout.generation_key(run_id, 3, "a" * 24),
    ):
        assert check_key(key) == key


@pytest.mark.parametrize("run_id", ["", "a/b", ".", "..", "x" * 201, "é" * 101, "a\nb", "a\x00", "\ud800", "\u200b"])
def test_an_id_that_does_not_fit_is_refused_with_a_remedy(run_id: str) -> None:
    with pytest.raises(Invalid) as refused:
        layout.check_run_id(run_id)
    assert refused.value.remedy


def test_only_what_is_unique_by_construction_is_called_immutable() -> None:
    assert layout.immutable(layout.segment_key("r", 0, 0, "a"))
    assert layout.immutable(layout.payload_key("r", "a"))
    assert layout.immutable(layout.generation_key("r", 0, "a"))
    assert not layout.immutable(layout.journal_key("r"))
    assert not layout.immutable(layout.mail_key("r", "e", "k-1"))
    assert not layout.immutable("runs-index/v1/open/r/x")


POLICY = SegmentPolicy()


def ref(level: int, first: int, count: int, size: int = 100) -> Ref:
    return Ref(level, first, count, size, f"a{first}", "0" * 64)


def test_an_entry_is_not_taken_for_a_head() -> None:
    assert parse_head(b'{"type":"start"}\n', key="k") is None
    assert parse_head(b'{"type":"step","name":"segments"}\n', key="k") is None


@pytest.mark.parametrize(
    "line",
    [
        b'{"type":"segments","generation":0,"session":1,"refs":[]}',
        b'{"type":"segments","generation":0,"session":1,"refs":[[0,1,2,3,"a","b"]]}',
        b'{"type":"segments","generation":0,"session":1,"refs":[[0,0,2,3,"a","b"],[0,3,2,3,"a","b"]]}',
        b'{"type":"segments","generation":0,"session":1,"refs":[[0,0]]}',
        b'{"type":"segments","generation":0,"refs":[[0,0,2,3,"a","b"]]}',
        b'{"type":"segments"',
    ],
)
def test_a_damaged_head_is_corrupt(line: bytes) -> None:
    with pytest.raises(Corrupt, match=r"^k: "):
        parse_head(line, key="k")


def test_a_newer_head_is_refused_not_misread() -> None:
    with pytest.raises(Incompatible, match="format 2"):
        parse_head(b'{"type":"segments","format":2}', key="k")
