"""Tables for people, from the figures that are kept as JSON."""

from typing import Any

from bench.lib import table

AIM = 1.3
"""Our time over the floor's, after compaction."""


def results_table(store: str, label: str, results: dict[str, Any]) -> str:
    header = (f"{store}: {label}", "contender", "warm ms", "x floor", "req", "KiB", "cold ms", "x floor", "req", "KiB")
    rows = [
        (question, name, *_cells(states["warm"][name]), *_cells(states["cold"][name]))
        for question, states in results.items()
        for name in states["warm"]
    ]
    return table(header, rows)


def _cells(figures: dict[str, Any]) -> tuple[str, str, str, str]:
    requests, received = figures.get("requests"), figures.get("received_bytes")
    return (
        f"{figures['milliseconds']:,.1f}",
        f"{figures['times_floor']:.2f}",
        "" if requests is None else str(requests),
        "" if received is None else f"{received / 1024:,.0f}",
    )
