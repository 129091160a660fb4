"""Summaries in keys: what goes in comes out, whatever it is, and keys stay short."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.objects.store import check_key
from holdfast.runs import layout
from holdfast.runs.journal.state import TRANSITIONS
from holdfast.runs.journal.summary import Nudge, RunSummary, day_of, index_key, nudge_key, read_key

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=300)
ids = st.text(st.characters(categories=["L", "N", "P", "S"]), min_size=1, max_size=60).filter(
    lambda text: "/" not in text and text not in (".", "..") and len(text.encode()) <= 200
)
times = st.integers(0, 4_000_000_000_000)
summaries = st.builds(
    RunSummary,
    run_id=ids,
    status=st.sampled_from(sorted(TRANSITIONS)),
    session=st.integers(0, 10**9),
    offset=st.integers(0, 10**9),
    workflow=texts,
    tags=st.lists(texts.filter(bool), max_size=12).map(tuple),
    event=st.none() | texts.filter(bool),
    generation=st.integers(0, 10**6),
    started_ms=times,
    updated_ms=times,
    wake_ms=st.none() | times,
    detached=st.booleans(),
)


@given(summaries)
def test_a_summary_reads_back_from_its_key(summary: RunSummary) -> None:
    key = index_key(summary)
    assert check_key(key) == key
    assert len(key.encode()) < 1024 - 300
    found = read_key(key)
    assert found is not None
    run_id, said = found
    assert run_id == summary.run_id
    assert isinstance(said, RunSummary)
    assert (said.rank, said.status, said.wake_ms) == (summary.rank, summary.status, summary.wake_ms)
    assert (said.started_ms, said.updated_ms, said.generation) == (
        summary.started_ms,
        summary.updated_ms,
        summary.generation,
    )
    if said.cut:
        assert set(said.tags) <= set(summary.tags)
        assert said.event in (None, summary.event)
    else:
        assert (said.workflow, said.tags, said.event) == (summary.workflow, summary.tags, summary.event)


@given(ids, ids, st.none() | texts.filter(bool))
def test_a_nudge_reads_back_from_its_key(run_id: str, mail_id: str, event: str | None) -> None:
    key = nudge_key(run_id, Nudge(mail_id, event))
    assert check_key(key) == key
    found = read_key(key)
    assert found is not None
    assert found[0] == run_id
    assert isinstance(found[1], Nudge)
    assert found[1].mail_id == mail_id
    assert found[1].event in (None, event)


def test_a_child_s_name_does_not_stand_twice() -> None:
    run_id = "parent" * 30
    key = index_key(RunSummary(run_id, "suspended", 1, 2, event=f"child:{run_id}.step"))
    assert key.count("parent" * 30) == 1
    found = read_key(key)
    assert found is not None
    assert isinstance(found[1], RunSummary)
    assert found[1].event == f"child:{run_id}.step"


def test_what_is_over_lies_under_its_day() -> None:
    ended = RunSummary("r", "failed", 1, 2, updated_ms=1_767_326_400_000)
    assert index_key(ended).startswith(f"{layout.INDEX_DONE}2026-01-02/r/")
    assert day_of(0) == "1970-01-01"
    assert index_key(RunSummary("r", "retrying", 1, 2)).startswith(f"{layout.INDEX_OPEN}r/")


def test_a_key_that_says_nothing_is_nothing() -> None:
    for key in ("runs-index/v1/open/r/x", "runs-index/v1/open/r/1.2.open.a.b.c.d.e.f", "runs-index/v2/open/r/x", "x"):
        assert read_key(key) is None


def test_tags_match_by_name_or_whole() -> None:
    summary = RunSummary("r", "open", 1, 1, tags=("env=prod", "urgent"))
    assert [summary.has_tag(tag) for tag in ("env", "env=prod", "urgent", "en", "prod")] == [
        True,
        True,
        True,
        False,
        False,
    ]
