"""``python -m bench.bus [--quick] [--store file|s3] [--out FILE] [--folder FOLDER]``

Events per second by 1 to 8 workers in processes of their own, against the bare requests of the layout by as many
processes, and a queue in SQLite by as many threads, in one run; how long an event takes from publish to handler; what a
long history costs: real events up to 100,000, and a million synthetic ones, in memory. ``s3`` is a server on the
loopback. Contenders take turns, three rounds; shown are medians, and all rounds are kept. It takes about ten minutes.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.bus import history, work
from bench.bus.latency import latency
from bench.lib import RESULTS, facts, table, write_results
from bench.objects.server import BUCKET, s3_server
from holdfast.platform.open import open_platform

WORKERS = (1, 2, 4, 8)
EVENTS = 1_500
QUICK_EVENTS = 40
ROUNDS = 3


async def round_of(place: tuple[str, str | None], role: str, events: int, workers: int) -> dict[str, Any]:
    """Publish, then let that many processes handle it all."""
    uri, address = place
    begun = time.perf_counter()
    async with open_platform(uri, settings=work.our_settings(address)) as hf:
        await work.publish(hf.bus(), events)
    published = time.perf_counter() - begun
    seconds, answer = work_of_processes(uri, address, role, events, workers)
    return {
        "publish_per_second": round(events / published, 1),
        "handle_per_second": round(events / seconds, 1),
        "per_worker": round(events / seconds / workers, 1),
        "handled": sum(each["count"] for each in answer),
        "requests_per_event": round(sum(each["requests"] for each in answer) / events, 2),
    }


def work_of_processes(
    uri: str, address: str | None, role: str, events: int, workers: int
) -> tuple[float, list[dict[str, Any]]]:
    """Seconds from the word to go until the last event was handled, and what each process tells."""
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        command = [sys.executable, "-m", "bench.bus.process", role, uri, str(events)]
        rest = [str(workers), folder, *([address] if address is not None else [])]
        processes = [subprocess.Popen([*command, str(n), *rest], stdout=subprocess.PIPE) for n in range(workers)]
        while len(list(Path(folder).glob("ready*"))) < workers:
            if any(process.poll() is not None for process in processes):
                raise RuntimeError("a worker ended before it began")
            time.sleep(0.01)
        go = time.monotonic()
        (Path(folder) / "go").touch()
        answer = [json.loads(process.communicate()[0]) for process in processes]
    return max(each["times"][1] for each in answer if each["times"]) - go, answer


@contextmanager
def fresh(store: str, folder: Path | None) -> Iterator[tuple[str, str | None]]:
    """An empty store: its address, and the server's."""
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=folder) as scratch:
        if store == "file":
            yield f"file:{Path(scratch) / 'store'}", None
        else:
            with s3_server(Path(scratch)) as address:
                yield f"s3://{BUCKET}/bus", address


async def throughput(
    store: str, events: int, counts: tuple[int, ...], rounds: int, folder: Path | None
) -> dict[str, Any]:
    """By number of workers: each contender's median round, by events handled, and that figure of every round."""
    found: dict[str, Any] = {}
    for workers in counts:
        answer: dict[str, list[dict[str, Any]]] = {}
        for _ in range(rounds):
            for role in ("ours", "floor"):
                with fresh(store, folder) as place:
                    answer.setdefault(role, []).append(await round_of(place, role, events, workers))
            if store == "file" and work.INSTALLED:
                answer.setdefault("sqlite", []).append(sqlite_round(events, workers, folder))
        figures: dict[str, Any] = {role: median(each) for role, each in answer.items()}
        figures["times_floor"] = round(figures["floor"]["handle_per_second"] / figures["ours"]["handle_per_second"], 2)
        found[str(workers)] = figures
        print(f"{store}: {workers} workers done", file=sys.stderr, flush=True)
    return found


