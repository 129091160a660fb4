"""Many writers on one head, each a session with a store of its own, on a server that answers 60 ms later.

Each makes the same number of one-row commits, one after the other, as fast as it gets its turn. Nothing may be lost or
doubled; how long the slowest takes, against the median, says whether the turns are fair.
"""

import asyncio
import time
from collections.abc import Sequence
from statistics import median
from typing import Any

import holdfast
from bench.objects.clients import expect
from bench.ontology_write.commits import At
from bench.ontology_write.contenders import Customer
from bench.ontology_write.places import Place, delay

DELAY_MS = 60
FAIR = 3.0


async def contended(address: str, at: At, writers: Sequence[int], *, commits: int) -> dict[str, Any]:
    delay(address, DELAY_MS)
    try:
        return {str(count): await _race(at(f"contended-{count}"), count, commits) for count in writers}
    finally:
        delay(address, 0)


async def _race(place: Place, writers: int, commits: int) -> dict[str, Any]:
    async with holdfast.open(place.uri, settings=place.settings) as hf, hf.ontology(Customer) as onto:
        await onto.register()
    before = place.cost()
    began = time.perf_counter()
    ended = await asyncio.gather(*(_writer(place, number, commits) for number in range(writers)))
    seconds = time.perf_counter() - began
    cost = place.cost().since(before)
    async with holdfast.open(place.uri, settings=place.settings) as hf, hf.ontology(Customer) as onto:
        head = (await onto.info()).commit_id
        rows = len(await onto.all(Customer))
    expect(head == writers * commits + 1)
    expect(rows == writers * commits)
    return {
        "commits": writers * commits,
        "commits_per_second": round(writers * commits / seconds, 2),
        "slowest_over_median": round(max(ended) / median(ended), 2),
        "requests": round(cost.requests / (writers * commits), 2),
    }


async def _writer(place: Place, number: int, commits: int) -> float:
    """How long it took to get all its commits through."""
    began = time.perf_counter()
    async with holdfast.open(place.uri, settings=place.settings) as hf, hf.ontology(Customer) as onto:
        for turn in range(commits):
            key = f"w{number:02d}-{turn:03d}"
            onto.ensure(Customer(id=key, name=key, tier="gold", seats=turn))
            expect(await onto.commit() is not None)
        return time.perf_counter() - began
