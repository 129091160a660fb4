"""``python -m bench.scale [--quick] [--agents N] [--minutes M] [--out FILE]``

A fleet of 1,000 agents, and one of none, each for some minutes of virtual time with the default intervals: requests per
batch for accepting and for deriving, what an idle minute costs, bytes that stay; and the dollars per month that follow.
Nothing is timed, so the figures are exact and the same on every machine.
"""

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.lib import RESULTS, facts, table, write_results
from bench.scale.costs import Rate, month, rate
from bench.scale.world import BATCH_S, simulate

VERBS = ("put", "get", "head", "list")
FLEETS = (1_000, 100_000, 10_000_000)
BATCHES_S = (BATCH_S, 300)


def rows_of(cost: Rate) -> list[list[str]]:
    """The table of dollars per month: fleets, and how long an agent gathers a batch."""
    rows = []
    for agents in FLEETS:
        for batch_s in BATCHES_S:
            one = month(cost, agents, batch_s)
            parts = (one.accepting, one.deriving, one.idle, one.storing, one.total)
            rate = f"{one.batches_per_second:,.0f}"
            rows.append([f"{agents:,}", f"{batch_s} s", rate, *(f"{part:,.0f}" for part in parts)])
    return rows


HEADER = ["agents", "a batch every", "batches/s", "accept", "derive", "idle", "store", "dollars per month"]


def requests_of(idle: dict[str, Any], busy: dict[str, Any]) -> list[list[str]]:
    rows = []
    for part in ("collectors", "pipeline"):
        spent, anyway = busy[part]["requests"], idle[part]["requests"]
        per_batch = [(spent.get(verb, 0) - anyway.get(verb, 0)) / busy["batches"] for verb in VERBS]
        rows.append([part, *(f"{each:.2f}" for each in per_batch)])
    per_round = [idle["pipeline"]["requests"].get(verb, 0) / idle["rounds"] for verb in VERBS]
    return [*rows, ["a minute without batches", *(f"{each:.2f}" for each in per_round)]]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.scale",
        description=(__doc__ or "").split("\n\n", 1)[1],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="twenty agents: does it run? The figures mean little")
    parser.add_argument("--agents", type=int, default=1_000)
    parser.add_argument("--minutes", type=int, default=10)
    parser.add_argument("--out", type=Path, help="where to write the JSON (default for a whole run: bench/results)")
    chosen = parser.parse_args()
    agents, minutes = (20, 2) if chosen.quick else (chosen.agents, chosen.minutes)
    idle, busy = asdict(simulate(0, minutes)), asdict(simulate(agents, minutes))
    cost = rate(idle, busy)
    print(table(["requests per batch", "PUT", "GET", "HEAD", "LIST"], requests_of(idle, busy)))
    print()
    print(table(HEADER, rows_of(cost)))
    document = {"facts": facts("holdfast"), "idle": idle, "busy": busy, "dollars": asdict(cost)}
    out = chosen.out or (None if chosen.quick else RESULTS / "scale.json")
    if out is not None:
        write_results(out, document)
        print(f"\nwritten: {out.name}")


if __name__ == "__main__":
    main()
