"""A process that runs seeds: reads requests and writes answers, a JSON document per line.

It is a process of its own so that several cores are used, and so that the hash seed is fixed: no run may depend on it,
and if one ever did it could still be replayed. ``pool`` starts it as ``python -m holdfast.sim.runner``.
"""

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

from holdfast.base.errors import Invalid
from holdfast.sim.explore import Exploration, Limits, explore, follow
from holdfast.sim.run import Run, Totals, simulate
from holdfast.sim.scenario import find

Answer = dict[str, Any]

PROGRESS_EVERY = 200
"""Courses of an exploration between two words on how it goes."""


def main() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        try:
            for answer in SERVICES[request.pop("do")](**request):
                _say(answer)
        except Invalid as error:
            _say({"invalid": str(error), "remedy": error.remedy})


def _run(scenario: str, first: int, count: int) -> Iterator[Answer]:
    totals = Totals()
    for seed in range(first, first + count):
        totals.include(simulate(find(scenario), seed))
    yield asdict(totals)


def _replay(scenario: str, seed: int) -> Iterator[Answer]:
    yield _history(simulate(find(scenario), seed))


def _explore(scenario: str, limits: dict[str, int]) -> Iterator[Answer]:
    def progress(so_far: Exploration) -> None:
        if (so_far.paths + so_far.pruned) % PROGRESS_EVERY == 0:
            _say({**asdict(so_far), "finished": False})

    yield {**asdict(explore(find(scenario)(), Limits(**limits), progress=progress)), "finished": True}


def _follow(scenario: str, limits: dict[str, int], choices: list[int]) -> Iterator[Answer]:
    yield _history(follow(find(scenario)(), Limits(**limits), tuple(choices)))


def _history(run: Run) -> Answer:
    totals = Totals()
    totals.include(run)
    return {
        **asdict(totals),
        "settings": str(run.scenario),
        "violations": run.violations,
        "trace": [*run.trace.lines()],
    }


SERVICES: dict[str, Callable[..., Iterator[Answer]]] = {
    "run": _run,
    "replay": _replay,
    "explore": _explore,
    "follow": _follow,
}


def _say(answer: Answer) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
