"""The results as tables."""

from typing import Any

from bench.lib import table
from bench.ontology_write.contended import FAIR

PEERS = ("delta merge", "pyiceberg")
"""Whom the aim is about: those that upsert as we do."""


def judged(found: dict[str, dict[str, Any]]) -> dict[str, bool]:
    """By size: whether ours took less time and fewer requests than everybody who upserts."""
    return {
        size: all(
            by["ours"]["milliseconds"] < by[peer]["milliseconds"] and by["ours"]["requests"] <= by[peer]["requests"]
            for peer in PEERS
            if peer in by
        )
        for size, by in found.items()
    }


def commit_table(store: str, found: dict[str, dict[str, Any]]) -> str:
    header = (f"{store}: commits", "who", "ms/commit", "spread", "requests", "KiB up", "KiB down", "aim")
    verdicts = judged(found)
    rows = [
        (
            f"at {int(size):,}",
            name,
            f"{each['milliseconds']:,.1f}",
            "{:,.1f}-{:,.1f}".format(*each["milliseconds_spread"]),
            f"{each['requests']:,.2f}" if each["requests"] else "",
            f"{each['uploaded'] / 1024:,.1f}",
            f"{each['downloaded'] / 1024:,.1f}" if each["downloaded"] else "",
            ("met" if verdicts[size] else "MISSED") if name == "ours" else "",
        )
        for size, by in found.items()
        for name, each in by.items()
    ]
    return table(header, rows)


def bulk_table(store: str, found: dict[str, dict[str, Any]]) -> str:
    header = (f"{store}: one commit", "rows", "new rows/s", "changed rows/s", "of delta merge", "requests", "bytes/row")
    rows = [
        (
            name,
            f"{each['rows']:,}",
            f"{each['inserted_rows_per_second']:,}",
            f"{each['changed_rows_per_second']:,}",
            " / ".join(f"{share:.2f}" for share in each.get("of_delta_merge", ())),
            f"{each['requests']:,.1f}" if each["requests"] else "",
            f"{each['uploaded_per_row']:.1f}",
        )
        for name, each in found.items()
    ]
    return table(header, rows)


def contended_table(delay_ms: int, found: dict[str, dict[str, Any]]) -> str:
    header = (f"writers, {delay_ms} ms away", "commits", "commits/s", "slowest/median", "requests", "aim")
    rows = [
        (
            count,
            f"{each['commits']:,}",
            f"{each['commits_per_second']:.2f}",
            f"{each['slowest_over_median']:.2f}",
            f"{each['requests']:.2f}",
            "met" if each["slowest_over_median"] <= FAIR else "MISSED",
        )
        for count, each in found.items()
    ]
    return table(header, rows)
