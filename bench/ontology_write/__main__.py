"""``python -m bench.ontology_write [--quick] [--store s3|file] [--part PART] [--out FILE]``

One-row upserts at 10, 100, 1,000 and 10,000 commits, and 100,000 rows in one commit: ours against delta-rs and
pyiceberg, on one S3 server whose requests and bytes are counted at its door, and in a folder with everything synced; in
turns, medians. Then 1 to 16 writers of ours on one head, on a server that answers 60 ms later.
"""

import argparse
import asyncio
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

import httpx

from bench.lib import RESULTS, facts, write_results
from bench.objects.server import s3_server
from bench.ontology_write import report
from bench.ontology_write.bulk import bulk
from bench.ontology_write.commits import At, commits
from bench.ontology_write.contended import DELAY_MS, contended
from bench.ontology_write.contenders import INSTALLED, LIMITS, MISSING
from bench.ontology_write.places import Bucket, Folder, Place

STORES = ("s3", "file")
PARTS = ("commits", "bulk", "contended")
SIZES = (10, 100, 1_000, 10_000)
WRITERS = (1, 2, 4, 8, 16)


async def bench(store: str, at: At, parts: Collection[str], *, quick: bool) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if "commits" in parts:
        grown = await commits(at, SIZES[:1] if quick else SIZES, rounds=1 if quick else 3)
        print(report.commit_table(store, grown), end="\n\n", flush=True)
        found |= {"commits": grown, "aim_met": report.judged(grown)}
    if "bulk" in parts:
        found["bulk"] = await bulk(at, rounds=1 if quick else 5, share=0.01 if quick else 1.0)
        print(report.bulk_table(store, found["bulk"]), end="\n\n", flush=True)
    return found


async def crowd(address: str, at: At, *, quick: bool) -> dict[str, Any]:
    found = await contended(address, at, WRITERS[:2] if quick else WRITERS, commits=2 if quick else 20)
    print(report.contended_table(DELAY_MS, found), end="\n\n", flush=True)
    return {"delay_ms": DELAY_MS, "writers": found}


def run(store: str, parts: Collection[str], folder: Path | None, *, quick: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=folder) as scratch:
        here = Path(scratch)
        if store == "file":
            return asyncio.run(bench(store, lambda name: Folder(here, _plain(name), here), parts, quick=quick))
        with s3_server(here, "bench.ontology_write.counted", buckets=()) as address:

            def at(name: str) -> Place:
                httpx.put(f"{address}/{_plain(name)}").raise_for_status()
                return Bucket(address, _plain(name), here)

            found = asyncio.run(bench(store, at, parts, quick=quick))
            if "contended" in parts:
                found["contended"] = asyncio.run(crowd(address, at, quick=quick))
            return found


def _plain(name: str) -> str:
    """As buckets may be called."""
    return name.replace(",", "").replace(" ", "-")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.ontology_write", description=__doc__.partition("\n\n")[2])
    parser.add_argument("--quick", action="store_true", help="one short round: does it run? The figures mean little")
    parser.add_argument("--store", choices=STORES, help="only this one")
    parser.add_argument("--part", choices=PARTS, help="only this one")
    parser.add_argument("--out", type=Path, help="where to write the JSON (default for a whole run: bench/results)")
    parser.add_argument("--folder", type=Path, help="where files are written (default: the temporary folder)")
    options = parser.parse_args()
    if not INSTALLED:
        print(MISSING, end="\n\n")
    stores = [options.store] if options.store else list(STORES)
    parts = [options.part] if options.part else PARTS
    results = {store: run(store, parts, options.folder, quick=options.quick) for store in stores}
    out = options.out
    if out is None and not options.quick and options.store is None and options.part is None:
        out = RESULTS / "ontology_write.json"
    if out is not None:
        peers = ["deltalake", "pyiceberg"] if INSTALLED else []
        document = {
            "facts": facts("holdfast", "obstore", "pyarrow", "ministack", *peers),
            "stopped_at": LIMITS,
            "results": results,
        }
        write_results(out, document)
        print(f"written: {out.name}")


if __name__ == "__main__":
    main()
