"""Several contenders in turns: every round has each of them once, and who begins changes from round to round."""

import gc
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from statistics import median

Measure = Callable[[int], Awaitable["Taken"]]
"""Does one round's work, whose number it gets, and returns what that took."""


@dataclass(frozen=True, slots=True)
class Taken:
    seconds: float
    cpu_seconds: float = 0.0
    """Of the process that did the work, all its threads."""
    requests: int = 0
    uploaded: int = 0
    """Bytes that were sent or written."""
    alone: float = 0.0
    """The part of ``seconds`` that is the work itself, where a contender can tell it from starting up."""


@dataclass(frozen=True, slots=True)
class Medians:
    seconds: float
    spread: tuple[float, float]
    cpu_seconds: float
    requests: float
    uploaded: float
    alone: float
    ratio: float
    """Its time over the first contender's, within a round."""


async def in_turns(contenders: Mapping[str, Measure], *, rounds: int) -> dict[str, Medians]:
    """One unmeasured round to warm up, then ``rounds`` measured ones."""
    taken: dict[str, list[Taken]] = {name: [] for name in contenders}
    names = list(contenders)
    for number in range(rounds + 1):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            gc.collect()
            found = await contenders[name](number)
            if number:
                taken[name].append(found)
    first = taken[names[0]]
    return {name: _medians(samples, first) for name, samples in taken.items()}


def _medians(samples: list[Taken], first: list[Taken]) -> Medians:
    seconds = [sample.seconds for sample in samples]
    return Medians(
        seconds=median(seconds),
        spread=(min(seconds), max(seconds)),
        cpu_seconds=median(sample.cpu_seconds for sample in samples),
        requests=median(sample.requests for sample in samples),
        uploaded=median(sample.uploaded for sample in samples),
        alone=median(sample.alone for sample in samples),
        ratio=median(one.seconds / other.seconds for one, other in zip(samples, first, strict=True)),
    )
