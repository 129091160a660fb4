"""The pipeline as durable runs: its driver is killed, the next one goes on; late data corrects one hour alone."""

import asyncio
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.cli.acts import agents, witness
from holdfast.cli.acts.agents import Sent
from holdfast.cli.acts.stage import ProofFailed, Stage, prove
from holdfast.pipeline.job import UNFINISHED
from holdfast.runs import find

WATCH_S = 0.005
DERIVED = ("batches-by-hour", "rollup", "index", "manifests")
JOBS = ("reconcile", "rollup", "index", "feed")
STALE = {"HOLDFAST_PIPELINE__STALE_HOURS": "1"}
"""In the demo a host has stopped emitting a metric after one hour without it."""


@dataclass(frozen=True)
class Derived:
    """That the pipeline has run."""

    commits: tuple[int, ...]
    """Of the feed, one for each hour."""


async def goes_on(stage: Stage) -> str:
    stage.take(Sent)
    root = stage.root
    async with stage.command(*_words(stage, "--full"), log="driver-1.log", **STALE) as driver:
        stage.status = "the first driver starts"
        await _until_a_chunk(driver, root)
        prove(driver.returncode is None, f"the first driver ended: {stage.last_words('driver-1.log')}")
        driver.kill()
        await driver.wait()
    before = _digests(root)
    visible = len(list(witness.current(root, "rollup")))
    stage.tell(
        f"its driver is killed (SIGKILL) among the rollups: {_chunks(root)} chunks are there, {visible} visible hours"
    )
    left = await _unfinished(stage)
    ran = await _driven(stage, "driver-2.log")
    resumed = {each["run_id"] for each in ran if each["resumed"]}
    prove(resumed == left, f"{sorted(left)} were left unfinished, {sorted(resumed)} were gone on with")
    stage.tell(f"another driver goes on with {', '.join(sorted(resumed)) or 'the next job, between two runs'}:")
    _tell(stage, ran)
    after = _digests(root)
    changed = [key for key, digest in before.items() if after.get(key) != digest]
    prove(not changed, f"what the first driver had made is not what it was: {changed[:3]}")
    rolled, fed = _of(ran, "rollup"), _of(ran, "feed")
    prove(rolled["unreadable"] == 0 and rolled["doubtful"] == 0, f"the rollup says {rolled}")
    again = await _driven(stage, "driver-3.log", master="inline")
    idle = [each for each in again if each["job"] != "reconcile"]
    prove(not idle, f"there was nothing left to do, and it did {idle}")
    stage.leave(Derived(tuple(fed["commits"])))
    return (
        f"{rolled['records']} records of {len(fed['hours'])} hours in {len(after)} objects; "
        f"{len(before)} from before the kill are as they were, a third driver found nothing to do"
    )


async def corrected(stage: Stage) -> str:
    """A network comes back, and with it batches of an hour that was rolled up long ago."""
    sent, _ = stage.take(Sent), stage.take(Derived)
    root = stage.root
    before = {each["hour"]: each["generation"] for each in witness.current(root, "rollup")}
    async with agents.collectors(stage, "third") as (collector,):
        total = len(sent.told) + len(sent.late)
        await agents.deliver(stage, sent, sent.late, [collector.url], total)
        await agents.end(collector)
    stage.tell(f"web-1 is back, and delivers {len(sent.late)} batches of the first hour")
    ran = await _driven(stage, "driver-4.log", master="inline")
    _tell(stage, ran)
    after = {each["hour"]: each["generation"] for each in witness.current(root, "rollup")}
    moved = {hour: (number, after[hour]) for hour, number in before.items() if after[hour] != number}
    first = min(before)
    prove(moved == {first: (before[first], before[first] + 1)}, f"of the hours {before}, these have changed: {moved}")
    prove(not any(each["job"] == "feed" for each in ran), "hosts that were counted have been counted again")
    made = _of(ran, "rollup")
    return f"{first} has generation {after[first]} from {made['inputs']} inputs; the other hours were not touched"


async def _driven(stage: Stage, log: str, *, master: str | None = None) -> list[dict[str, Any]]:
    """What the jobs of one driver say. It does not wait for the turn of the one that was killed to run out."""
    stage.status = "a driver starts"
    async with stage.command(*_words(stage, "--takeover", master=master), log=log, **STALE) as driver:
        stdout, _ = await driver.communicate()
        prove(driver.returncode == 0, f"the driver failed: {stage.last_words(log)}")
    try:
        ran: list[dict[str, Any]] = json.loads(stdout)
    except ValueError as error:
        raise ProofFailed(f"the driver said {stdout[:200]!r}") from error
    return ran


def _tell(stage: Stage, ran: list[dict[str, Any]]) -> None:
    for each in ran:
        stage.tell(f"{each['job']}: {_summary(each)}")


async def _unfinished(stage: Stage) -> set[str]:
    """Runs of jobs that a driver has left; none if it died between two of them."""
    async with stage.open() as store:
        found = [each async for each in find(store, status=UNFINISHED, tag="pipeline")]
    return {each.run_id for each in found}


def _words(stage: Stage, *options: str, master: str | None = None) -> list[str]:
    chosen = master or stage.master
    return ["pipeline", "run", "--json", *options, *([] if chosen is None else ["--master", chosen])]


def _summary(ran: dict[str, Any]) -> str:
    names = ("batches", "references_written", "overlaps", "inputs", "records", "repeated", "chunks", "commits")
    return ", ".join(f"{ran[name]} {name.replace('_', ' ')}" for name in names if ran.get(name))


def _of(ran: list[dict[str, Any]], job: str) -> dict[str, Any]:
    for each in ran:
        if each["job"] == job:
            return each
    raise ProofFailed(f"there was no run of {job}")


async def _until_a_chunk(driver: asyncio.subprocess.Process, root: Path) -> None:
    """Until the first rollup is written, or the driver has ended."""
    while driver.returncode is None and not _chunks(root):  # noqa: ASYNC110  # it is another process that makes them
        await asyncio.sleep(WATCH_S)


def _chunks(root: Path) -> int:
    return len(list(root.glob("rollup/v1/*/*/*/*/*.zst")))


def _digests(root: Path) -> dict[str, str]:
    """Everything that was derived, by the hash of its bytes."""
    files = [path for name in DERIVED for path in (root / name).rglob("*") if path.is_file()]
    return {str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
