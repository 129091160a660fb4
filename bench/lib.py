"""What benchmarks share: interleaved pairs, medians, a table, and results as JSON.

Two contenders do the same work in turns, and who goes first changes with every pair, so that a machine that slows down
or speeds up meanwhile does so for both. The figure of a pair is a ratio; the figure of a comparison is the median.
"""

import gc
import json
import platform
import resource
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, slots=True)
class Sample:
    """One run of a contender's work."""

    operations: int
    seconds: float
    cpu_seconds: float
    """Of this process, all its threads; a server is another process."""
    requests: int

    @property
    def rate(self) -> float:
        return self.operations / self.seconds

    @property
    def cpu_us(self) -> float:
        return self.cpu_seconds / self.operations * 1e6


Run = Callable[[int], Awaitable[int]]
"""Does the work of one round, whose number it gets, and returns the number of operations."""


@dataclass(frozen=True)
class Contender:
    run: Run
    requests: Callable[[], int] = lambda: 0
    """How many requests it has made so far."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Medians over all pairs. ``ratio`` is our rate over the other's, within a pair."""

    ratio: float
    spread: tuple[float, float]
    """The lowest and the highest ratio of a pair."""
    rate: float
    other_rate: float
    cpu_us: float
    other_cpu_us: float
    requests_per_operation: float
    other_requests_per_operation: float

    def as_json(self) -> dict[str, Any]:
        return {
            "throughput_ratio": round(self.ratio, 3),
            "throughput_ratio_spread": [round(end, 3) for end in self.spread],
            "operations_per_second": round(self.rate, 1),
            "bare_operations_per_second": round(self.other_rate, 1),
            "cpu_us_per_operation": round(self.cpu_us, 1),
            "bare_cpu_us_per_operation": round(self.other_cpu_us, 1),
            "requests_per_operation": round(self.requests_per_operation, 3),
            "bare_requests_per_operation": round(self.other_requests_per_operation, 3),
        }


async def sample(contender: Contender, number: int) -> Sample:
    gc.collect()
    requests = contender.requests()
    cpu = _cpu_seconds()
    began = time.perf_counter()
    operations = await contender.run(number)
    seconds = time.perf_counter() - began
    return Sample(operations, seconds, _cpu_seconds() - cpu, contender.requests() - requests)


async def compare(ours: Contender, other: Contender, *, pairs: int) -> Comparison:
    """One unmeasured pair to warm up, then ``pairs`` measured ones, in turns."""
    mine: list[Sample] = []
    theirs: list[Sample] = []
    for number in range(pairs + 1):
        turns = [(ours, mine), (other, theirs)]
        for contender, samples in turns if number % 2 else reversed(turns):
            taken = await sample(contender, number)
            if number:
                samples.append(taken)
    ratios = [one.rate / two.rate for one, two in zip(mine, theirs, strict=True)]
    return Comparison(
        ratio=median(ratios),
        spread=(min(ratios), max(ratios)),
        rate=median(one.rate for one in mine),
        other_rate=median(one.rate for one in theirs),
        cpu_us=median(one.cpu_us for one in mine),
        other_cpu_us=median(one.cpu_us for one in theirs),
        requests_per_operation=median(one.requests / one.operations for one in mine),
        other_requests_per_operation=median(one.requests / one.operations for one in theirs),
    )


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as they need to be; the first is text, the others are numbers."""
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    lines = [
        "  ".join(cell.ljust(width) if not column else cell.rjust(width) for column, (cell, width) in enumerate(pairs))
        for pairs in (list(zip(row, widths, strict=True)) for row in [header, *rows])
    ]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])


def facts(*packages: str) -> dict[str, str]:
    """What the figures depend on besides the machine."""
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        **{package: version(package) for package in packages},
    }


def write_results(path: Path, document: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
