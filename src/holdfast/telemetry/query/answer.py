"""Answers: values for people and programs, and what was read for them."""

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from holdfast.base.codec import Document, json_number
from holdfast.telemetry.query.question import Question
from holdfast.telemetry.rollup.layout import window_name


@dataclass(slots=True)
class Read:
    """What was read for an answer."""

    hours: int = 0
    chunks: int = 0
    """Chunks of rollups or indexes that were fetched."""
    batches: int = 0
    """Batches that were read because no chunk covers them."""
    unreadable: tuple[str, ...] = ()
    """Batches that could not be read, by manifest id: the answer lacks them."""
    expired: tuple[str, ...] = ()
    """Expired batches that no used chunk counts: the answer lacks them too."""
    warnings: list[str] = field(default_factory=list)
    """Warnings about the numbers, in whole sentences."""

    def document(self) -> Document:
        return {
            "hours": self.hours,
            "chunks": self.chunks,
            "batches": self.batches,
            "unreadable": list(self.unreadable),
            **({"expired": list(self.expired)} if self.expired else {}),
            **({"warnings": list(self.warnings)} if self.warnings else {}),
        }


@dataclass(slots=True)
class AnsweredSeries:
    labels: dict[str, str]
    """The labels by which series were grouped; for a single series all of its labels, and ``agent``."""
    kind: str
    times_ns: list[int] = field(default_factory=list)
    """Where steps begin. Steps without samples are left out."""
    values: list[float] = field(default_factory=list)


@dataclass(slots=True)
class Answer:
    """The values of a metric over a range of time."""

    question: Question
    series: list[AnsweredSeries] = field(default_factory=list)
    read: Read = field(default_factory=Read)

    def rows(self) -> list[dict[str, Any]]:
        """One dictionary per value: ``time_ns``, ``value``, ``kind``, ``labels``."""
        return [
            {"time_ns": time_ns, "value": value, "kind": each.kind, "labels": each.labels}
            for each in self.series
            for time_ns, value in zip(each.times_ns, each.values, strict=True)
        ]

    def table(self) -> pa.Table:
        """The same as an Arrow table, for data frames: ``answer.table().to_pandas()``."""
        rows = self.rows()
        return pa.table(
            {
                "time": pa.array([row["time_ns"] for row in rows], pa.int64()).cast(pa.timestamp("ns", "UTC")),
                "value": pa.array([row["value"] for row in rows], pa.float64()),
                "kind": pa.array([row["kind"] for row in rows], pa.string()),
                "labels": pa.array([sorted(row["labels"].items()) for row in rows], pa.map_(pa.string(), pa.string())),
            }
        )

    def document(self) -> Document:
        """The answer as JSON."""
        asked = self.question
        return {
            "metric": asked.metric,
            "aggregate": str(asked.aggregate),
            "since_ns": asked.since_ns,
            "until_ns": asked.until_ns,
            "step": window_name(asked.step_ns),
            **({} if asked.unfinished_ns is None else {"unfinished_ns": asked.unfinished_ns}),
            "series": [
                {
                    "labels": each.labels,
                    "kind": each.kind,
                    "points": [[at, json_number(value)] for at, value in zip(each.times_ns, each.values, strict=True)],
                }
                for each in self.series
            ],
            "read": self.read.document(),
        }


@dataclass(slots=True)
class Listing:
    """Rows about metrics, labels or logs."""

    rows: list[dict[str, Any]]
    read: Read
    truncated: bool = False

    def document(self, name: str) -> Document:
        return {name: self.rows, "truncated": self.truncated, "read": self.read.document()}
