"""Times on the command line: ``2h`` and ``7d`` or ISO 8601 in, short spans out. Pure."""

from holdfast.base.clock import iso, parse_moment, parse_span

__all__ = ["clock_time", "parse_moment", "parse_span", "span"]

_SECOND = 1_000_000_000


def span(length_ns: int) -> str:
    """A span in its largest unit, for people: ``45s``, ``3m``, ``2h``, ``5d``."""
    seconds = max(0, length_ns) // _SECOND
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def clock_time(moment_ns: int) -> str:
    """UTC to the second."""
    return iso(moment_ns)[:19] + "Z"
