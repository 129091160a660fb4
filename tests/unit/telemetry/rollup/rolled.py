"""Helpers: batches of records, and rollups of them as dictionaries, to be compared with the reference."""

import math
from datetime import UTC, datetime, timedelta
from typing import Any

from holdfast.telemetry.frame import Batch, Sequenced, decode, encode, pack_sequenced
from holdfast.telemetry.rollup import chunk
from holdfast.telemetry.rollup.rows import Rows

SECOND = 1_000_000_000
MINUTE = 60 * SECOND
HOUR = 3600 * SECOND
EXACT = (
    *("count", "nans", "min", "max", "first", "last", "first_time_ns", "last_time_ns", "resets"),
    *("bounds", "bucket_counts"),
)
ADDED = ("sum", "increase")
_BEGIN = datetime(1970, 1, 1, tzinfo=UTC)


def batch(agent: str, boot: str, records: dict[int, Any]) -> Batch:
    """As it comes out of a frame."""
    return decode(encode(pack_sequenced(agent, boot, [Sequenced(seq, each) for seq, each in records.items()])))


def as_dict(rows: Rows) -> dict[tuple[Any, int], dict[str, Any]]:
    """By series and start, as a reader of Parquet sees it."""
    found = {}
    for row in chunk.table_of(rows).to_pylist():
        series = (row["metric"], row["agent"], tuple(row["labels"]), row["kind"], row["boot"])
        key = (series, (row["window_start"] - _BEGIN) // timedelta(microseconds=1) * 1000)
        assert key not in found
        found[key] = row
    return found


def agree(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Equal numbers; sums of floats up to the order of addition."""
    for name in EXACT:
        assert one[name] == other[name], (name, one, other)
    for name in ADDED:
        assert close(one[name], other[name]), (name, one, other)


def close(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return (math.isnan(one) and math.isnan(other)) or math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-6)
