"""``holdfast sim``: the simulator. Run scenarios over many seeds, replay one, or explore a small one completely.

A failing seed is reported with the one command that replays it. Seeds run in processes of their own, whose hash seed is
fixed.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Annotated

import typer

from holdfast.base.clock import Clock
from holdfast.base.errors import HoldfastError, Invalid
from holdfast.base.ids import Ambient
from holdfast.cli.output import Output
from holdfast.cli.progress import Checklist, Step, live
from holdfast.cli.shell import Shell, noun_app
from holdfast.sim.explore import Choices, Exploration, Limits
from holdfast.sim.pool import HASH_SEED, Replayed, Runner, Task, run_all, shares, turns
from holdfast.sim.run import Totals
from holdfast.sim.scenario import built_in, find, small

app = noun_app()

ScenarioName = Annotated[str, typer.Argument(metavar="SCENARIO", help="A name from `sim list`, or module:Class.")]
Jobs = Annotated[int, typer.Option(min=1, help="Processes that run seeds.")]
HashSeed = Annotated[
    int, typer.Option(min=0, metavar="N", help="PYTHONHASHSEED of those processes; no run may depend on it.")
]


@app.callback()
def sim() -> None:
    """Simulate the protocols under lost answers, crashes and wrong clocks."""


@app.command("list")
def list_scenarios(shell: Shell) -> None:
    """List every scenario and what must hold in it."""
    rows = [(name, scenario.description()) for name, scenario in built_in().items()]
    shell.out.table(("scenario", "description"), rows)


@app.command("run")
async def run_scenario(
    shell: Shell,
    scenario: ScenarioName,
    seeds: Annotated[str, typer.Option(metavar="A..B", help="Seeds to run, both ends included.")] = "1..100",
    jobs: Jobs = 1,
    hash_seed: HashSeed = HASH_SEED,
) -> None:
    """Run a scenario once per seed and check every history."""
    find(scenario)
    wanted = parse_seeds(seeds)
    await _run(shell.out, {scenario: len(wanted)}, shares(scenario, wanted), jobs, hash_seed)


@app.command("all")
async def run_everything(
    shell: Shell,
    minutes: Annotated[float, typer.Option(min=0, help="How long to run.")] = 1.0,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes that run seeds (default: one per core).")] = None,
    first_seed: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="The first seed (default: random).")
    ] = None,
    hash_seed: HashSeed = HASH_SEED,
) -> None:
    """Run all scenarios with new seeds for a given time."""
    ambient = Ambient.system()
    first = ambient.rng.getrandbits(40) if first_seed is None else first_seed
    names = list(built_in())
    runners = jobs or os.cpu_count() or 1
    shell.out.note(f"{len(names)} scenarios for {minutes:g} minutes on {runners} cores, from seed {first}")
    await _run(shell.out, dict.fromkeys(names), _until(ambient.clock, minutes, names, first), runners, hash_seed)


@app.command("replay")
async def replay_seed(
    shell: Shell,
    scenario: ScenarioName,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="The seed to run again.")],
    trace: Annotated[bool, typer.Option("--trace", help="Print everything that happened.")] = False,
    hash_seed: HashSeed = HASH_SEED,
) -> None:
    """Run one seed again, with its history."""
    find(scenario)
    async with Runner(hash_seed) as runner:
        replayed = await runner.replay(scenario, seed)
    show_history(shell.out, replayed, trace=trace)
    raise_if_any(replayed.violations, f"{scenario}, seed {seed}")


@app.command("explore")
async def explore_scenario(
    shell: Shell,
    scenario: ScenarioName,
    crashes: Annotated[int, typer.Option(min=0, help="Processes that may die.")] = 1,
    lost_responses: Annotated[int, typer.Option(min=0, help="Answers that may be lost.")] = 1,
    timeouts: Annotated[int, typer.Option(min=0, help="Requests that may land after their client gave up.")] = 0,
    duplicates: Annotated[int, typer.Option(min=0, help="Writes that may land twice.")] = 0,
    contended: Annotated[
        int, typer.Option(min=0, help="Writes that may be answered 409 while a copy is on its way.")
    ] = 0,
    choices: Annotated[
        str | None, typer.Option(metavar="N.N.N", help="Follow this one order of events and print its history.")
    ] = None,
) -> None:
    """Follow every possible order of events in a scenario's small configuration."""
    limits = Limits(crashes, lost_responses, timeouts, duplicates, contended)
    small(find(scenario))
    if choices is None:
        await _explore(shell.out, scenario, limits)
    else:
        await _follow(shell.out, scenario, limits, parse_choices(choices))


def parse_seeds(text: str) -> range:
    """``A..B`` with both ends, or one number."""
    first, dots, last = text.partition("..")
    try:
        seeds = range(int(first), int(last if dots else first) + 1)
    except ValueError:
        seeds = range(0)
    if not seeds or seeds.start < 0:
        raise Invalid(f"--seeds {text}: not a range of seeds", remedy="write it as 1..500")
    return seeds


def parse_choices(text: str) -> Choices:
    try:
        return tuple(int(number) for number in text.split(".")) if text else ()
    except ValueError:
        raise Invalid(f"--choices {text}: not a list of choices", remedy="copy it from the report") from None


async def _run(
    out: Output,
    wanted: Mapping[str, int | None],
    tasks: Iterable[Task],
    jobs: int,
    hash_seed: int,
) -> None:
    clock = Ambient.system().clock
    began_ns = clock.monotonic_ns()
    report = Report(wanted, hash_seed)
    async with live(out, report.checklist.draw):
        await run_all(tasks, report.add, jobs=jobs, hash_seed=hash_seed)
    report.show(out, (clock.monotonic_ns() - began_ns) / 1e9)
    report.raise_if_broken()


def _until(clock: Clock, minutes: float, names: Sequence[str], first: int) -> Iterator[Task]:
    """Turns of all scenarios until the time is up, at least one of each."""
    end_ns = clock.monotonic_ns() + minutes * 60e9
    for number, task in enumerate(turns(names, first)):
        if number >= len(names) and clock.monotonic_ns() > end_ns:
            return
        yield task


async def _explore(out: Output, scenario: str, limits: Limits) -> None:
    step = Step(scenario)
    checklist = Checklist([step])
    checklist.begin(0)
    result = Exploration()
    async with live(out, checklist.draw), Runner() as runner:
        async for result in runner.explore(scenario, limits):
            step.detail = figures(result)
    show_exploration(out, scenario, limits, result)


async def _follow(out: Output, scenario: str, limits: Limits, choices: Choices) -> None:
    async with Runner() as runner:
        followed = await runner.follow(scenario, limits, choices)
    show_history(out, followed, trace=True)
    raise_if_any(followed.violations, scenario)


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
    out.line(figures(result), document=asdict(result))
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
