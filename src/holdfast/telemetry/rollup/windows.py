"""Which windows rows are made for. Each is a multiple of the one before it, so that it can be merged from it.

Windows up to an hour divide the hour, larger ones are whole hours and divide the day: no window crosses the border of
what it is derived from. A window begins at a multiple of its length since 1970, in UTC, and has no end of its own.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from holdfast.base.errors import Invalid
from holdfast.telemetry.rollup.layout import DAY_NS, HOUR_NS, window_name, window_of

DEFAULT = ("10s", "1m", "5m", "1h", "1d")


@dataclass(frozen=True, slots=True)
class Windows:
    hourly: tuple[int, ...]
    """Nanoseconds; from samples."""
    daily: tuple[int, ...]
    """Nanoseconds; from rows of the largest hourly one."""

    @property
    def all(self) -> tuple[int, ...]:
        return self.hourly + self.daily

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(map(window_name, self.all))

    @classmethod
    def of(cls, names: Iterable[str] = DEFAULT) -> "Windows":
        found = sorted({window_of(name) for name in names})
        hourly = tuple(each for each in found if each <= HOUR_NS)
        daily = tuple(each for each in found if each > HOUR_NS)
        _check(found, hourly)
        return cls(hourly, daily)

    def version(self, kind: str, number: int) -> str:
        """The version of a derivation with these windows."""
        chosen = self.daily if kind == "daily" else self.hourly
        return f"{kind}.{number} {','.join(map(window_name, chosen))}"


def _check(found: Sequence[int], hourly: Sequence[int]) -> None:
    if not hourly:
        raise Invalid("no window is an hour or less", remedy="name at least one such as 1m")
    for smaller, larger in pairwise(found):
        if larger % smaller:
            raise Invalid(
                f"window {window_name(larger)} is no multiple of {window_name(smaller)}",
                remedy="choose windows of which each divides the next, such as 10s, 1m, 5m, 1h, 1d",
            )
    for each in found:
        check_window(each)


def check_window(window_ns: int) -> None:
    """``Invalid`` for what can be no window, whatever the others are."""
    whole = HOUR_NS if window_ns <= HOUR_NS else DAY_NS
    if window_ns <= 0 or whole % window_ns or (window_ns > HOUR_NS and window_ns % HOUR_NS):
        raise Invalid(
            f"window {window_name(window_ns)} does not divide {window_name(whole)} evenly",
            remedy="up to an hour, windows divide the hour; above, they are whole hours and divide the day",
        )
