"""How ``holdfast sim`` tells what it found: figures while it runs, a table at the end, one command per broken seed."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from holdfast.base.errors import HoldfastError
from holdfast.cli.output import Output
from holdfast.cli.progress import Checklist, Step
from holdfast.sim.explore import Exploration, Limits
from holdfast.sim.pool import HASH_SEED, Replayed, Task
from holdfast.sim.run import Totals

LATEST = 20
"""Events of a replayed run that are printed if not all are wanted."""
SHOWN = 5
"""Broken seeds that are printed in full; of the rest only the number."""


class Report:
    """Sums per scenario, in the order of their names."""

    def __init__(self, wanted: Mapping[str, int | None], hash_seed: int) -> None:
        """``wanted`` is the number of seeds per scenario, where it is known beforehand."""
        self._wanted = wanted
        self._hash_seed = hash_seed
        self.totals = {name: Totals() for name in wanted}
        self.checklist = Checklist([Step(name) for name in wanted], self._footer)
        for number in range(len(wanted)):
            self.checklist.begin(number)

    def add(self, task: Task, totals: Totals) -> None:
        number = list(self.totals).index(task.scenario)
        known = self.totals[task.scenario]
        known.add(totals)
        wanted = self._wanted[task.scenario]
        seeds = f"{known.runs:,} seeds" if wanted is None else f"{known.runs:,} of {wanted:,} seeds"
        detail = f"{seeds}, {known.operations:,} operations"
        if known.broken:
            self.checklist.end(number, good=False, detail=f"{detail}, {len(known.broken)} broken")
        else:
            self.checklist.steps[number].detail = detail

    def show(self, out: Output, wall_s: float) -> None:
        everything = self._everything()
        rates = {
            "wall_s": round(wall_s, 1),
            "runs_per_s": round(everything.runs / wall_s),
            "operations_per_s": round(everything.operations / wall_s),
        }
        if out.as_json:
            scenarios = {name: asdict(totals) for name, totals in self.totals.items()}
            out.document({"scenarios": scenarios, **rates})
            return
        out.table(
            ("scenario", "seeds", "operations", "left open", "requests", "faults", "broken"),
            [
                (name, *(f"{figure:,}" for figure in _figures(totals)))
                for name, totals in [*self.totals.items(), ("all", everything)]
                if name != "all" or len(self.totals) > 1
            ],
        )
        kinds = ", ".join(f"{kind} {number:,}" for kind, number in sorted(everything.tally.items()))
        out.line(f"faults: {kinds or 'none'}")
        out.line("{wall_s} s, {runs_per_s:,} runs/s, {operations_per_s:,} operations/s".format(**rates))
        self._show_broken(out)

    def raise_if_broken(self) -> None:
        for name, totals in self.totals.items():
            if totals.broken:
                seed = min(totals.broken)
                raise HoldfastError(
                    f"{name} broke a rule under {len(totals.broken)} of {totals.runs} seeds; seed {seed}: "
                    f"{totals.broken[seed][0]}",
                    remedy=self._replay_command(name, seed),
                )

    def _show_broken(self, out: Output) -> None:
        for name, totals in self.totals.items():
            for seed in sorted(totals.broken)[:SHOWN]:
                out.line("")
                out.line(f"{name}, seed {seed}:")
                for violation in totals.broken[seed]:
                    out.line(f"  {violation}")
                out.line(f"  {self._replay_command(name, seed)}")

    def _replay_command(self, name: str, seed: int) -> str:
        hash_seed = "" if self._hash_seed == HASH_SEED else f" --hash-seed {self._hash_seed}"
        return f"holdfast sim replay {name} --seed {seed} --trace{hash_seed}"

    def _everything(self) -> Totals:
        everything = Totals()
        for totals in self.totals.values():
            everything.add(totals)
        return everything

    def _footer(self) -> str:
        everything = self._everything()
        faults = sum(everything.tally.values())
        return f"{everything.runs:,} runs, {everything.operations:,} operations, {faults:,} faults"


def show_history(out: Output, replayed: Replayed, *, trace: bool) -> None:
    """One run: its settings, what happened (in short, or all of it), and the verdict."""
    lines = replayed.trace if trace else replayed.history[-LATEST:]
    if out.as_json:
        out.document({**asdict(replayed), "trace": replayed.trace if trace else []})
        return
    out.line(replayed.settings)
    if not trace and len(replayed.history) > LATEST:
        out.line(f"... {len(replayed.history) - LATEST:,} events before these; --trace prints everything, requests too")
    for line in lines:
        out.line(line)
    totals = replayed.totals
    faults = sum(totals.tally.values())
    out.line(f"{totals.operations:,} operations, {totals.requests:,} requests, {faults:,} faults")
    for violation in replayed.violations:
        out.line(f"broken: {violation}")
    if not replayed.violations:
        out.line("no rule was broken")


def figures(exploration: Exploration) -> str:
    return (
        f"{exploration.states:,} states, {exploration.paths:,} courses followed to their end, "
        f"{exploration.pruned:,} to a point where another had been"
    )


def show_exploration(out: Output, scenario: str, limits: Limits, result: Exploration) -> None:
    """Raises if a course of events broke a rule."""
    if out.as_json:
        out.document(asdict(result))
    else:
        out.line(figures(result))
    if result.found is not None:
        choices = ".".join(str(choice) for choice in result.found.choices)
        options = "".join(
            f"--{name.replace('_', '-')} {number} "
            for name, number in asdict(limits).items()
            if number != getattr(Limits(), name)
        )
        raise_if_any(
            result.found.violations,
            f"{scenario}, in one course of events",
            remedy=f"holdfast sim explore {scenario} {options}--choices {choices}",
        )
    out.line("no course of events breaks a rule")


def raise_if_any(violations: Sequence[str], where: str, *, remedy: str | None = None) -> None:
    if violations:
        raise HoldfastError(f"{where}: {violations[0]}", remedy=remedy)


def _figures(totals: Totals) -> tuple[int, ...]:
    faults = sum(totals.tally.values())
    return (
        totals.runs,
        totals.operations,
        totals.open_operations,
        totals.requests,
        faults,
        len(totals.broken),
    )
