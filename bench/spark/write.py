"""The writing half: rows into an empty table, and then a tenth of them changed.

*First* takes the same DataFrame to a commit of Holdfast (checked row by row by the class, compared, one data file), to
a Delta table (``write_deltalake`` of what Spark hands over as Arrow: delta-rs is no Spark writer), and to plain Parquet
files (``df.write.parquet``, which checks and compares nothing). *Changes* takes a DataFrame of a tenth of the rows,
half of them as they were: a load that writes what has changed; a Delta merge; and, for Parquet, which has no such
thing, all rows anew through a join. Everybody's table is read afterwards, and must give the same numbers.
"""

import gc
import shutil
import time
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from bench.lib import table
from bench.spark.read import Customer, rows_of
from holdfast.objects.open import open_store
from holdfast.pipeline import load
from holdfast.pipeline.tables.datasource import frame

CHANGED = 10
"""One row in so many is in the second frame; every other of them is as it was."""
Side = Callable[[Any, bool], Awaitable[None]]


async def bench(session: Any, folder: Path, rows: int, rounds: int) -> dict[str, Any]:
    first, changes = _inputs(folder, rows)
    sides: dict[str, Callable[[Path], tuple[Side, Callable[[], Any]]]] = {"holdfast": _ours, "parquet": _parquet}
    if find_spec("deltalake") is not None:
        sides["delta-rs"] = _delta
    seconds: dict[str, dict[str, list[float]]] = {"first": {}, "changes": {}}
    answers: set[tuple[Any, ...]] = set()
    for number in range(rounds + 1):  # the first round is not counted
        names = sorted(sides, reverse=bool(number % 2))
        for name in names:
            place = folder / f"{name}-{number}"
            write, read = sides[name](place)
            for what, source in (("first", first), ("changes", changes)):
                gc.collect()
                began = time.perf_counter()
                await write(session.read.parquet(str(source)), what == "first")
                if number:
                    seconds[what].setdefault(name, []).append(time.perf_counter() - began)
            answers.add(tuple(read_totals(session, read())))
            shutil.rmtree(place)
    if len(answers) != 1:
        raise RuntimeError(f"they do not agree: {answers}")
    return {"rows": rows, "changed": rows // CHANGED, "seconds": seconds, "ratios": _ratios(seconds)}


def _inputs(folder: Path, rows: int) -> tuple[Path, Path]:
    numbers = np.arange(rows)
    first, changes = folder / "first", folder / "changes"
    for place, chosen in ((first, numbers), (changes, numbers[::CHANGED])):
        place.mkdir()
        halves = np.array_split(chosen, 2)
        for part, half in enumerate(halves):
            made = rows_of(half, 0)
            if place == changes and part:
                made = rows_of(half, 1)
            pq.write_table(made, place / f"{part}.parquet")
    return first, changes


def read_totals(session: Any, found: Any) -> tuple[Any, ...]:
    frame_of = found(session)
    return tuple(frame_of.selectExpr("count(*)", "sum(score)", "count(DISTINCT name)").first())


def _ours(place: Path) -> tuple[Side, Callable[[], Any]]:
    uri = f"file:{place}"

    async def write(given: Any, first: bool) -> None:
        async with open_store(uri) as store:
            await load(given, store, Customer, on_conflict="replace")

    return write, lambda: lambda session: frame(session, uri, "Customer")


def _parquet(place: Path) -> tuple[Side, Callable[[], Any]]:
    place.mkdir()

    async def write(given: Any, first: bool) -> None:
        if first:
            given.write.parquet(str(place / "0"))
            return
        before = given.sparkSession.read.parquet(str(place / "0"))
        kept = before.join(given.select("id"), "id", "left_anti")
        kept.unionByName(given).write.parquet(str(place / "1"))

    return write, lambda: lambda session: session.read.parquet(str(place / "1"))


def _delta(place: Path) -> tuple[Side, Callable[[], Any]]:
    from deltalake import DeltaTable, write_deltalake  # noqa: PLC0415  # a peer, which may be absent

    async def write(given: Any, first: bool) -> None:
        rows = given.toArrow()
        if first:
            write_deltalake(str(place), rows)
            return
        merging = DeltaTable(str(place)).merge(rows, "t.id = s.id", source_alias="s", target_alias="t")
        merging.when_matched_update_all().when_not_matched_insert_all().execute()

    def files() -> list[str]:
        return [str(place / name) for name in _paths(DeltaTable(str(place)))]

    return write, lambda: lambda session: session.read.parquet(*files())


def _paths(found: Any) -> list[str]:
    return [str(uri).removeprefix("file://").rpartition("/")[2] for uri in found.file_uris()]


def _ratios(seconds: dict[str, dict[str, list[float]]]) -> dict[str, dict[str, float]]:
    """Another's time over ours, in the median of the rounds: above 1 we are faster."""
    return {
        what: {
            name: median(theirs / ours for theirs, ours in zip(taken, sides["holdfast"], strict=True))
            for name, taken in sides.items()
            if name != "holdfast"
        }
        for what, sides in seconds.items()
    }


def shown(found: dict[str, Any]) -> str:
    rows = []
    for what, sides in found["seconds"].items():
        for name, taken in sides.items():
            ratio = found["ratios"][what].get(name)
            rows.append([what, name, f"{median(taken):.2f}", "" if ratio is None else f"{ratio:.2f}"])
    return table(["write", "side", "seconds", "their time / ours"], rows)
