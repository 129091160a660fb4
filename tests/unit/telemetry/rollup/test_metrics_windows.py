"""Which windows go together, days from hours, and the order of sketches. Rows are compared in ``tests/properties``."""

import math

import numpy as np
import pytest

from holdfast.base.errors import Invalid
from holdfast.telemetry.records import Counter
from holdfast.telemetry.rollup import chunk, kernel, sketch
from holdfast.telemetry.rollup.layout import Windows
from holdfast.telemetry.rollup.manifest import Kind, Unit
from holdfast.telemetry.rollup.points import telemetry_of
from holdfast.telemetry.rollup.rows import rows_of_points
from tests.unit.telemetry.rollup.rolled import HOUR, as_dict, batch


@pytest.mark.parametrize("names", [(), ("1d",), ("7s",), ("10s", "15s"), ("1m", "90m"), ("1h", "5h"), ("1m", "2d")])
def test_windows_that_do_not_fit_are_refused(names: tuple[str, ...]) -> None:
    with pytest.raises(Invalid, match="window"):
        Windows.of(names)


def test_days_are_merged_from_hours() -> None:
    windows = Windows.of()
    hours = [
        rows_of_points(telemetry_of([batch("a", "0", {0: Counter("m", n, n * HOUR)})]).samples, HOUR) for n in range(24)
    ]
    unit = Unit(Kind.DAILY, 0, 1, 0, (), kernel.version_of(Kind.DAILY, windows))
    [made] = kernel.daily_chunks(unit, hours, windows)
    assert made.ref.key.startswith("rollup/v1/window=1d/date=1970-01-01/hour=00/metric=m/")
    [row] = as_dict(chunk.decode(made.body, key="k")).values()
    assert (row["count"], row["increase"], row["first"], row["last"]) == (24, 23.0, 0.0, 23.0)


def test_buckets_of_sketches_are_in_the_order_of_values() -> None:
    values = np.array(
        [-math.inf, -1e300, -2.0, -1.99, -1e-300, -5e-324, -0.0, 0.0, 5e-324, 1e-300, 1.99, 2.0, math.inf]
    )
    keys = sketch.keys_of(values)
    assert (np.diff(keys) >= 0).all()
    assert keys[6] == keys[7] == 0
    assert [sketch.value_of(int(keys[place])) for place in (0, 6, -1)] == [-math.inf, 0.0, math.inf]
    assert math.isnan(sketch.quantile(np.zeros(0, np.int64), np.zeros(0, np.int64), 0.5, 0.0, 0.0))
