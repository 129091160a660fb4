"""``holdfast demo``: the whole way from agents to answers, and the ground under it, proven act by act on a real store.

Each act is a proof that can fail, and then the command fails. Nothing is left behind unless ``--dir`` names a folder.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from holdfast.base.errors import HoldfastError, Refused
from holdfast.base.ids import Ambient
from holdfast.cli.acts.programme import ACTS
from holdfast.cli.acts.stage import Act, ProofFailed, Stage
from holdfast.cli.output import Output
from holdfast.cli.progress import Checklist, Step, live
from holdfast.cli.shell import Shell, noun_app
from holdfast.objects.uri import StoreSpec

app = noun_app()


@dataclass(frozen=True)
class Outcome:
    act: Act
    ok: bool
    figure: str
    seconds: float
    told: tuple[str, ...] = ()
    """What happened, in order."""


@app.command()
def demo(
    context: typer.Context,
    folder: Annotated[
        Path | None,
        typer.Option("--dir", metavar="PATH", help="Play in this new or empty folder, and keep it."),
    ] = None,
    master: Annotated[
        str | None, typer.Option(metavar="URL", help="Spark's master; inline: without Spark, and without Java.")
    ] = None,
) -> None:
    """Watch Holdfast prove its promises on a local store: the whole way from agents to answers."""
    shell = Shell.of(context)
    check_spark(master or shell.settings.pipeline.master)
    if folder is not None:
        _demand_empty(folder)
        shell.run(run_demo(shell.out, folder.absolute(), master=master))
        shell.out.line(f"kept: {folder}")
        return
    with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as temporary:
        shell.run(run_demo(shell.out, Path(temporary), master=master))


async def run_demo(
    out: Output,
    folder: Path,
    *,
    acts: Sequence[Act] = ACTS,
    ambient: Ambient | None = None,
    master: str | None = None,
) -> list[Outcome]:
    """Play the acts on a store in ``folder``; raises when a proof failed, after all have been played."""
    ambient = ambient if ambient is not None else Ambient.system()
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as scratch:
        stage = Stage(StoreSpec("file", str(folder)), ambient, Path(scratch), master)
        out.line(f"A store in a folder ({stage.spec.uri}), and what it promises:")
        for number, act in enumerate(acts, 1):
            outcomes.append(await _play(out, stage, act, f"{number}/{len(acts)}"))
    if out.as_json:
        out.document(_document(stage, outcomes))
    failed = [outcome.act.title for outcome in outcomes if not outcome.ok]
    if failed:
        raise HoldfastError(
            f"{len(failed)} of {len(outcomes)} proofs failed: {', '.join(failed)}",
            remedy="run holdfast doctor on a folder of the same disk",
        )
    seconds = sum(outcome.seconds for outcome in outcomes)
    out.line("")
    out.line(
        f"All {len(outcomes)} proofs hold, in {seconds:.1f} s. Now your own bucket: holdfast doctor s3://bucket/prefix"
    )
    return outcomes


async def _play(out: Output, stage: Stage, act: Act, number: str) -> Outcome:
    if act.part:
        out.line("")
        out.line(act.part)
    stage.told = []
    stage.status = act.why
    checklist = Checklist([Step(act.title, act.why)], lambda: stage.status, stage.told)
    began_ns = stage.ambient.clock.monotonic_ns()
    async with live(out, checklist):
        checklist.begin(0)
        try:
            ok, figure = True, await act.run(stage)
        except ProofFailed as evidence:
            ok, figure = False, str(evidence)
        except HoldfastError as error:
            ok, figure = False, f"{type(error).__name__}: {error}"
    out.line("")
    out.line(f"{number}  {act.title}")
    out.line(f"     {act.why}")
    for line in stage.told:
        out.line(f"       {line}")
    out.line(f"     {'proven' if ok else 'FAILED'}: {figure}")
    seconds = (stage.ambient.clock.monotonic_ns() - began_ns) / 1e9
    return Outcome(act, ok, figure, seconds, tuple(stage.told))


def _document(stage: Stage, outcomes: Sequence[Outcome]) -> dict[str, object]:
    return {
        "ok": all(outcome.ok for outcome in outcomes),
        "acts": [
            {
                "act": each.act.title,
                "why": each.act.why,
                "told": list(each.told),
                "ok": each.ok,
                "figure": each.figure,
                "seconds": each.seconds,
            }
            for each in outcomes
        ],
        "requests": stage.spent,
        "dollars": stage.dollars,
    }


def check_spark(master: str) -> None:
    """What the pipeline needs on this machine, before anything is played: ``NoSpark`` or ``NoJava`` otherwise."""
    if master.startswith("local"):
        from holdfast.pipeline.session import check_installed  # noqa: PLC0415  # an extra

        check_installed()


def _demand_empty(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise Refused(f"{folder} is not an empty folder", remedy="give --dir a folder that is new or empty")
