"""``holdfast demo``: five acts on a local store, with processes killed. Every claim that is printed was checked."""

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from holdfast.base.aio import blocking
from holdfast.base.clock import SystemClock
from holdfast.base.errors import Refused
from holdfast.cli.demo import acts, witness
from holdfast.cli.demo.stage import Stage
from holdfast.cli.pipeline.driver import LOCAL
from holdfast.cli.shell import Shell, noun_app

app = noun_app()


@app.command()
async def demo(
    shell: Shell,
    folder: Annotated[
        Path | None, typer.Option("--dir", metavar="PATH", help="Use this new or empty directory, and keep it.")
    ] = None,
    master: Annotated[
        str | None, typer.Option(metavar="URL", help="Spark's master; local: without Spark and Java.")
    ] = None,
) -> None:
    """Kill processes on a local store, and check that nothing is lost.

    Five acts in about a minute: work survives a kill; a fleet's telemetry, with a killed collector and a killed Spark
    driver; data with a past; events; a witness that counts everything again from the files, and the bill. Each claim
    is checked before it is printed. The first one that does not hold ends the demo with exit code 1.

    The store is a temporary folder, which is removed at the end. Spark needs Java 17 or newer.
    """
    wanted = master or shell.settings.pipeline.master
    if wanted != LOCAL and wanted.startswith(LOCAL):  # Spark on this machine
        from holdfast.pipeline.engine.session import check_installed  # noqa: PLC0415  # an extra

        check_installed()
    if folder is not None and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise Refused(f"{folder} is not an empty folder", remedy="give --dir a folder that is new or empty")
    scratch = Path(tempfile.mkdtemp(prefix="holdfast-demo-"))
    stage = Stage(shell.out, scratch / "store" if folder is None else folder.absolute(), scratch, master)
    waiting = asyncio.ensure_future(stage.show_waiting())
    try:
        seconds = await play(stage)
        stage.wait_for("the temporary files are removed")
    finally:
        await blocking(shutil.rmtree, scratch)
        waiting.cancel()
    stage.begin(f"All {len(stage.claims)} claims hold, in {seconds:.0f} s.")
    if folder is not None:
        stage.say(f"The store is kept. Look at it: holdfast --store file:{folder} runs list")
    stage.say("Does your own bucket keep the promises that all this rests on? holdfast doctor s3://bucket/prefix")
    if stage.out.as_json:
        bill = {"requests": stage.usage.by_verb, "dollars": stage.usage.dollars}
        stage.out.document({"claims": stage.claims, "seconds": seconds, **bill})


async def play(stage: Stage) -> float:
    """The acts in their order; the first claim that does not hold ends them. How many seconds they took."""
    clock = SystemClock()
    began_ns = clock.monotonic_ns()
    stage.say(f"The store is a folder: {stage.uri}")
    stage.begin("1/5  Work survives a kill")
    await acts.work_survives_kills(stage)
    stage.begin("2/5  A fleet's telemetry, with a killed collector and a killed driver")
    sent = await acts.fleet_loses_nothing(stage)
    stage.begin("3/5  Data with a past")
    await acts.data_has_a_past(stage)
    stage.begin("4/5  Events")
    await acts.events_are_handled(stage)
    stage.begin("5/5  The witness and the bill")
    await witness.counts_again(stage, sent)
    verbs = ", ".join(f"{count:,} {verb.upper()}" for verb, count in sorted(stage.usage.by_verb.items()))
    stage.say(f"  requests without collectors and drivers: {verbs}; on S3 about ${stage.usage.dollars:.4f}")
    return (clock.monotonic_ns() - began_ns) / 1e9
