"""Many rows in one commit: all new, then all changed; every contender on a fresh table in every round.

``of_delta_merge`` is our speed as a share of delta-rs' merge: the median over the rounds, in each of which both wrote
the same rows one soon after the other.
"""

import gc
from statistics import median
from typing import Any

from bench.ontology_write.commits import At, opened
from bench.ontology_write.contenders import BULK, present, table_of
from bench.ontology_write.places import Cost

DELTA = "delta merge"


async def bulk(at: At, *, rounds: int, share: float) -> dict[str, dict[str, Any]]:
    names = present(list(BULK))
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    costs: dict[str, Cost] = {}
    for number in range(rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            kind, most = BULK[name]
            keys = [f"c{each:07d}" for each in range(int(most * share))]
            place = at(f"bulk-{name}-{number}")
            gc.collect()
            async with opened(kind(place)) as writer:
                before = place.cost()
                seconds[name].append((await writer.bulk(table_of(keys, 1)), await writer.bulk(table_of(keys, 2))))
                costs[name] = place.cost().since(before)
    found = {name: _figures(int(BULK[name][1] * share), seconds[name], costs[name]) for name in names}
    for name in names:
        if DELTA in names and name.startswith("ours"):
            rounds_of_both = list(zip(seconds[name], seconds[DELTA], strict=True))
            found[name]["of_delta_merge"] = [
                round(median(delta[part] / ours[part] for ours, delta in rounds_of_both), 2) for part in (0, 1)
            ]
    return found


def _figures(rows: int, seconds: list[tuple[float, float]], cost: Cost) -> dict[str, Any]:
    inserted, changed = (median(pair[part] for pair in seconds) for part in (0, 1))
    return {
        "rows": rows,
        "inserted_rows_per_second": round(rows / inserted),
        "changed_rows_per_second": round(rows / changed),
        "requests": round(cost.requests / 2, 1),
        "uploaded_per_row": round(cost.uploaded / 2 / rows, 1),
    }
