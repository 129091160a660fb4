"""``python -m bench.runs [--quick] [--store memory|file|s3|far] [--out FILE] [--folder FOLDER]``

The same workflow (100 steps, and 1,000, each returning 1 KiB) by us, by the bare requests under it, and on ``file`` by
DBOS on SQLite at the same durability; in turns, medians. Then how long it takes to go on after a crash with all steps
recorded, and how requests and bytes grow with the number of steps. ``s3`` is a server on the loopback, ``far`` the same
server with answers that take 10 ms longer.

The floor is bare conditional PUTs of the same bytes. For a folder there is no client that has them, so two floors are
shown: plain files written safely on the loop's own thread, which blocks everything else and keeps no condition, and the
same in a thread, under a lock between processes and after a comparison, which is the least that a conditional PUT is.
"""

import argparse
import asyncio
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from bench.lib import RESULTS, facts, write_results
from bench.runs import dbos_side, report
from bench.runs.contenders import CONDITIONAL, STORES, sides
from bench.runs.floor import record
from bench.runs.growth import STEPS, growth
from bench.runs.rounds import Medians, in_turns

ROUNDS = {100: 9, 1_000: 3}
FAR_ROUNDS = {100: 3}
QUICK = {10: 1, 60: 1}


async def bench(store: str, rounds: dict[int, int], folder: Path | None) -> dict[str, Any]:
    run: dict[str, Any] = {}
    resume: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=folder) as scratch:
        async with sides(store, Path(scratch)) as both:
            for steps, times in rounds.items():
                floor = await record(steps)
                async with AsyncExitStack() as others:
                    contenders, resumers = both.run(floor, steps), both.resume(floor, steps)
                    if store == "file" and dbos_side.INSTALLED:
                        for name, mode in dbos_side.MODES.items():
                            running = dbos_side.running(Path(scratch), mode, steps)
                            contenders[name], settings[name] = await others.enter_async_context(running)
                            resumers[name] = await dbos_side.recovering(Path(scratch), mode, steps)
                    run[str(steps)] = _figures(await in_turns(contenders, rounds=times), steps)
                    resume[str(steps)] = _figures(await in_turns(resumers, rounds=times), steps)
    print(report.run_table({store: run}), end="\n\n")
    print(report.resume_table({store: resume}), end="\n\n", flush=True)
    if settings:
        print(report.sqlite_lines(settings), end="\n\n", flush=True)
    return {"run": run, "resume": resume, **({"sqlite": settings} if settings else {})}


def _figures(found: dict[str, Medians], steps: int) -> dict[str, dict[str, Any]]:
    floor = found["floor"].ratio
    conditional = found[CONDITIONAL].ratio if CONDITIONAL in found else floor
    return {
        name: {
            "steps_per_second": round(steps / each.seconds, 1),
            "milliseconds": round(each.seconds * 1e3, 2),
            "milliseconds_spread": [round(end * 1e3, 2) for end in each.spread],
            "times_floor": round(each.ratio / floor, 3),
            "times_conditional_floor": round(each.ratio / conditional, 3),
            "cpu_us_per_step": round(each.cpu_seconds / steps * 1e6, 1),
            "requests": each.requests,
            "requests_per_step": round(each.requests / steps, 3),
            "uploaded_per_step": round(each.uploaded / steps),
            "replay_milliseconds": round(each.alone * 1e3, 2),
        }
        for name, each in found.items()
    }


async def count(quick: bool) -> dict[str, Any]:
    found = await growth(STEPS[:2] if quick else STEPS)
    print(report.growth_table(found), end="\n\n", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.runs", description=__doc__.partition("\n\n")[2])
    parser.add_argument("--quick", action="store_true", help="one short round: does it run? The figures mean little")
    parser.add_argument("--store", choices=STORES, help="only this one")
    parser.add_argument("--out", type=Path, help="where to write the JSON (default for a whole run: bench/results)")
    parser.add_argument("--folder", type=Path, help="where files are written (default: the temporary folder)")
    options = parser.parse_args()
    rounds = {store: QUICK if options.quick else FAR_ROUNDS if store == "far" else ROUNDS for store in STORES}
    stores = [options.store] if options.store else list(STORES)
    if not dbos_side.INSTALLED:
        print(dbos_side.MISSING, end="\n\n")
    results = {store: asyncio.run(bench(store, rounds[store], options.folder)) for store in stores}
    grown = asyncio.run(count(options.quick))
    out = options.out
    if out is None and not options.quick and options.store is None:
        out = RESULTS / "runs.json"
    if out is not None:
        packages = ["holdfast", "obstore", "ministack", *(["dbos"] if dbos_side.INSTALLED else [])]
        document = {
            "facts": facts(*packages),
            "rounds": {store: {str(steps): times for steps, times in rounds[store].items()} for store in stores},
            "result_bytes": 1024,
            "results": results,
            "growth": grown,
        }
        write_results(out, document)
        print(f"written: {out.name}")


if __name__ == "__main__":
    main()
