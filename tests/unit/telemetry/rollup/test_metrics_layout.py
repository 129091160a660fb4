"""Keys of derived data: they come back as what they were made from, and foreign ones are none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.base.errors import Invalid
from holdfast.telemetry.rollup import layout
from holdfast.telemetry.rollup.layout import DAY_NS, HOUR_NS, SECOND_NS

ID = "ab" * 32
NOON = 1_789_041_600 // 3600


def test_keys_are_those_of_the_specification() -> None:
    assert layout.rollup_key(60 * SECOND_NS, NOON, "node_load1", ID) == (
        f"rollup/v1/window=1m/date=2026-09-10/hour=12/metric=node_load1/{ID}.lmrollup.zst"
    )
    assert layout.index_key(NOON, ID) == f"index/v1/date=2026-09-10/hour=12/{ID}.lmindex.zst"
    assert layout.unit_key(NOON, ID) == f"manifests/v1/date=2026-09-10/hour=12/unit-{ID}.json"
    assert layout.generation_key(NOON, "rollup", 7) == "manifests/v1/date=2026-09-10/hour=12/rollup-00000007.json"
    assert layout.batches_key(NOON, ID) == f"batches-by-hour/v1/date=2026-09-10/hour=12/{ID}.parquet"


@given(st.text(min_size=1, max_size=30))
def test_names_of_metrics_come_back_from_keys(name: str) -> None:
    key = layout.rollup_key(SECOND_NS, NOON, name, ID)
    assert layout.metric_in(key) == name
    assert key.count("/") == 6
    assert key.isascii()


def test_a_long_name_gets_a_key_of_its_own_that_does_not_give_it_back() -> None:
    one, other = "m" * 3000, "m" * 2999 + "n"
    assert layout.escape(one) != layout.escape(other)
    assert layout.unescape(layout.escape(one)) is None
    assert len(layout.rollup_key(SECOND_NS, NOON, one, ID)) < 400


@pytest.mark.parametrize("component", ["%", "%zz", "a%2fb", "%FF", "a b", "~"])
def test_what_no_name_was_escaped_to_is_no_name(component: str) -> None:
    assert layout.unescape(component) is None


@given(st.integers(-(2**63) // HOUR_NS + 1, 2**63 // HOUR_NS - 1))
def test_hours_come_back_from_keys(hour: int) -> None:
    assert layout.hour_in(layout.unit_key(hour, ID)) == hour
    assert layout.hour_of(layout.hour_start_ns(hour)) == hour
    assert layout.hour_of(layout.hour_start_ns(hour) - 1) == hour - 1


def test_hours_between_have_a_part_in_the_range() -> None:
    assert list(layout.hours_between(0, HOUR_NS)) == [0]
    assert list(layout.hours_between(HOUR_NS - 1, HOUR_NS + 1)) == [0, 1]
    assert list(layout.hours_between(5, 5)) == [0]
    assert list(layout.hours_between(-1, 0)) == [-1]


def test_windows_have_names() -> None:
    sizes = {"10s": 10, "90s": 90, "1m": 60, "5m": 300, "1h": 3600, "6h": 21600, "1d": 86400}
    for name, seconds in sizes.items():
        assert layout.window_of(name) == seconds * SECOND_NS
        assert layout.window_name(seconds * SECOND_NS) == name
    for wrong in ("", "0s", "10", "s", "1w", "-1m", "1.5h", "10S"):
        with pytest.raises(Invalid, match="no window"):
            layout.window_of(wrong)
    for wrong_ns in (0, -SECOND_NS, 1, DAY_NS + 1):
        with pytest.raises(Invalid, match="whole seconds"):
            layout.window_name(wrong_ns)


def test_foreign_keys_are_none() -> None:
    assert layout.unit_in("manifests/v1/date=2026-09-10/hour=12/unit-xyz.json") is None
    assert layout.unit_in(f"elsewhere/unit-{ID}.json") is None
    assert layout.unit_in(layout.unit_key(NOON, ID)) == ID
    assert layout.generation_in("manifests/v1/date=2026-09-10/hour=12/rollup-7.json") is None
    assert layout.generation_in(layout.generation_key(NOON, "index", 12)) == ("index", 12)
    assert layout.hour_in("manifests/v1/date=2026-13-41/hour=99/x") is None
    assert layout.metric_in("rollup/v1/x") is None
    with pytest.raises(Invalid, match="no SHA-256"):
        layout.unit_key(NOON, "../x")
    with pytest.raises(Invalid, match="no number of a generation"):
        layout.generation_key(NOON, "rollup", 0)
