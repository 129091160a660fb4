"""Which windows go together, days from hours, and the order of sketches. Rows are compared in ``tests/properties``."""

import pytest

from holdfast.base.errors import Invalid
from holdfast.telemetry.rollup.layout import Windows


@pytest.mark.parametrize("names", [(), ("1d",), ("7s",), ("10s", "15s"), ("1m", "90m"), ("1h", "5h"), ("1m", "2d")])
def test_windows_that_do_not_fit_are_refused(names: tuple[str, ...]) -> None:
    with pytest.raises(Invalid, match="window"):
        Windows.of(names)
