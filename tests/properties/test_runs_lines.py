"""Lines and states of runs, for all of them."""

import json
from collections.abc import Callable
from functools import reduce
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from holdfast.base.errors import Corrupt
from holdfast.runs.journal.entry import TYPES, Entry, format_line, parse_line
from holdfast.runs.journal.state import FINISHED, NEW, advance, fold

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
names = texts.filter(lambda name: name not in ("type", "session", "offset", "timestamp"))
times = st.datetimes().map(lambda moment: moment.isoformat() + "Z")


@st.composite
def entries(draw: st.DrawFn) -> Entry:
    numbers = st.integers(0, 2**53)
    fields = draw(st.dictionaries(names, values, max_size=4))
    return Entry(draw(st.sampled_from(sorted(TYPES))), draw(numbers), draw(numbers), draw(times), fields)


@given(entries())
def test_a_line_reads_back_as_its_entry(entry: Entry) -> None:
    line = format_line(entry)
    assert line.count(b"\n") == 1
    assert parse_line(line, key="k", number=1) == entry
    assert format_line(parse_line(line, key="k", number=1)) == line


@given(entries(), st.randoms(use_true_random=False), st.sampled_from([None, 1]))
def test_any_writer_s_form_of_a_line_reads_the_same(entry: Entry, rng: Any, indent: int | None) -> None:
    items = list(json.loads(format_line(entry)).items())
    rng.shuffle(items)
    line = json.dumps(dict(items), ensure_ascii=True, indent=indent).encode()
    assert parse_line(line, key="k", number=1) == entry


@given(st.binary(max_size=200))
def test_no_bytes_break_the_reader(line: bytes) -> None:
    complaint = _complaint(lambda: parse_line(line, key="k", number=1))
    assert complaint is None or complaint.startswith("k: line 1 (offset 0): ")


@given(
    st.lists(
        st.tuples(
            st.sampled_from(sorted(TYPES)),
            st.sampled_from(["", "", "", "reopen", "cancelling", "wakeAt", "retryAt", "deleted"]),
            st.integers(-1, 1),
            st.sampled_from([0, 0, 0, 0, 0, 0, -1, 1]),
        ),
        max_size=14,
    )
)
def test_folding_is_advancing_and_the_end_is_the_end(script: list[tuple[str, str, int, int]]) -> None:
    """The quick way over steps is the same as the long way, for journals that hold and for those that do not."""
    made: list[Entry] = []
    session = 0
    for offset, (kind, mark, newer, shift) in enumerate(script):
        session = max(0, session + (newer if kind != "start" else 1))
        fields = {mark: "2026-01-01T00:00:00Z"} if mark else {}
        made.append(Entry(kind, session, offset + shift, "2026-01-01T00:00:00Z", fields))
    violation = _complaint(lambda: reduce(advance, made, NEW))
    assert _complaint(lambda: fold(made)) == violation
    if violation is not None:
        return
    state = reduce(advance, made, NEW)
    assert fold(made) == state
    assert state.next_offset == len(made)
    for before, after in pairwise(made):
        if fold(made[: before.offset + 1]).status in FINISHED:
            assert after.fields.get("reopen") or after.fields.get("deleted")


def _complaint(call: Callable[[], object]) -> str | None:
    try:
        call()
    except Corrupt as corrupt:
        return str(corrupt)
    return None
