"""How requests and uploaded bytes grow with the number of steps: counted, not timed."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bench.runs.work import Workload
from holdfast.objects import open as open_store

STEPS = (100, 1_000, 10_000)
FAMILY = "runs"
SLOPE_AIM = 1.1


@dataclass(frozen=True, slots=True)
class Grown:
    steps: int
    uploaded: int
    in_one_object: int
    """What it would be if every append wrote the whole history, as a plain journal of one object does."""
    writes_per_step: float
    resume_reads: int
    resume_bytes: int


async def measure(steps: int) -> Grown:
    workload = Workload()
    async with open_store("memory:") as store:
        await workload.leave_unfinished(store, "r", steps)
        put = store.usage.at("put", FAMILY)
        uploaded, writes = put.sent_bytes, put.requests
        history = (await store.head("runs/r/journal.jsonl")).size
        get = store.usage.at("get", FAMILY)
        reads, received = get.requests, get.received_bytes
        await workload.run(store, "r", steps)
        resume_reads, resume_bytes = get.requests - reads, get.received_bytes - received
    line = max(resume_bytes, history) / (steps + 1)
    return Grown(
        steps, uploaded, round(line * (steps + 1) * (steps + 2) / 2), writes / steps, resume_reads, resume_bytes
    )


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Of the line through the logarithms, by least squares."""
    xs, ys = [math.log(x) for x, _ in points], [math.log(y) for _, y in points]
    middle_x, middle_y = sum(xs) / len(xs), sum(ys) / len(ys)
    above = sum((x - middle_x) * (y - middle_y) for x, y in zip(xs, ys, strict=True))
    return above / sum((x - middle_x) ** 2 for x in xs)


async def growth(counts: Sequence[int]) -> dict[str, Any]:
    found = [await measure(steps) for steps in counts]
    return {
        "points": [asdict(each) for each in found],
        "slope": round(slope([(each.steps, each.uploaded) for each in found]), 3),
        "slope_in_one_object": round(slope([(each.steps, each.in_one_object) for each in found]), 3),
        "slope_aim": SLOPE_AIM,
    }
