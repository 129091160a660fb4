"""``python -m bench.ontology_read [--quick | --full] [--store file|s3] [--size N,N] [--out FILE] [--folder FOLDER]``

The same questions about the same history of commits, put to Holdfast, to DuckDB over one ideal Parquet file per table
(the floor, which could not be kept beside a writer), to delta-rs with DuckDB, and to pyiceberg; in turns, medians.
Then everybody who can compacts, and is asked again, beside the floor again. All answers are Arrow tables, and equal.

Warm: a session that has been asked every question some times before, and asks again whether there is anything new.
Cold: a session of its own for each question, and nothing that an earlier one has left. Next: a session of its own as
well, where the one before may have left its database, as in a process that opens one session after the other; the floor
opens a database each time, cold and next. On ``s3``, a server on the loopback, requests and bytes are counted at a
door before the server. A peer that does not take a history in within 25 seconds is stopped, and the table says so.
What is finished is kept as it goes.
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
from bench.ontology_read import report
from bench.ontology_read.data import Size
from bench.ontology_read.measure import INSTALLED, built, measured
from bench.ontology_read.places import Place, served
from tests.fakes.fault_proxy import FaultProxy

STORES = ("file", "s3")
QUICK = {"file": (Size(200, 3),), "s3": (Size(200, 3),)}
DEFAULT = {
    "file": (Size(1_000, 1_000), Size(100_000, 100), Size(1_000_000, 20)),
    "s3": (Size(1_000, 1), Size(1_000, 200), Size(100_000, 20), Size(1_000_000, 1)),
}
FULL_SIZES = tuple(
    Size(entities, commits) for entities in (1_000, 100_000, 1_000_000) for commits in (1, 20, 100, 1_000)
)
FULL = {"file": FULL_SIZES, "s3": FULL_SIZES}
WARM_ROUNDS, COLD_ROUNDS = 7, 15


@contextmanager
def places(store: str, folder: Path) -> Iterator[tuple[Place, Place, FaultProxy | None]]:
    if store == "file":
        yield Place(folder), Place(folder), None
    else:
        with served(folder) as found:
            yield found


async def bench(store: str, size: Size, *, warm: int, cold: int, folder: Path | None) -> dict[str, Any]:
    began = time.perf_counter()
    found: dict[str, Any] = {}
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=folder) as scratch,
        places(store, Path(scratch)) as (place, counted, proxy),
    ):
        sides, found["notes"] = await built(place, size)
        found["before"] = await measured(sides, place, counted, proxy, warm=warm, cold=cold)
        if size.commits > 1:
            able = {name: side for name, side in sides.items() if name == "floor" or await side.compact()}
            found["after"] = await measured(able, place, counted, proxy, warm=warm, cold=cold)
    found["seconds"] = round(time.perf_counter() - began)
    print(report.results_table(store, size.label, found), flush=True)
    print(f"({found['seconds']} s)\n", flush=True)
    return found


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
        sizes = dict.fromkeys(STORES, (Size(int(entities), int(commits)),))
    warm, cold = (1, 1) if options.quick else (WARM_ROUNDS, COLD_ROUNDS)
    out = options.out
    if out is None and not options.quick and options.store is None and options.size is None:
        out = RESULTS / "ontology_read.json"
    peers = {"delta-rs": "deltalake", "pyiceberg": "pyiceberg"}
    packages = [
        "holdfast",
        "duckdb",
        "pyarrow",
        "ministack",
        *(peers[name] for name, here in INSTALLED.items() if here),
    ]
    document: dict[str, Any] = {"facts": facts(*packages), "rounds": {"warm": warm, "cold": cold}, "results": {}}
    for store in [options.store] if options.store else STORES:
        for size in sizes[store]:
            found = asyncio.run(bench(store, size, warm=warm, cold=cold, folder=options.folder))
            document["results"].setdefault(store, {})[size.label] = found
            if out is not None:
                write_results(out, document)
    print(report.summary(document["results"]))
    if out is not None:
        print(f"written: {out.name}")


if __name__ == "__main__":
    main()
