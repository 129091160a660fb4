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


@given(st.text(min_size=1, max_size=30), st.text(min_size=1, max_size=30))
def test_each_name_of_a_metric_has_a_key_of_its_own(name: str, other: str) -> None:
    key = layout.rollup_key(SECOND_NS, NOON, name, ID)
    assert (key.count("/"), key.isascii()) == (6, True)
    assert (key == layout.rollup_key(SECOND_NS, NOON, other, ID)) == (name == other)
    one, two = (layout.rollup_key(SECOND_NS, NOON, 3000 * "m" + each, ID) for each in (name, other))
    assert (one == two) == (name == other)
    assert len(one) < 400


@given(st.integers(-(2**63) // HOUR_NS + 1, 2**63 // HOUR_NS - 1))
def test_hours_come_back_from_keys(hour: int) -> None:
    assert layout.hour_in(layout.unit_key(hour, ID)) == hour


def test_windows_have_names() -> None:
    sizes = {"10s": 10, "90s": 90, "1m": 60, "5m": 300, "1h": 3600, "6h": 21600, "1d": 86400}
    for name, seconds in sizes.items():
        assert layout.window_of(name) == seconds * SECOND_NS
        assert layout.window_name(seconds * SECOND_NS) == name
    for wrong in ("", "0s", "10", "s", "1w", "-1m", "1.5h", "10S"):
        with pytest.raises(Invalid, match="is not a window"):
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
    assert layout.listing_in(layout.batches_key(NOON, ID)) == ID
    for name in ("x" * 64 + ".parquet", f"{ID}.parquet.bak", f"sub/{ID}.parquet"):
        assert layout.listing_in(f"{layout.batches_folder(NOON)}{name}") is None
    with pytest.raises(Invalid, match="is not a SHA-256"):
        layout.unit_key(NOON, "../x")
    with pytest.raises(Invalid, match="is not the number"):
        layout.generation_key(NOON, "rollup", 0)
