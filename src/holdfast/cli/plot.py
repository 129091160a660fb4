"""Plots for a terminal: a series as a line of blocks, its lowest value lowest. Pure."""

import math
from collections.abc import Sequence

BLOCKS = "▁▂▃▄▅▆▇█"
WIDEST = 80
"""Characters; of longer series each stands for several steps."""


def sparkline(times: Sequence[int], values: Sequence[float], since: int, until: int, step: int) -> str:
    """One character per step, or per several; blank where nothing was seen. Steps that share one show their mean."""
    steps = max(1, (until - since) // step)
    each = -(-steps // WIDEST)
    cells: dict[int, list[float]] = {}
    for at, value in zip(times, values, strict=True):
        cells.setdefault((at - since) // step // each, []).append(value)
    means = {place: sum(found) / len(found) for place, found in cells.items()}
    finite = [value for value in means.values() if math.isfinite(value)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 0.0)
    return "".join(_block(means.get(place), low, high) for place in range(-(-steps // each)))


def _block(value: float | None, low: float, high: float) -> str:
    if value is None or math.isnan(value):
        return " "
    if math.isinf(value):
        return BLOCKS[-1] if value > 0 else BLOCKS[0]
    if high == low:
        return BLOCKS[0]
    # Halves first: the distance between two floats may be more than a float can hold.
    part = (value / 2 - low / 2) / (high / 2 - low / 2)
    return BLOCKS[min(len(BLOCKS) - 1, int(part * len(BLOCKS)))]
