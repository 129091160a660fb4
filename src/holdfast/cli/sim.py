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
from holdfast.cli.progress import live
from holdfast.cli.shell import Shell, noun_app
from holdfast.sim.explore import Choices, Limits, explore, follow
from holdfast.sim.pool import HASH_SEED, Pool, Replayed, Task, run_all, shares, turns
from holdfast.sim.run import Totals, naming_mistakes
from holdfast.sim.scenario import built_in, find, small

app = noun_app()

LATEST = 20
"""Events of a replayed run that are printed without ``--trace``."""
SHOWN = 5
"""Failed seeds of a scenario that are printed in full."""

ScenarioName = Annotated[str, typer.Argument(metavar="SCENARIO", help="A name from `sim list`, or module:Class.")]
Jobs = Annotated[int, typer.Option(min=1, help="Processes that run seeds.")]
HashSeed = Annotated[
    int, typer.Option(min=0, metavar="N", help="PYTHONHASHSEED of those processes; no run may depend on it.")
]


@app.command("list")
def list_scenarios(shell: Shell) -> None:
    """List every scenario and what must hold in it."""
    shell.out.table({"scenario": name, "description": each.description()} for name, each in built_in().items())


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
    processes = jobs or os.cpu_count() or 1
    shell.out.note(f"{len(names)} scenarios for {minutes:g} minutes on {processes} cores, from seed {first}")
    await _run(shell.out, dict.fromkeys(names), _until(ambient.clock, minutes, names, first), processes, hash_seed)


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
    async with Pool(hash_seed=hash_seed) as pool:
        replayed = await pool.replay(scenario, seed)
    _show_history(shell.out, replayed, trace=trace)
    _raise_if_any(replayed.violations, f"{scenario}, seed {seed}")


@app.command("explore")
def explore_scenario(
    shell: Shell,
    scenario: ScenarioName,
    crashes: Annotated[int, typer.Option(min=0, help="Processes that may die.")] = 1,
    lost_responses: Annotated[int, typer.Option(min=0, help="Responses that may be lost.")] = 1,
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
    configuration = small(find(scenario))
    if choices is not None:
        with naming_mistakes(scenario):
            followed = Replayed.of(follow(configuration, limits, parse_choices(choices)))
        _show_history(shell.out, followed, trace=True)
        _raise_if_any(followed.violations, scenario)
        return
    with naming_mistakes(scenario):
        result = explore(configuration, limits)
    shell.out.line(
        f"{result.states:,} states, {result.paths:,} orders of events followed to their end, "
        f"{result.pruned:,} to a state that another one had reached",
        document=asdict(result),
    )
    if result.found is not None:
        path = ".".join(str(choice) for choice in result.found.choices)
        changed = {name: number for name, number in asdict(limits).items() if number != getattr(Limits(), name)}
        given = "".join(f"--{name.replace('_', '-')} {number} " for name, number in changed.items())
        remedy = f"holdfast sim explore {scenario} {given}--choices {path}"
        _raise_if_any(result.found.violations, f"{scenario}, in one order of events", remedy=remedy)
    shell.out.line("no order of events breaks a rule")


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


def _until(clock: Clock, minutes: float, names: Sequence[str], first: int) -> Iterator[Task]:
    """Turns of all scenarios until the time is up, at least one of each."""
    end_ns = clock.monotonic_ns() + minutes * 60e9
    for number, task in enumerate(turns(names, first)):
        if number >= len(names) and clock.monotonic_ns() > end_ns:
            return
        yield task


async def _run(out: Output, wanted: Mapping[str, int | None], tasks: Iterable[Task], jobs: int, hash_seed: int) -> None:
    """``wanted`` is the number of seeds per scenario, where it is known beforehand."""
    clock = Ambient.system().clock
    began_ns = clock.monotonic_ns()
    totals = {name: Totals() for name in wanted}

    def add(task: Task, share: Totals) -> None:
        totals[task.scenario].add(share)

    seeds = sum(number or 0 for number in wanted.values())

    def line() -> str:
        everything = _sum(totals)
        of = f" of {seeds:,}" if seeds else ""
        counts = f"{everything.runs:,}{of} runs, {everything.operations:,} operations, {everything.faults:,} faults"
        return f"{counts}, {len(everything.broken)} broken" if everything.broken else counts

    async with live(out, line):
        await run_all(tasks, add, jobs=jobs, hash_seed=hash_seed)
    again = "" if hash_seed == HASH_SEED else f" --hash-seed {hash_seed}"
    _show_totals(out, totals, (clock.monotonic_ns() - began_ns) / 1e9, again)
    for name, sums in totals.items():
        if sums.broken:
            seed = min(sums.broken)
            count = f"{len(sums.broken)} of {sums.runs} seeds"
            message = f"{name} broke a rule under {count}; seed {seed}: {sums.broken[seed][0]}"
            raise HoldfastError(message, remedy=_replay_command(name, seed, again))


def _show_totals(out: Output, totals: Mapping[str, Totals], wall_s: float, again: str) -> None:
    everything = _sum(totals)
    rates = {
        "wall_s": round(wall_s, 1),
        "runs_per_s": round(everything.runs / wall_s),
        "operations_per_s": round(everything.operations / wall_s),
    }
    if out.as_json:
        out.document({"scenarios": {name: asdict(sums) for name, sums in totals.items()}, **rates})
        return
    listed = [*totals.items(), ("all", everything)] if len(totals) > 1 else totals.items()
    out.table(
        {
            "scenario": name,
            "seeds": f"{sums.runs:,}",
            "operations": f"{sums.operations:,}",
            "left open": f"{sums.open_operations:,}",
            "requests": f"{sums.requests:,}",
            "faults": f"{sums.faults:,}",
            "broken": f"{len(sums.broken):,}",
        }
        for name, sums in listed
    )
    kinds = ", ".join(f"{kind} {number:,}" for kind, number in sorted(everything.tally.items()))
    out.line(f"faults: {kinds or 'none'}")
    out.line("{wall_s} s, {runs_per_s:,} runs/s, {operations_per_s:,} operations/s".format(**rates))
    for name, sums in totals.items():
        for seed in sorted(sums.broken)[:SHOWN]:
            out.line("")
            out.line(f"{name}, seed {seed}:")
            for line in (*sums.broken[seed], _replay_command(name, seed, again)):
                out.line(f"  {line}")


def _replay_command(name: str, seed: int, again: str) -> str:
    return f"holdfast sim replay {name} --seed {seed} --trace{again}"


def _sum(totals: Mapping[str, Totals]) -> Totals:
    everything = Totals()
    for sums in totals.values():
        everything.add(sums)
    return everything


def _show_history(out: Output, replayed: Replayed, *, trace: bool) -> None:
    """One run: its settings, what happened (the latest events, or everything), and the verdict."""
    if out.as_json:
        out.document({**asdict(replayed), "trace": replayed.trace if trace else []})
        return
    out.line(replayed.settings)
    if not trace and len(replayed.history) > LATEST:
        out.line(f"... {len(replayed.history) - LATEST:,} events before these; --trace prints everything, requests too")
    for line in replayed.trace if trace else replayed.history[-LATEST:]:
        out.line(line)
    totals = replayed.totals
    out.line(f"{totals.operations:,} operations, {totals.requests:,} requests, {totals.faults:,} faults")
    for violation in replayed.violations:
        out.line(f"broken: {violation}")
    if not replayed.violations:
        out.line("no rule was broken")


def _raise_if_any(violations: Sequence[str], where: str, *, remedy: str | None = None) -> None:
    if violations:
        raise HoldfastError(f"{where}: {violations[0]}", remedy=remedy)
