"""The reading half: the state of a type that was loaded once and then changed by some commits.

Four questions, each put to a DataFrame that is loaded anew: all rows by two columns, rows by a value, one row by its
key, and the state before the changes. Everybody gives the same numbers, which is checked. Requests are those of our own
tables, planned and read as tasks do it, counted at the store; of others, the files that they read.
"""

import gc
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.lib import table
from holdfast.objects.open import open_store
from holdfast.ontology import Entity, Field
from holdfast.ontology.session import Ontology
from holdfast.pipeline.tables import Wanted, find
from holdfast.pipeline.tables.datasource import frame
from holdfast.pipeline.tables.given import Given
from holdfast.pipeline.tables.table import Condition, Conditions

COMMITS = 10
SHARE = 100
"""Of the rows, one in so many is changed by a commit."""
TIERS = ("Gold", "Silver", "Std", "Trial")
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


class Customer(Entity):
    id: Field[str] = Field(primary_key=True)
    name: Field[str]
    tier: Field[str]
    score: Field[int]
    since: Field[datetime]


Question = Callable[[Any], tuple[Any, ...]]


def rows_of(numbers: Any, generation: int) -> pa.Table:
    ids = [f"c{number:08d}" for number in numbers]
    return pa.table(
        {
            "id": ids,
            "name": [f"customer {number} of generation {generation}" for number in numbers],
            "tier": [TIERS[(number + generation) % len(TIERS)] for number in numbers],
            "score": pa.array((numbers * 7 + generation) % 1_000, pa.int64()),
            "since": pa.array(
                [BEGIN + timedelta(seconds=int(number)) for number in numbers], pa.timestamp("us", "UTC")
            ),
        }
    )


def totals(found: Any) -> tuple[Any, ...]:
    return tuple(found.selectExpr("count(*)", "sum(score)", "count(DISTINCT tier)").first())


def gold(found: Any) -> tuple[Any, ...]:
    return tuple(found.where("tier = 'Gold' AND score > 900").selectExpr("count(*)", "max(name)").first())


def one(found: Any) -> tuple[Any, ...]:
    # Not first(): its limit stops tasks in the middle, and Spark then waits for the Python process that it interrupted.
    return tuple(found.where("id = 'c00000123'").selectExpr("name", "score").collect()[0])


QUESTIONS: dict[str, tuple[Question, dict[str, str], tuple[Condition, ...]]] = {
    "all rows, two columns": (totals, {"columns": "score,tier"}, ()),
    "rows by a value": (
        gold,
        {"columns": "name,tier,score"},
        (Condition("tier", "=", "Gold"), Condition("score", ">", 900)),
    ),
    "one row by its key": (one, {}, (Condition("id", "=", "c00000123"),)),
    "before the changes": (totals, {"columns": "score,tier", "as_of": "1"}, ()),
}


async def bench(session: Any, folder: Path, rows: int, rounds: int) -> dict[str, Any]:
    uri = f"file:{folder / 'store'}"
    before, after = await _fill(uri, folder, rows)
    sides: dict[str, Callable[[str], Any]] = {
        "holdfast": lambda name: frame(session, uri, "Customer", **QUESTIONS[name][1]),
        "parquet": lambda name: session.read.parquet(str(before if name == "before the changes" else after)),
    }
    if find_spec("deltalake") is not None:
        sides["delta-rs"] = lambda name: session.read.parquet(*_delta_files(folder, name))
    found: dict[str, Any] = {"rows": rows, "commits": COMMITS + 1, "questions": {}}
    for name, (question, options, terms) in QUESTIONS.items():
        seconds: dict[str, list[float]] = {side: [] for side in sides}
        answers: dict[str, tuple[Any, ...]] = {}
        for number in range(rounds + 1):
            order = list(sides) if number % 2 else list(sides)[::-1]
            for side in order:
                gc.collect()
                began = time.perf_counter()
                answers[side] = question(sides[side](name))
                if number:
                    seconds[side].append(time.perf_counter() - began)
        if len(set(answers.values())) != 1:
            raise RuntimeError(f"{name}: the answers differ: {answers}")
        requests = await _requests(uri, options, terms)
        found["questions"][name] = {
            "seconds": {side: [round(each, 3) for each in taken] for side, taken in seconds.items()},
            "ratio_to": {
                side: round(median(a / b for a, b in zip(seconds["holdfast"], seconds[side], strict=True)), 2)
                for side in sides
                if side != "holdfast"
            },
            "requests": requests,
            "files_of_delta_rs": len(_delta_files(folder, name)) if "delta-rs" in sides else None,
        }
    return found


