"""``python -m bench.ontology_upkeep [--quick] [--out FILE]``

One type grows by commits of a few rows, once with automatic compaction and once without. At 10, 100, 1,000 and 10,000
commits a new session asks: how long it takes, how many requests it makes, warm and cold. Then the throughput of
compaction and of verification, shallow and deep. In memory: what is measured is our own work and the requests, to which
a real store adds its round trips.
"""

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from typing import Any

from bench.lib import RESULTS, facts, table, write_results
from holdfast.objects.client import Client
from holdfast.objects.open import open_store
from holdfast.ontology import Entity, Field
from holdfast.ontology.maintain.compact import Compactor
from holdfast.ontology.maintain.verify.verify import verify
from holdfast.ontology.session import Ontology, Options
from holdfast.ontology.types.typeinfo import type_info

SIZES = (10, 100, 1_000, 10_000)
KEYS = 500
ROWS = 4
COMPACTION = {"off": False, "auto": True}


class Reading(Entity):
    id: Field[str] = Field(primary_key=True)
    value: Field[int]
    place: Field[str]


TYPE = type_info(Reading).type_id


def rows(number: int, count: int = ROWS) -> list[Reading]:
    return [
        Reading(id=f"r{(number * count + each) % KEYS:05}", value=number, place=f"place {each % 7}")
        for each in range(count)
    ]


async def grow(store: Client, compaction: bool, first: int, last: int) -> float:
    """Commits a second."""
    began = time.perf_counter()
    async with Ontology(store, store.ambient, [Reading], Options(compaction=compaction)) as onto:
        for number in range(first, last):
            onto.ensure(rows(number))
            await onto.commit()
    return (last - first) / (time.perf_counter() - began)


async def timed(work: Callable[[], Awaitable[Any]]) -> float:
    began = time.perf_counter()
    await work()
    return (time.perf_counter() - began) * 1e3


def requests(store: Client) -> int:
    return sum(store.usage.by_verb.values())


async def asked(store: Client, rounds: int) -> dict[str, Any]:
    cold: list[float] = []
    warm: list[float] = []
    spent = 0
    for _ in range(rounds):
        before = requests(store)
        async with Ontology(store, store.ambient, [Reading]) as onto:
            query = onto.query(Reading).where(Reading.value > 3)
            cold.append(await timed(query.count))
            spent = requests(store) - before
            warm += [await timed(query.count) for _ in range(5)]
    files = (await Compactor(store, store.ambient).outlook(TYPE)).files
    return {
        "files": files,
        "cold_ms": round(median(cold), 1),
        "cold_requests": spent,
        "warm_ms": round(median(warm), 2),
    }


async def queries(sizes: tuple[int, ...], rounds: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, compaction in COMPACTION.items():
        async with open_store("memory:") as store:
            made = 0
            for size in sizes:
                rate = await grow(store, compaction, made, size)
                made = size
                figures = {**await asked(store, rounds), "commits_per_second": round(rate, 1)}
                found.setdefault(str(size), {})[name] = figures
                print(f"{size:>6} commits, compaction {name}: {figures}", flush=True)
    return found


async def throughput(commits: int, each: int) -> dict[str, Any]:
    async with open_store("memory:") as store:
        async with Ontology(store, store.ambient, [Reading], Options(compaction=False)) as onto:
            for number in range(commits):
                onto.ensure([Reading(id=f"k{row:06}", value=number, place=f"place {row}") for row in range(each)])
                await onto.commit()
        shallow = await timed(lambda: verify(store))
        deep = await timed(lambda: verify(store, deep=True))
        compactor = Compactor(store, store.ambient)
        spent = await timed(lambda: compactor.compact(TYPE))
    total = commits * each
    return {
        "commits": commits,
        "rows": total,
        "verify_commits_per_second": round(commits / shallow * 1e3),
        "verify_deep_rows_per_second": round(total / deep * 1e3),
        "compaction_rows_per_second": round(total / spent * 1e3),
        "compaction_bytes_read": compactor.bytes_read,
        "compaction_bytes_written": compactor.bytes_written,
    }


def shown(found: dict[str, Any]) -> str:
    header = ("commits", "compaction", "files", "cold ms", "requests", "warm ms", "commits/s")
    lines = [
        (
            size,
            name,
            *(str(each[key]) for key in ("files", "cold_ms", "cold_requests", "warm_ms", "commits_per_second")),
        )
        for size, both in found.items()
        for name, each in both.items()
    ]
    return table(header, lines)


async def bench(*, quick: bool) -> dict[str, Any]:
    grown = await queries(SIZES[:2] if quick else SIZES, rounds=1 if quick else 3)
    print(shown(grown), end="\n\n", flush=True)
    upkeep = await throughput(8 if quick else 64, 500 if quick else 20_000)
    print(upkeep, flush=True)
    return {"queries": grown, "upkeep": upkeep}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.ontology_upkeep", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short round: does it run? The figures mean little")
    parser.add_argument("--out", type=Path, help="where to write the JSON (default for a whole run: bench/results)")
    options = parser.parse_args()
    found = asyncio.run(bench(quick=options.quick))
    target = options.out if options.out is not None else None if options.quick else RESULTS / "ontology_upkeep.json"
    if target is not None:
        write_results(target, {"facts": facts("pyarrow", "duckdb"), **found})


if __name__ == "__main__":
    main()
