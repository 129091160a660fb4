"""``holdfast sim``: the simulator. Run scenarios over many seeds, replay one, or explore a small one completely.

A failing seed is reported with the one command that replays it. Seeds run in processes of their own, whose hash seed is
fixed.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated

import typer

from holdfast.base.clock import Clock
from holdfast.base.errors import Invalid
from holdfast.base.ids import Ambient
from holdfast.cli.output import Output
from holdfast.cli.progress import Checklist, Step, live
from holdfast.cli.shell import Shell, noun_app
from holdfast.cli.sim_view import Report, figures, raise_if_any, show_exploration, show_history
from holdfast.sim.explore import Choices, Exploration, Limits
from holdfast.sim.pool import HASH_SEED, FairShares, Runner, Task, run_all, shares
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
def list_scenarios(context: typer.Context) -> None:
    """Name every scenario and what must hold in it."""
    rows = [(name, scenario.description()) for name, scenario in built_in().items()]
    Shell.of(context).out.table(("scenario", "description"), rows)


@app.command("run")
def run_scenario(
    context: typer.Context,
    scenario: ScenarioName,
    seeds: Annotated[str, typer.Option(metavar="A..B", help="Seeds to run, both ends included.")] = "1..100",
    jobs: Jobs = 1,
    hash_seed: HashSeed = HASH_SEED,
) -> None:
    """Run a scenario once per seed and check every history."""
    shell = Shell.of(context)
    find(scenario)
    wanted = parse_seeds(seeds)
    shell.run(_run(shell.out, {scenario: len(wanted)}, shares(scenario, wanted), jobs, hash_seed))


@app.command("all")
def run_everything(
    context: typer.Context,
    minutes: Annotated[float, typer.Option(min=0, help="How long to go on.")] = 1.0,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes that run seeds; one per core.")] = None,
    first_seed: Annotated[int | None, typer.Option(min=0, metavar="N", help="Where to begin; drawn if absent.")] = None,
    hash_seed: HashSeed = HASH_SEED,
) -> None:
    """Run all scenarios with new seeds for a given time."""
    shell = Shell.of(context)
    ambient = Ambient.system()
    first = ambient.rng.getrandbits(40) if first_seed is None else first_seed
    names = list(built_in())
    runners = jobs or os.cpu_count() or 1
    shell.out.note(f"{len(names)} scenarios for {minutes:g} minutes on {runners} cores, from seed {first}")
    fair = FairShares(names, first)
    tasks = _until(ambient.clock, minutes, fair)
    shell.run(_run(shell.out, dict.fromkeys(names), tasks, runners, hash_seed, fair.done))


@app.command("replay")
def replay_seed(
    context: typer.Context,
    scenario: ScenarioName,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="The seed to run again.")],
    trace: Annotated[bool, typer.Option("--trace", help="Print everything that happened.")] = False,
    hash_seed: HashSeed = HASH_SEED,
) -> None:
    """Run one seed again, with its history."""
    shell = Shell.of(context)
    find(scenario)
    shell.run(_replay(shell.out, scenario, seed, trace, hash_seed))


@app.command("explore")
def explore_scenario(
    context: typer.Context,
    scenario: ScenarioName,
    crashes: Annotated[int, typer.Option(min=0, help="Processes that may die.")] = 1,
    lost_responses: Annotated[int, typer.Option(min=0, help="Answers that may be lost.")] = 1,
    timeouts: Annotated[int, typer.Option(min=0, help="Requests that may land after their client gave up.")] = 0,
    duplicates: Annotated[int, typer.Option(min=0, help="Writes that may land twice.")] = 0,
    contended: Annotated[
        int, typer.Option(min=0, help="Writes that may be answered 409 while a copy is on its way.")
    ] = 0,
    choices: Annotated[
        str | None, typer.Option(metavar="N.N.N", help="Follow this one course of events and print its history.")
    ] = None,
) -> None:
    """Follow every course of events of a scenario's small configuration."""
    shell = Shell.of(context)
    limits = Limits(crashes, lost_responses, timeouts, duplicates, contended)
    small(find(scenario))
    if choices is None:
        shell.run(_explore(shell.out, scenario, limits))
    else:
        shell.run(_follow(shell.out, scenario, limits, parse_choices(choices)))


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
    on_done: Callable[[Task, float], None] | None = None,
) -> None:
    def done(task: Task, totals: Totals, seconds: float) -> None:
        report.add(task, totals)
        if on_done is not None:
            on_done(task, seconds)

    clock = Ambient.system().clock
    began_ns = clock.monotonic_ns()
    report = Report(wanted, hash_seed)
    async with live(out, report.checklist):
        await run_all(tasks, done, jobs=jobs, hash_seed=hash_seed)
    report.show(out, (clock.monotonic_ns() - began_ns) / 1e9)
    report.raise_if_broken()


def _until(clock: Clock, minutes: float, fair: FairShares) -> Iterator[Task]:
    """Turns of all scenarios until the time is up; one of each in any case."""
    end_ns = clock.monotonic_ns() + minutes * 60e9
    while clock.monotonic_ns() <= end_ns or not fair.all_had_a_turn:
        yield fair.next()


async def _replay(out: Output, scenario: str, seed: int, trace: bool, hash_seed: int) -> None:
    async with Runner(hash_seed) as runner:
        replayed = await runner.replay(scenario, seed)
    show_history(out, replayed, trace=trace)
    raise_if_any(replayed.violations, f"{scenario}, seed {seed}")


async def _explore(out: Output, scenario: str, limits: Limits) -> None:
    step = Step(scenario)
    checklist = Checklist([step])
    checklist.begin(0)
    result = Exploration()
    async with live(out, checklist), Runner() as runner:
        async for result in runner.explore(scenario, limits):
            step.detail = figures(result)
    show_exploration(out, scenario, limits, result)


async def _follow(out: Output, scenario: str, limits: Limits, choices: Choices) -> None:
    async with Runner() as runner:
        followed = await runner.follow(scenario, limits, choices)
    show_history(out, followed, trace=True)
    raise_if_any(followed.violations, scenario)
