"""A summary of the label values of a chunk's series, by which a reader of a generation skips chunks that cannot match,
without a request.

A label that is not named has no value in any series; one that is named with None has too many to list. ``agent`` is the
agent's name, as if it were a label. Of series with very many labels nothing is said at all.
"""

from collections.abc import Iterable, Sequence

from holdfast.telemetry.rollup.matchers import AGENT, Matcher
from holdfast.telemetry.rollup.points import SeriesKey

LabelValues = tuple[tuple[str, tuple[str, ...] | None], ...]
"""By name; values in order, with an empty one for series that do not have the label."""

MOST_LABELS = 16
MOST_VALUES = 16
LONGEST = 64
"""Characters of a value that is listed."""


def label_values(series: Sequence[SeriesKey]) -> LabelValues | None:
    names = {name for key in series for name, _ in key.labels} | {AGENT}
    if len(names) > MOST_LABELS:
        return None
    found: dict[str, set[str]] = {name: set() for name in names}
    for key in series:
        labels = {**dict(key.labels), AGENT: key.agent}
        for name, values in found.items():
            if len(values) <= MOST_VALUES:
                values.add(labels.get(name, ""))
    return tuple((name, _short(values)) for name, values in sorted(found.items()))


def may_match(values: LabelValues | None, matchers: Iterable[Matcher]) -> bool:
    """False if no series can have labels for which all conditions hold."""
    if values is None:
        return True
    known = dict(values)
    for matcher in matchers:
        listed = known.get(matcher.name, ("",))
        if listed is not None and not matcher.fits(listed).any():
            return False
    return True


def _short(values: set[str]) -> tuple[str, ...] | None:
    if len(values) > MOST_VALUES or any(len(value) > LONGEST for value in values):
        return None
    return tuple(sorted(values))
