"""``python -m bench.ingest [--quick] [--store s3|far|file] [--peers DIR] [--out FILE]``

One collector process takes batches from 1 to 64 senders; bare obstore makes the same two PUTs, under the same keys,
with as many writers. They take turns on one machine, and the figure is the ratio within a pair, median of all pairs.
Senders are connected before their turn begins. Turns of ours are apart by as long as it takes until what was gathered
is written too; ``PUTs`` has all of them, per batch. Senders, the collector and the store's server share the machine's
processors; the floor has no senders and no collector, so a ratio says what all of that costs. ``relay`` is the ratio
of a server that makes the two PUTs for every request, and reads nothing: it says what receiving alone costs there.
The senders are requests made beforehand; ``client us`` is what ``holdfast.telemetry.Client`` takes for a batch, from
records to the answer, as many of them at a time as there are senders.

``far`` is the S3 server of ``s3``, which answers everything 30 ms later: nearer to a store in production, and
not bound by this machine's processors. On ``file`` there are two floors. obstore's local store forces nothing to disk:
a power cut takes back what it answered (``unsynced``). So the ratio is to plain files that are as durable as ours:
written aside, synced and renamed, with their folders, and the folders' own names, synced too. Each batch has a boot id
of its own, hence a folder of its own, which is the most that a disk can be asked for. A host keeps its boot id until it
is started again, so there are rows for ``64 hosts`` too, which send batch after batch, each into its folder of before.
"""

import argparse
import asyncio
import os
import tempfile
import time
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

from bench.ingest.batches import LARGE, SMALL, Batches
from bench.ingest.client_cpu import client_cpu
from bench.ingest.peers import PROGRAMS, find, measure
from bench.ingest.relay import request as relay_request
from bench.ingest.sender import senders as connected
from bench.ingest.sides import Sides, floor, sides, writes
from bench.lib import RESULTS, facts, table, write_results

STORES = ("s3", "far", "file")
SENDERS = (1, 4, 16, 64)
COUNT = {"s3": 512, "far": 384, "file": 384}
FEWER = {("s3", 1): 4, ("file", 1): 4, ("far", 1): 16, ("far", 4): 4}
"""What takes its time one by one is done fewer times."""
PAIRS = {("s3", 1): 15, ("s3", 4): 9, ("file", 1): 15, ("file", 4): 9}
"""Of turns; elsewhere five. A turn of few is short: a moment in which the machine was busy counts for more."""
HOSTS = 64
AIM = 0.8
HEADER = (
    "store, batch, senders",
    "ratio",
    "spread",
    "PUTs",
    "batches/s",
    "floor",
    "relay",
    "unsynced",
    "samples/s",
    "p50 ms",
    "p99 ms",
    "CPU us",
    "client us",
)


@dataclass
class Turns:
    """What the turns of both sides took, in seconds per round."""

    ours: list[float] = field(default_factory=list)
    settled: list[float] = field(default_factory=list)
    """From the last answer until all that is derived is written."""
    floor: list[float] = field(default_factory=list)
    unsynced: list[float] = field(default_factory=list)
    relay: list[float] = field(default_factory=list)
    answers: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    """Of the collector up to the last answer; afterwards it is asked again and again whether all is written."""


async def take_turns(all_sides: Sides, batches: Batches, senders: int, *, count: int, pairs: int) -> Turns:
    """One unmeasured pair, then ``pairs`` of them; who goes first changes. Neither waits for the other's rest."""
    turns = Turns()
    ours = all_sides.ours

    async def mine() -> None:
        requests = ours.requests(batches, count)
        async with connected(ours.url, senders) as lines:
            os.sync()  # no side pays for what another has left unwritten
            cpu, began = ours.cpu_seconds(), time.perf_counter()
            turns.answers += await lines.send(requests)
            turns.ours.append(time.perf_counter() - began)
            turns.cpu.append(ours.cpu_seconds() - cpu)
        answered = time.perf_counter()
        turns.settled.append(time.perf_counter() - answered)

    async def others() -> None:
        for put, took in ((all_sides.bare, turns.floor), (all_sides.unsynced, turns.unsynced)):
            if put is not None:
                these = writes(batches, count)
                os.sync()
                began = time.perf_counter()
                await floor(put, these, senders)
                took.append(time.perf_counter() - began)
        relayed = [relay_request(*each) for each in writes(batches, count)]
        async with connected(all_sides.relay.url, senders) as lines:
            os.sync()
            began = time.perf_counter()
            await lines.send(relayed)
            turns.relay.append(time.perf_counter() - began)

    for number in range(pairs + 1):
        if number == 1:
            turns = Turns()
        for turn in (mine, others) if number % 2 else (others, mine):
            await turn()
    return turns


