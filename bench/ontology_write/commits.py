"""One-row upserts at a number of commits: every contender's table is grown to it, then they commit in turns."""

import gc
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from bench.ontology_write.contenders import LIMITS, WRITERS, Writer, present
from bench.ontology_write.places import Cost, Place

At = Callable[[str], Place]
"""A place of its own for each contender."""
ROUND_S = 4.0
"""No round takes longer, but for a commit that was begun."""


@dataclass
class Taken:
    """By one contender at one size, over all rounds."""

    seconds: list[float] = field(default_factory=list)
    cost: Cost = field(default_factory=Cost)

    def figures(self) -> dict[str, Any]:
        commits = len(self.seconds)
        return {
            "milliseconds": round(median(self.seconds) * 1e3, 2),
            "milliseconds_spread": [round(end * 1e3, 2) for end in (min(self.seconds), max(self.seconds))],
            "commits": commits,
            "requests": round(self.cost.requests / commits, 2),
            "uploaded": round(self.cost.uploaded / commits),
            "downloaded": round(self.cost.downloaded / commits),
        }


@asynccontextmanager
async def opened(writer: Writer) -> AsyncIterator[Writer]:
    await writer.open()
    try:
        yield writer
    finally:
        await writer.close()


async def commits(at: At, sizes: Sequence[int], *, rounds: int) -> dict[str, dict[str, Any]]:
    """By size and contender."""
    found: dict[str, dict[str, Any]] = {}
    writers: dict[str, Writer] = {name: WRITERS[name](at(name)) for name in present(list(WRITERS))}
    made = dict.fromkeys(writers, 0)
    for writer in writers.values():
        await writer.open()
    try:
        for size in sizes:
            fit = {name: writer for name, writer in writers.items() if LIMITS[name] >= size}
            for name, writer in fit.items():
                await writer.grow(made[name], size)
                made[name] = size
            taken = await _in_turns(fit, made, rounds, each=min(20, max(3, size // 10)))
            found[str(size)] = {name: each.figures() for name, each in taken.items()}
    finally:
        for writer in writers.values():
            await writer.close()
    return found


async def _in_turns(writers: dict[str, Writer], made: dict[str, int], rounds: int, each: int) -> dict[str, Taken]:
    taken = {name: Taken() for name in writers}
    names = list(writers)
    for writer in writers.values():
        await writer.settle()
    before = {name: writers[name].place.cost() for name in names}
    for number in range(rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            gc.collect()
            ends = time.perf_counter() + ROUND_S
            for _ in range(each):
                taken[name].seconds.append(await writers[name].upsert(made[name]))
                made[name] += 1
                if time.perf_counter() > ends:
                    break
            await writers[name].settle()
    for name in names:
        taken[name].cost = writers[name].place.cost().since(before[name])
    return taken
