"""Shared by the tests that put a naive part in place of the right one and watch the same scenario fail."""

from collections.abc import Iterable

from holdfast.sim.run import Run, simulate
from holdfast.sim.scenario import Scenario


def first_broken(kind: type[Scenario], seeds: Iterable[int]) -> Run:
    for seed in seeds:
        run = simulate(kind, seed)
        if run.violations:
            return run
    raise AssertionError(f"{kind.__name__} was never caught")


def rules(run: Run) -> set[str]:
    """The rules that were broken, by name."""
    return {violation.partition(":")[0] for violation in run.violations}
