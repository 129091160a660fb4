"""``python -m bench.ontology_read [--quick | --full] [--store file|s3] [--out FILE] [--folder FOLDER]``

The same questions about the same history of commits, put to Holdfast, to DuckDB over one ideal Parquet file per table
(the floor, which nobody could keep beside a writer), to delta-rs with DuckDB, and to pyiceberg; in turns, medians.
Warm: a session that has asked before, and asks again whether there is anything new. Cold: a session of its own for
each question. On ``s3``, a server on the loopback, requests and bytes are counted at a door before the server.
"""

import argparse
import asyncio
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.lib import RESULTS, facts, write_results
from bench.ontology_read import delta, iceberg, report
from bench.ontology_read.data import History, Size
from bench.ontology_read.floor import Floor
from bench.ontology_read.ours import Compacted, Ours
from bench.ontology_read.places import Meter, Place, served
from bench.ontology_read.questions import QUESTIONS, Question, digest
from bench.ontology_read.sides import Session, Side
from bench.runs.rounds import Measure, Medians, Taken, in_turns

STORES = ("file", "s3")
QUICK = (Size(200, 3),)
DEFAULT = (Size(1_000, 1), Size(1_000, 20), Size(100_000, 20), Size(100_000, 200))
FULL = (
    *DEFAULT,
    Size(1_000, 1_000),
    Size(100_000, 1_000),
    Size(1_000_000, 1),
    Size(1_000_000, 20),
    Size(1_000_000, 1_000),
)
WARM_ROUNDS, COLD_ROUNDS = 5, 3
PEERS_COMMITS = 20
"""Beyond so many commits the peers are left out: a merge of theirs for each takes too long."""


@contextmanager
def places(store: str, folder: Path) -> Iterator[tuple[Place, Place, Meter | None]]:
    if store == "file":
        yield Place(folder), Place(folder), None
    else:
        with served(folder) as found:
            yield found


async def built(place: Place, size: Size) -> dict[str, Side]:
    """Every contender with the whole history."""
    sides: dict[str, Side] = {"floor": Floor(place, size), "ours": Ours(place, size)}
    if size.commits > 1:
        sides["ours, compacted"] = Compacted(place, size)
    if size.commits <= PEERS_COMMITS:
        if delta.INSTALLED:
            sides["delta-rs"] = delta.Delta(place, size)
        if iceberg.INSTALLED:
            sides["pyiceberg"] = iceberg.Iceberg(place, size)
    history = History(size)
    for side in sides.values():
        await side.begin(history)
    for number, customers in history.commits():
        for side in sides.values():
            await side.commit(number, customers, history)
    for side in sides.values():
        await side.end(history)
    return sides


async def bench(store: str, size: Size, *, warm: int, cold: int, folder: Path | None) -> dict[str, Any]:
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=folder) as scratch,
        places(store, Path(scratch)) as (place, metered, meter),
    ):
        sides = await built(place, size)
        results: dict[str, Any] = {}
        sessions = {name: await side.session(place) for name, side in sides.items()}
        for question in QUESTIONS:
            await _agree(sessions, question)
            warmed = {name: _warm(session, question) for name, session in sessions.items()}
            chilled = {name: _cold(side, place, question) for name, side in sides.items()}
            results[question.name] = {
                "warm": _figures(await in_turns(warmed, rounds=warm)),
                "cold": _figures(await in_turns(chilled, rounds=cold)),
            }
        for session in sessions.values():
            await session.close()
        if meter is not None:
            for name, side in sides.items():
                await _count(name, side, metered, meter, results)
    print(report.results_table(store, size.label, results), end="\n\n", flush=True)
    return results


async def _agree(sessions: dict[str, Session], question: Question) -> None:
    found = {name: digest(await session.ask(question)) for name, session in sessions.items()}
    if len(set(found.values())) != 1:
        raise RuntimeError(f"{question.name}: the answers differ: {found}")


def _warm(session: Session, question: Question) -> Measure:
    async def measure(number: int) -> Taken:
        began = time.perf_counter()
        await session.ask(question)
        return Taken(time.perf_counter() - began)

    return measure


def _cold(side: Side, place: Place, question: Question) -> Measure:
    async def measure(number: int) -> Taken:
        began = time.perf_counter()
        session = await side.session(place)
        try:
            await session.ask(question)
            return Taken(time.perf_counter() - began)
        finally:
            await session.close()

    return measure


async def _count(name: str, side: Side, metered: Place, meter: Meter, results: dict[str, Any]) -> None:
    """Requests and bytes of each question, cold and then asked again."""
    for question in QUESTIONS:
        session: Session | None = None
        for state in ("cold", "warm"):
            requests, received = meter.requests, meter.received
            session = session if session is not None else await side.session(metered)
            await session.ask(question)
            figures = results[question.name][state][name]
            figures["requests"] = meter.requests - requests
            figures["received_bytes"] = meter.received - received
        if session is not None:
            await session.close()


def _figures(found: dict[str, Medians]) -> dict[str, dict[str, Any]]:
    return {
        name: {
            "milliseconds": round(each.seconds * 1e3, 2),
            "milliseconds_spread": [round(end * 1e3, 2) for end in each.spread],
            "times_floor": round(each.ratio, 2),
        }
        for name, each in found.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.ontology_read", description=__doc__.partition("\n\n")[2])
    parser.add_argument("--quick", action="store_true", help="one small size, one round: does it run?")
    parser.add_argument("--full", action="store_true", help="all sizes, up to a million entities and 1,000 commits")
    parser.add_argument("--store", choices=STORES, help="only this one")
    parser.add_argument("--size", help="only this one, as ENTITIES,COMMITS")
    parser.add_argument("--out", type=Path, help="where to write the JSON (default for a whole run: bench/results)")
    parser.add_argument("--folder", type=Path, help="where files are written (default: the temporary folder)")
    options = parser.parse_args()
    sizes = QUICK if options.quick else FULL if options.full else DEFAULT
    if options.size is not None:
        entities, _, commits = options.size.partition(",")
        sizes = (Size(int(entities), int(commits)),)
    warm, cold = (1, 1) if options.quick else (WARM_ROUNDS, COLD_ROUNDS)
    results: dict[str, Any] = {}
    for store in [options.store] if options.store else STORES:
        for size in sizes:
            found = asyncio.run(bench(store, size, warm=warm, cold=cold, folder=options.folder))
            results.setdefault(store, {})[size.label] = found
    out = options.out
    if out is None and not options.quick and options.store is None and options.size is None:
        out = RESULTS / "ontology_read.json"
    if out is not None:
        packages = ["holdfast", "duckdb", "pyarrow", "ministack"]
        packages += ["deltalake"] if delta.INSTALLED else []
        packages += ["pyiceberg"] if iceberg.INSTALLED else []
        rounds = {"warm": warm, "cold": cold}
        write_results(out, {"facts": facts(*packages), "rounds": rounds, "results": results})
        print(f"written: {out.name}")


if __name__ == "__main__":
    main()
