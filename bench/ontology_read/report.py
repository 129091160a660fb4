"""Tables for people, from the figures that are kept as JSON."""

from statistics import median
from typing import Any

from bench.lib import table

AIM = 1.3
"""Our time over the floor's, after compaction."""
LABELS = {"before": "", "after": ", compacted"}


def results_table(store: str, label: str, found: dict[str, Any]) -> str:
    header = (f"{store}: {label}", "contender", "warm ms", "x floor", "req", "KiB", "cold ms", "x floor", "req", "KiB")
    rows: list[tuple[str, ...]] = []
    for question, states in found["before"].items():
        for phase, words in LABELS.items():
            figures = states if phase == "before" else found.get(phase, {}).get(question, {"warm": {}})
            rows += [
                (question, f"{name}{words}", *_cells(figures["warm"][name]), *_cells(figures["cold"][name]))
                for name in figures["warm"]
                if phase == "before" or name != "floor"
            ]
    notes = [f"{name}: {note}" for name, note in found["notes"].items()]
    return "\n".join([table(header, rows), *notes])


def _cells(figures: dict[str, Any]) -> tuple[str, str, str, str]:
    requests, received = figures.get("requests"), figures.get("received_bytes")
    return (
        f"{figures['milliseconds']:,.1f}",
        f"{figures['times_floor']:.2f}",
        "" if requests is None else str(requests),
        "" if received is None else f"{received / 1024:,.0f}",
    )


def summary(results: dict[str, Any]) -> str:
    """Of every size: how our time compares, over all questions; the last phase that there is."""
    rows: list[tuple[str, ...]] = []
    for store, sizes in results.items():
        for label, found in sizes.items():
            figures = found.get("after", found["before"])
            for state in ("warm", "cold"):
                ratios = [states[state]["ours"]["times_floor"] for states in figures.values()]
                within = sum(ratio <= AIM for ratio in ratios)
                cells = (f"{min(ratios):.2f}", f"{median(ratios):.2f}", f"{max(ratios):.2f}")
                rows.append((f"{store}: {label}", state, *cells, f"{within} of {len(ratios)}"))
    return table(("ours over the floor, compacted", "", "least", "median", "most", f"within {AIM}"), rows)
