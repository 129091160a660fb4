"""A process that runs seeds: reads requests and writes answers, a JSON document per line.

It is a process of its own so that several cores are used, and so that the hash seed is fixed: no run may depend on it,
and if one ever did it could still be replayed. ``pool`` starts it as ``python -m holdfast.sim.runner``.
"""

import json
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from holdfast.base.clock import SystemClock
from holdfast.base.errors import Invalid
from holdfast.sim.explore import Exploration, Limits, explore, follow
from holdfast.sim.run import Run, Totals, simulate
from holdfast.sim.scenario import find, small

Answer = dict[str, Any]

_OURS = Path(__file__).resolve().parents[1]

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
        except Exception as error:  # noqa: BLE001  # of the scenario's own code: answered with its place
            _say(_mishap(request, error))


def _mishap(request: dict[str, Any], error: Exception) -> Answer:
    under = [f"seed {request['seed']}"] if "seed" in request else getattr(error, "__notes__", [])[-1:]
    seed = f", {under[0]}" if under else ""
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return {
        "invalid": f"scenario {request.get('scenario')}{seed}: {what}, {_where(error)}",
        "remedy": "mend the scenario; --verbose shows the traceback",
        "traceback": "".join(traceback.format_exception(error)),
    }


def _where(error: Exception) -> str:
    """The place in the code that is furthest down and not ours, or else the last."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if _OURS not in Path(frame.filename).parents]
    last = (own or frames)[-1]
    return f"in {last.name}, {Path(last.filename).name} line {last.lineno}"


def _run(scenario: str, first: int, count: int, within_s: float | None) -> Iterator[Answer]:
    kind, clock, totals = find(scenario), SystemClock(), Totals()
    began_ns = clock.monotonic_ns()
    for seed in range(first, first + count):
        if within_s is not None and totals.runs and clock.monotonic_ns() - began_ns > within_s * 1e9:
            break
        try:
            totals.include(simulate(kind, seed))
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
    yield asdict(totals)


def _replay(scenario: str, seed: int) -> Iterator[Answer]:
    yield _history(simulate(find(scenario), seed))


def _explore(scenario: str, limits: dict[str, int]) -> Iterator[Answer]:
    def progress(so_far: Exploration) -> None:
        if (so_far.paths + so_far.pruned) % PROGRESS_EVERY == 0:
            _say({**asdict(so_far), "finished": False})

    yield {**asdict(explore(small(find(scenario)), Limits(**limits), progress=progress)), "finished": True}


def _follow(scenario: str, limits: dict[str, int], choices: list[int]) -> Iterator[Answer]:
    yield _history(follow(small(find(scenario)), Limits(**limits), tuple(choices)))


def _history(run: Run) -> Answer:
    totals = Totals()
    totals.include(run)
    return {
        **asdict(totals),
        "settings": str(run.scenario),
        "violations": run.violations,
        "history": [str(event) for event in run.trace.events if isinstance(event.subject, str)],
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
