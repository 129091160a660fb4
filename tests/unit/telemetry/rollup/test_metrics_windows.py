"""Which windows go together, and what rows say at the edges: NaN, infinities, resets across windows."""

import math

import numpy as np
import pytest

from holdfast.base.errors import Invalid
from holdfast.telemetry.records import Counter
from holdfast.telemetry.rollup import chunk, kernel, rollup, sketch
from holdfast.telemetry.rollup.extract import telemetry_of
from holdfast.telemetry.rollup.layout import Windows
from holdfast.telemetry.rollup.manifest import Kind, Unit
from holdfast.telemetry.rollup.points import Telemetry
from tests.unit.telemetry.rollup.rolled import HOUR, MINUTE, SECOND, as_dict, batch

DEFAULT = Windows.of()


def gathered(*values: float, step: int = SECOND, kind: type = Counter) -> Telemetry:
    return telemetry_of([batch("a", "0", {seq: kind("m", value, seq * step) for seq, value in enumerate(values)})])


def test_windows_by_default() -> None:
    assert DEFAULT.names == ("10s", "1m", "5m", "1h", "1d")
    assert DEFAULT.hourly[-1] == HOUR
    assert DEFAULT.daily == (24 * HOUR,)
    assert kernel.version_of(Kind.ROLLUP, DEFAULT) == "rollup.3 10s,1m,5m,1h"
    assert kernel.version_of(Kind.DAILY, DEFAULT) == "daily.3 1d"


@pytest.mark.parametrize("names", [(), ("1d",), ("7s",), ("10s", "15s"), ("1m", "90m"), ("1h", "5h"), ("1m", "2d")])
def test_windows_that_do_not_fit_are_refused(names: tuple[str, ...]) -> None:
    with pytest.raises(Invalid, match="window"):
        Windows.of(names)


def test_nan_is_counted_and_is_no_value() -> None:
    found = gathered(1.0, math.nan, 3.0, math.nan, step=SECOND)
    rows = rollup.merge(rollup.from_points(found.points, SECOND), MINUTE)
    [row] = as_dict(rows).values()
    assert (row["count"], row["nans"], row["sum"], row["increase"]) == (2, 2, 4.0, 2.0)
    only = as_dict(rollup.from_points(gathered(math.nan).points, MINUTE))
    [row] = only.values()
    assert (row["count"], row["nans"], row["sum"]) == (0, 1, 0.0)
    assert [row[name] for name in ("min", "max", "first", "last", "first_time_ns", "increase")] == [None] * 6


def test_days_are_merged_from_hours() -> None:
    found = gathered(*range(30), step=HOUR)
    hours = [
        rollup.from_points(telemetry_of([batch("a", "0", {0: Counter("m", n, n * HOUR)})]).points, HOUR)
        for n in range(24)
    ]
    unit = Unit(Kind.DAILY, 0, 1, 0, (), kernel.version_of(Kind.DAILY, DEFAULT))
    [made] = kernel.daily_chunks(unit, hours, DEFAULT)
    assert made.ref.key.startswith("rollup/v1/window=1d/date=1970-01-01/hour=00/metric=m/")
    [row] = as_dict(chunk.decode(made.body, key="k")).values()
    assert (row["count"], row["increase"], row["first"], row["last"]) == (24, 23.0, 0.0, 23.0)
    whole = rollup.merge(rollup.merge(rollup.from_points(found.points, MINUTE), HOUR), 24 * HOUR)
    assert [row["count"] for row in as_dict(whole).values()] == [24, 6]


def test_buckets_of_sketches_are_in_the_order_of_values() -> None:
    values = np.array(
        [-math.inf, -1e300, -2.0, -1.99, -1e-300, -5e-324, -0.0, 0.0, 5e-324, 1e-300, 1.99, 2.0, math.inf]
    )
    keys = sketch.keys_of(values)
    assert (np.diff(keys) >= 0).all()
    assert keys[6] == keys[7] == 0
    assert [sketch.value_of(int(keys[place])) for place in (0, 6, -1)] == [-math.inf, 0.0, math.inf]
    assert math.isnan(sketch.quantile(np.zeros(0, np.int64), np.zeros(0, np.int64), 0.5, 0.0, 0.0))
