"""``python -m bench.objects [--quick] [--store memory|file|s3] [--out FILE]``

Same operations, same concurrency, interleaved pairs, median of ten. On ``memory`` the other side is obstore's memory
store; on ``file`` plain files (obstore's local store has no if-match); on ``s3`` obstore against the same server.
"""

import argparse
import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from obstore.store import MemoryStore, S3Store

from bench.lib import RESULTS, Comparison, compare, facts, table, write_results
from bench.objects.clients import Client, Holdfast, Obstore, PlainFiles
from bench.objects.server import BUCKET, s3_server
from bench.objects.workload import VERBS, Workload, preparation
from holdfast.base.config import Settings
from holdfast.objects import open as open_store

STORES = ("memory", "file", "s3")
CONCURRENCY = (1, 16)
OPERATIONS = {"memory": 2000, "file": 160, "s3": 320}
KEY_ID, SECRET, REGION = "bench", "benchbench", "us-east-1"

AIMS = {
    **{("s3", verb, 16): 0.85 for verb in VERBS},
    **{("file", verb, 1): 0.5 for verb in ("create", "replace")},  # why not for 16: design/0007
}
"""The least share of the other side's throughput that we want to keep."""
HEADER = ("store and operation", "ratio", "spread", "aim", "ops/s", "bare", "CPU us/op", "bare", "requests/op", "bare")


@asynccontextmanager
async def clients(store: str, folder: Path) -> AsyncIterator[tuple[Client, Client]]:
    """Ours and the other; each has a place of its own."""
    if store == "memory":
        async with open_store("memory:") as ours:
            yield Holdfast(ours), Obstore(MemoryStore())
    elif store == "file":
        (folder / "bare").mkdir()
        async with open_store(f"file:{folder / 'ours'}") as ours:
            yield Holdfast(ours), PlainFiles(folder / "bare")
    else:
        with s3_server(folder) as address:
            settings = Settings.model_validate(
                {"s3": {"access_key_id": KEY_ID, "secret_access_key": SECRET, "region": REGION, "endpoint": address}}
            )
            bare = S3Store(
                BUCKET,
                prefix="bare",
                config={
                    "access_key_id": KEY_ID,
                    "secret_access_key": SECRET,
                    "region": REGION,
                    "endpoint": address,
                },
                client_options={"allow_http": True},
                retry_config={"max_retries": 0},
            )
            async with open_store(f"s3://{BUCKET}/ours", settings=settings) as ours:
                yield Holdfast(ours), Obstore(bare)


async def bench(store: str, *, pairs: int, share: float, folder: Path | None) -> dict[str, Any]:
    rows: list[tuple[str, ...]] = []
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=folder) as scratch:
        async with clients(store, Path(scratch)) as (ours, bare):
            for client in (ours, bare):
                await client.run(preparation(max(CONCURRENCY)))
            for verb in VERBS:
                for concurrency in CONCURRENCY:
                    workload = Workload(verb, concurrency, int(OPERATIONS[store] * share))
                    found = await compare(workload.contender(ours), workload.contender(bare), pairs=pairs)
                    aim = AIMS.get((store, verb, concurrency))
                    results[workload.name] = {**found.as_json(), **_judged(found, aim)}
                    rows.append(_row(f"{store}: {workload.name}", found, aim))
    print(table(HEADER, rows), end="\n\n", flush=True)
    return results


def _judged(found: Comparison, aim: float | None) -> dict[str, Any]:
    return {} if aim is None else {"aim": aim, "met": found.ratio >= aim}


def _row(name: str, found: Comparison, aim: float | None) -> tuple[str, ...]:
    verdict = "" if aim is None else f"{aim} {'met' if found.ratio >= aim else 'MISSED'}"
    return (
        name,
        f"{found.ratio:.2f}",
        f"{found.spread[0]:.2f}-{found.spread[1]:.2f}",
        verdict,
        f"{found.rate:,.0f}",
        f"{found.other_rate:,.0f}",
        f"{found.cpu_us:,.0f}",
        f"{found.other_cpu_us:,.0f}",
        f"{found.requests_per_operation:.2f}",
        f"{found.other_requests_per_operation:.2f}",
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.objects", description=__doc__.partition("\n\n")[2])
    parser.add_argument("--quick", action="store_true", help="three short pairs: does it run? The figures mean little")
    parser.add_argument("--store", choices=STORES, help="only this one")
    parser.add_argument("--out", type=Path, help="where to write the JSON (default for a whole run: bench/results)")
    parser.add_argument("--folder", type=Path, help="where the local store is tried (default: the temporary folder)")
    options = parser.parse_args()
    pairs, share = (3, 0.1) if options.quick else (10, 1.0)
    results = {
        store: asyncio.run(bench(store, pairs=pairs, share=share, folder=options.folder))
        for store in ([options.store] if options.store else STORES)
    }
    out = options.out
    if out is None and not options.quick and options.store is None:
        out = RESULTS / "objects.json"
    if out is not None:
        document = {"facts": facts("holdfast", "obstore", "ministack"), "pairs": pairs, "results": results}
        write_results(out, document)
        print(f"written: {out.name}")


if __name__ == "__main__":
    main()