async def one(
    all_sides: Sides, batches: Batches, senders: int, *, count: int, pairs: int
) -> tuple[dict[str, Any], tuple[str, ...]]:
    size, ours = batches.size, all_sides.ours
    puts = await ours.puts()
    turns = await take_turns(all_sides, batches, senders, count=count, pairs=pairs)
    cpu_us = median(turns.cpu) / count * 1e6
    puts_per_batch = (await ours.puts() - puts) / (count * (pairs + 1))
    ratios = [bare_s / our_s for our_s, bare_s in zip(turns.ours, turns.floor, strict=True)]
    rate, floor_rate = count / median(turns.ours), count / median(turns.floor)
    took = sorted(turns.answers)
    p50, p99 = median(took) * 1000, took[int(len(took) * 0.99)] * 1000
    without = [bare_s / our_s for our_s, bare_s in zip(turns.ours, turns.unsynced, strict=False)]
    relayed = [bare_s / relay_s for relay_s, bare_s in zip(turns.relay, turns.floor, strict=True)]
    document = {
        "ratio": round(median(ratios), 3),
        "ratio_spread": [round(min(ratios), 3), round(max(ratios), 3)],
        "puts_per_batch": round(puts_per_batch, 3),
        "settled_after_ms": round(median(turns.settled) * 1000),
        "batches_per_second": round(rate, 1),
        "floor_batches_per_second": round(floor_rate, 1),
        "relay_ratio": round(median(relayed), 3),
        "relay_batches_per_second": round(count / median(turns.relay), 1),
        **({"ratio_to_unsynced": round(median(without), 3)} if without else {}),
        **({"unsynced_batches_per_second": round(count / median(turns.unsynced), 1)} if without else {}),
        "samples_per_second": round(rate * size.samples),
        "p50_ms": round(p50, 2),
        "p99_ms": round(p99, 2),
        "collector_cpu_us_per_batch": round(cpu_us),
        **(client := await client_cpu(ours, size, senders, count=min(count, 64))),
        "frame_bytes": batches.frame_bytes,
        "bytes_per_sample": round(batches.frame_bytes / size.samples, 2),
    }
    row = (
        f"{median(ratios):.2f}",
        f"{min(ratios):.2f}-{max(ratios):.2f}",
        f"{puts_per_batch:.2f}",
        f"{rate:,.0f}",
        f"{floor_rate:,.0f}",
        f"{median(relayed):.2f}",
        f"{count / median(turns.unsynced):,.0f}" if without else "",
        f"{rate * size.samples:,.0f}",
        f"{p50:.1f}",
        f"{p99:.1f}",
        f"{cpu_us:,.0f}",
        f"{client['client_cpu_us_per_batch']:,}",
    )
    return document, row


async def bench(store: str, folder: Path, *, quick: bool) -> dict[str, Any]:
    results: dict[str, Any] = {}
    rows: list[tuple[str, ...]] = []
    with sides(store, folder) as all_sides:
        for size, hosts in product((SMALL, LARGE), (None, HOSTS) if store == "file" else (None,)):
            for senders in (1, 4) if quick else SENDERS:
                count = 8 if quick else COUNT[store] // FEWER.get((store, senders), 1)
                name = f"{size.name}, {senders} senders" + (f", {hosts} hosts" if hosts else "")
                pairs = 1 if quick else PAIRS.get((store, senders), 5)
                results[name], row = await one(all_sides, Batches(size, hosts), senders, count=count, pairs=pairs)
                rows.append((f"{store}: {name}", *row))
        results["collector_resident_mib"] = round(all_sides.ours.resident_bytes() / 2**20)
    print(table(HEADER, rows), end="\n\n", flush=True)
    return results


async def peers(folder: Path, where: Path | None, *, quick: bool) -> dict[str, Any]:
    results: dict[str, Any] = {}
    for program in PROGRAMS:
        binary = find(program, where)
        if binary is None:
            results[program] = "not installed: apt-get install prometheus victoria-metrics"
            continue
        for size in (SMALL, LARGE):
            place = folder / size.name.replace(" ", "-")
            place.mkdir(exist_ok=True)
            count = 8 if quick else 200
            results[f"{program}, {size.name}, 4 senders"] = await measure(
                program, binary, place, scrapes=size.scrapes, count=count, senders=4
            )
    for name, figures in results.items():
        print(f"{name}: {figures}", flush=True)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.ingest", description=__doc__.partition("\n\n")[2])
    parser.add_argument("--quick", action="store_true", help="one short pair: does it run? The figures mean little")
    parser.add_argument("--store", choices=STORES, help="only this one")
    parser.add_argument("--peers", type=Path, help="folder with the programs prometheus and victoria-metrics")
    parser.add_argument("--out", type=Path, help="where to write the JSON (default for a whole run: bench/results)")
    options = parser.parse_args()
    results: dict[str, Any] = {}
    for store in [options.store] if options.store else STORES:
        with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
            results[store] = asyncio.run(bench(store, Path(folder), quick=options.quick))
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        results["peers"] = asyncio.run(peers(Path(folder), options.peers, quick=options.quick))
    out = options.out
    if out is None and not options.quick and options.store is None:
        out = RESULTS / "ingest.json"
    if out is not None:
        write_results(out, {"facts": facts("holdfast", "obstore", "ministack"), "aim": AIM, "results": results})
        print(f"written: {out.name}")


if __name__ == "__main__":
    main()