async def _fill(uri: str, folder: Path, rows: int) -> tuple[Path, Path]:
    """A store, a Delta table, and two ideal files: what there was first, and what there is in the end."""
    rng = np.random.default_rng(7)
    first = rows_of(np.arange(rows), 0)
    changes = [rows_of(np.sort(rng.choice(rows, rows // SHARE, replace=False)), n + 1) for n in range(COMMITS)]
    async with open_store(uri) as store, Ontology(store, store.ambient, [Customer]) as onto:
        for each in (first, *changes):
            onto.ensure(each, of=Customer)
            await onto.commit()
    before, after = folder / "before.parquet", folder / "after.parquet"
    pq.write_table(first, before, compression="zstd")
    together = pa.concat_tables([first, *changes])
    latest = {ident: place for place, ident in enumerate(together.column("id").to_pylist())}
    pq.write_table(together.take(pa.array(sorted(latest.values()))), after, compression="zstd")
    if find_spec("deltalake") is not None:
        _delta(folder, first, changes)
    return before, after


def _delta(folder: Path, first: pa.Table, changes: list[pa.Table]) -> None:
    from deltalake import DeltaTable, write_deltalake  # noqa: PLC0415  # an extra

    place = str(folder / "delta")
    write_deltalake(place, first)
    for each in changes:
        merging = DeltaTable(place).merge(each, "t.id = s.id", source_alias="s", target_alias="t")
        merging.when_matched_update_all().when_not_matched_insert_all().execute()


def _delta_files(folder: Path, name: str) -> list[str]:
    """The files of the version that is meant: delta-rs rewrites them, so their rows are the state."""
    from deltalake import DeltaTable  # noqa: PLC0415  # an extra

    version = 0 if name == "before the changes" else None
    found = DeltaTable(str(folder / "delta"), version=version).file_uris()
    return [each.removeprefix("file://") for each in found]


async def _requests(uri: str, options: dict[str, str], terms: tuple[Condition, ...]) -> dict[str, int]:
    """What one read costs at the store, and how many bytes come from it."""
    async with open_store(uri) as store:
        given = Given.of({"store": uri, "table": "Customer", **options})
        found = await find(store, given)
        wanted = Wanted(given.texts("columns") or tuple(found.schema.names), Conditions(terms))
        parts = await found.plan(store, wanted)
        for part in parts:
            async for _ in found.read(store, part, wanted):
                pass
        received = sum(tally.received_bytes for tally in store.usage.tallies.values())
        return {"parts": len(parts), **store.usage.by_verb, "megabytes": round(received / 1e6)}


def shown(found: dict[str, Any]) -> str:
    header = ["read, seconds (median)", "holdfast", "delta-rs", "parquet", "to delta-rs", "to parquet", "requests"]
    lines = []
    for name, figures in found["questions"].items():
        taken = {side: f"{median(each):.2f}" for side, each in figures["seconds"].items()}
        ratios = figures["ratio_to"]
        spent = ", ".join(f"{count} {verb}" for verb, count in figures["requests"].items())
        cells = [taken.get(side, "-") for side in ("holdfast", "delta-rs", "parquet")]
        lines.append([name, *cells, *(f"{ratios.get(side, '-')}" for side in ("delta-rs", "parquet")), spent])
    return table(header, lines)