def sqlite_round(events: int, workers: int, folder: Path | None) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=folder) as scratch:
        answer = work.sqlite_queue(Path(scratch), events, workers)
    return {
        "publish_per_second": round(answer["publish_per_second"], 1),
        "handle_per_second": round(answer["handle_per_second"], 1),
        "per_worker": round(answer["handle_per_second"] / workers, 1),
        "handled": answer["events"],
    }


def median(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    ordered = sorted(rounds, key=lambda each: float(each["handle_per_second"]))
    return {**ordered[len(ordered) // 2], "rounds": [each["handle_per_second"] for each in rounds]}


async def histories(quick: bool) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for events in (100, 1_000) if quick else (1_000, 10_000, 100_000):
        found[f"{events} real"] = await history.costs(await history.real(events))
    million = 20_000 if quick else 1_000_000
    found[f"{million} synthetic"] = await history.costs(history.synthetic(million))
    return found


async def latencies(store: str, quick: bool, folder: Path | None) -> list[dict[str, float]]:
    answer: list[dict[str, float]] = []
    for poll_ms in (20,) if quick else (1_000, 100, 20):
        with fresh(store, folder) as (uri, address):
            settings = work.our_settings(address)
            events = 5 if quick else 100
            answer.append(await latency(uri, settings, poll_ms=poll_ms, events=events, every_s=0.03))
    return answer


def report(results: dict[str, Any]) -> str:
    rates = [
        (
            f"{store}: {workers} workers",
            who,
            f"{figures[who]['publish_per_second']:,.0f}",
            f"{figures[who]['handle_per_second']:,.0f}",
            f"{figures[who]['per_worker']:,.0f}",
            str(figures[who].get("requests_per_event", "")),
        )
        for store, by_workers in results["throughput"].items()
        for workers, figures in by_workers.items()
        for who in ("ours", "floor", "sqlite")
        if who in figures
    ]
    parts = [table(("events/s", "contender", "publish", "handle", "per worker", "requests/event"), rates)]
    waits = [
        (
            f"{store}: poll {each['poll_ms']} ms",
            f"{each['p50_ms']:.1f}",
            f"{each['p99_ms']:.1f}",
            f"{each['max_ms']:.1f}",
        )
        for store, answer in results["latency"].items()
        for each in answer
    ]
    parts.append(table(("publish to handler, ms", "p50", "p99", "max"), waits))
    costs = [
        (name, *(f"{each['requests']} in {each['milliseconds']:.1f} ms" for each in figures.values()))
        for name, figures in results["history"].items()
    ]
    parts.append(table(("history, requests", "cold poll", "idle poll", "100 new handled"), costs))
    return "\n\n".join(parts)


async def run(stores: list[str], quick: bool, folder: Path | None) -> dict[str, Any]:
    counts = (1, 2) if quick else WORKERS
    begun = time.perf_counter()
    results: dict[str, Any] = {"facts": facts("obstore", "persist-queue") if work.INSTALLED else facts("obstore")}
    results["throughput"] = {
        store: await throughput(store, QUICK_EVENTS if quick else EVENTS, counts, 1 if quick else ROUNDS, folder)
        for store in stores
    }
    results["latency"] = {store: await latencies(store, quick, folder) for store in stores}
    results["history"] = await histories(quick)
    results["facts"]["minutes"] = round((time.perf_counter() - begun) / 60, 1)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.bus", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few events, to see that it works")
    parser.add_argument("--store", choices=("file", "s3"), action="append", help="both if not given")
    parser.add_argument("--out", type=Path, help="where to write the figures; results/bus.json unless --quick")
    parser.add_argument("--folder", type=Path, help="where stores are made")
    given = parser.parse_args()
    results = asyncio.run(run(given.store or ["file", "s3"], given.quick, given.folder))
    print(report(results))
    out = given.out if given.out is not None else None if given.quick else RESULTS / "bus.json"
    if out is not None:
        write_results(out, results)


if __name__ == "__main__":
    main()
