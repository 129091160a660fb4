"""Sketches of keys: they never deny what is there, seldom take what is not for it, and mean the same for ever."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.ontology.format.index import Entry
from holdfast.ontology.format.stats import FileStats, Span, may_hold, sketch_of


@given(st.sets(st.text(), max_size=300))
def test_what_is_there_is_never_denied(keys: set[str]) -> None:
    sketch = sketch_of(keys)
    assert all(may_hold(sketch, key) for key in keys)
    assert len(sketch) == max(8, len(keys)), "a byte for each"


def test_what_is_not_there_is_mostly_denied() -> None:
    sketch = sketch_of(f"c{number}" for number in range(1_000))
    wrong = sum(may_hold(sketch, f"d{number}") for number in range(10_000))
    assert 0 < wrong < 400, "about one in fifty"
    assert not may_hold(sketch_of([]), "anything")
    assert may_hold(b"", "anything"), "nothing is known"


def test_the_bits_of_a_key_stay_where_they_are() -> None:
    assert sketch_of(["ada"]).hex() == "0000a00200004001"
    assert sketch_of(["Ä", "%_", "\ud800"]).hex() == "1460a81041812048"


def test_a_sketch_goes_with_the_statistics() -> None:
    stats = FileStats(2, 100, unique=True, keys=(Span("a", "b"),), sketches=(sketch_of(["a", "b"]),))
    for each in (stats, stats.short()):
        assert FileStats.parse(each.document(), key="k") == each
    assert stats.short().sketches == ()
    assert stats.of_keys().sketches == stats.sketches
    malformed = {"min_commit_id": 1, "max_commit_id": 1, "path": "p", "stats": {"rows": 2, "sketches": ["no base64!"]}}
    assert Entry.parse(malformed, key="k").stats is None, "nothing is known then"
