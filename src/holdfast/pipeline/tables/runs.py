"""Durable runs: one row for each run, from the index alone; one row for each step, from the journals."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from holdfast.objects.store import Store
from holdfast.pipeline.tables.given import Given
from holdfast.pipeline.tables.table import TIMESTAMP, RowsTable, Tables, Wanted, batch_of, microseconds
from holdfast.runs.journal.entry import STEP, Entry
from holdfast.runs.journal.history import read_history
from holdfast.runs.journal.index import RunIndex
from holdfast.runs.journal.summary import RunSummary

ROWS_AT_ONCE = 2_000
_MS = 1_000_000
RUNS = pa.schema(
    [
        ("run_id", pa.string()),
        ("status", pa.string()),
        ("workflow", pa.string()),
        ("tags", pa.list_(pa.string())),
        ("event", pa.string()),
        ("session", pa.int64()),
        ("generation", pa.int64()),
        ("entries", pa.int64()),
        ("started_at", TIMESTAMP),
        ("updated_at", TIMESTAMP),
        ("wake_at", TIMESTAMP),
        ("detached", pa.bool_()),
        ("blocked", pa.string()),
    ]
)
STEPS = pa.schema(
    [
        ("run_id", pa.string()),
        ("offset", pa.int64()),
        ("session", pa.int64()),
        ("name", pa.string()),
        ("at", TIMESTAMP),
        ("fields", pa.string()),
    ]
)


@dataclass(frozen=True)
class RunsTable:
    name: str = "runs"
    schema: pa.Schema = RUNS

    async def plan(self, store: Store, wanted: Wanted) -> list[str]:
        return ["all"]

    async def read(self, store: Store, part: str, wanted: Wanted) -> AsyncIterator[pa.RecordBatch]:
        rows: list[dict[str, Any]] = []
        async for summary in _summaries(store, wanted):
            rows.append(_run(summary))
            if len(rows) >= ROWS_AT_ONCE:
                yield batch_of(RUNS, wanted.columns, rows)
                rows = []
        if rows:
            yield batch_of(RUNS, wanted.columns, rows)


async def _summaries(store: Store, wanted: Wanted) -> AsyncIterator[RunSummary]:
    """Runs as far as their status and their latest change tell that they may be meant."""
    statuses = wanted.conditions.values("status")
    low, high = wanted.conditions.times("", "updated_at")
    index = RunIndex(store)
    known = None if statuses is None else {str(each) for each in statuses}
    async for summary in index.list(status=known, since_ns=low, until_ns=high):
        yield summary


def _run(summary: RunSummary) -> dict[str, Any]:
    return {
        "run_id": summary.run_id,
        "status": summary.status,
        "workflow": summary.workflow,
        "tags": list(summary.tags),
        "event": summary.event,
        "session": summary.session,
        "generation": summary.generation,
        "entries": summary.offset,
        "started_at": summary.started_ms * 1_000,
        "updated_at": summary.updated_ms * 1_000,
        "wake_at": None if summary.wake_ms is None else summary.wake_ms * 1_000,
        "detached": summary.detached,
        "blocked": summary.blocked,
    }


async def _listed_runs(store: Store, wanted: Wanted) -> list[str]:
    fits = wanted.conditions.allows("run_id")
    return sorted([each.run_id async for each in RunIndex(store).list() if fits(each.run_id)])


async def _read_steps(store: Store, run_id: str, _: Wanted) -> list[dict[str, Any]]:
    history = await read_history(store, run_id)
    found = [] if history is None else history.entries
    return [_step(run_id, entry) for entry in found if entry.type == STEP]


def _step(run_id: str, entry: Entry) -> dict[str, Any]:
    return {
        "run_id": run_id,
        "offset": entry.offset,
        "session": entry.session,
        "name": str(entry.fields.get("name", "")),
        "at": microseconds(entry.timestamp_ns),
        "fields": json.dumps(entry.fields, ensure_ascii=False, sort_keys=True),
    }


async def _runs(store: Store, given: Given) -> RunsTable:
    return RunsTable()


async def _steps(store: Store, given: Given) -> RowsTable:
    return RowsTable("steps", STEPS, _listed_runs, _read_steps)


TABLES: Tables = {"runs": (_runs, ()), "steps": (_steps, ())}
