"""Act 2: hosts send telemetry while a collector is killed; Spark derives rollups while its driver is killed."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from random import Random

from holdfast import runs
from holdfast.cli.demo.stage import Process, Stage
from holdfast.server import add_token
from holdfast.telemetry import Client, Gauge

HOSTS = ("web-1", "web-2", "db-1", "db-2")
HOURS, EVERY_S = 2, 10
BATCH = 60
BATCHES = len(HOSTS) * HOURS * 3600 // EVERY_S * 2 // BATCH
AGAIN = 8  # every so many batches one is sent twice, as by an agent that crashed before it noted the answer
HOUR_NS = 3600 * 10**9


@dataclass
class Fleet:
    """What was sent and acknowledged, for the witness to compare with the store."""

    token: str
    records: dict[str, list[Gauge]]
    batches: set[tuple[str, int, int]] = field(default_factory=set)  # host, first and last number
    duplicates: int = 0
    failed_over: int = 0
    time_to_kill: asyncio.Event = field(default_factory=asyncio.Event)

    async def send(self, host: str, start: int, records: list[Gauge], urls: list[str]) -> None:
        """One batch, numbered from ``start``. With the same numbers and values it has the same bytes every time."""
        async with Client(urls, agent_id=host, token=self.token, boot_id="boot-1", seq_start=start) as client:
            (delivered,) = (await client.send(records)).batches
        self.batches.add((host, delivered.identity.seq_start, delivered.identity.seq_end))
        self.duplicates += delivered.duplicate
        self.failed_over += delivered.tries > 1


async def loses_nothing(stage: Stage) -> Fleet:
    async with stage.open() as hf:
        _, token = add_token(stage.scratch / "tokens.toml", ("*",), hf.ambient)
        first_ns = (hf.ambient.clock.wall_ns() // HOUR_NS - HOURS - 1) * HOUR_NS
        fleet = Fleet(token, {host: list(measured(first_ns, hf.ambient.rng)) for host in HOSTS})
    await accept(stage, fleet)
    await derive(stage)
    return fleet


def measured(first_ns: int, rng: Random) -> Iterator[Gauge]:
    for second in range(0, HOURS * 3600, EVERY_S):
        now_ns = first_ns + second * 10**9 + rng.randrange(10**9)
        yield Gauge("cpu_busy_ratio", rng.randrange(1024) / 1024, now_ns)  # sums of these are exact
        yield Gauge("requests_open", rng.randrange(500), now_ns)


async def accept(stage: Stage, fleet: Fleet) -> None:
    stage.wait_for("two collectors start")
    async with collector(stage, "collector-1") as (first, one), collector(stage, "collector-2") as (second, two):
        stage.say(f"  two collectors listen at {one} and {two}; {len(HOSTS)} hosts send to both")
        async with asyncio.TaskGroup() as sending:
            for number, host in enumerate(HOSTS):
                sending.create_task(send_all(stage, fleet, host, [one, two] if number % 2 else [two, one]))
            await fleet.time_to_kill.wait()
            await first.stop(signal.SIGKILL)
            stage.say(f"  collector-1 is killed (SIGKILL) after {len(fleet.batches)} of {BATCHES} batches")
        acknowledged, twice = len(fleet.batches), BATCHES // AGAIN
        stage.check(f"all {BATCHES} batches are acknowledged", acknowledged == BATCHES, acknowledged)
        stage.check(f"{fleet.failed_over} went to the other collector instead", fleet.failed_over > 0, 0)
        # A batch whose answer was lost with the collector is recognised too when it is sent to the other one.
        known = twice <= fleet.duplicates <= twice + len(HOSTS)
        stage.check(f"{fleet.duplicates} were sent again and recognised", known, fleet.duplicates)
        stage.wait_for("the collector ends")
        await second.stop(signal.SIGTERM)


@asynccontextmanager
async def collector(stage: Stage, name: str) -> AsyncIterator[tuple[Process, str]]:
    words = ["collector", "--json", "--listen", "127.0.0.1:0", "--private", "127.0.0.1:0", "--collector-id", name]
    async with stage.process(name, "holdfast", *words, "--tokens", str(stage.scratch / "tokens.toml")) as process:
        async for line in process.lines():
            yield process, json.loads(line)["ingest"]
            return
        await process.succeed()


async def send_all(stage: Stage, fleet: Fleet, host: str, urls: list[str]) -> None:
    records = fleet.records[host]
    for number, start in enumerate(range(0, len(records), BATCH)):
        for _ in range(2 if number % AGAIN == 0 else 1):
            await fleet.send(host, start, records[start : start + BATCH], urls)
        stage.wait_for(f"{len(fleet.batches)} of {BATCHES} batches are acknowledged")
        if len(fleet.batches) >= 0.4 * BATCHES:
            fleet.time_to_kill.set()


async def derive(stage: Stage) -> None:
    words = ["pipeline", "run", "reconcile", "derive", "--json"]
    words += [] if stage.master is None else ["--master", stage.master]
    stage.wait_for("the pipeline's driver starts Spark")
    async with stage.process("driver", "holdfast", *words, "--full") as driver:
        first_rollup = partial(stage.folder.glob, "rollup/v1/*/*/*/*/*.zst")
        while driver.started.returncode is None and not any(first_rollup()):  # noqa: ASYNC110  # another process writes it
            await asyncio.sleep(0.02)
        await driver.stop(signal.SIGKILL)
        killed = driver.started.returncode == -signal.SIGKILL
    stage.check("the driver is killed (SIGKILL) after its first rollup, and Spark with it", killed, driver.last_words())
    async with stage.open() as hf:
        found = [each async for each in runs.find(hf.store, tag="pipeline")]
    left = {each.run_id for each in found if each.status != "success"}
    stage.wait_for("another driver starts Spark")
    async with stage.process("driver", "holdfast", *words, "--takeover") as driver:
        said = [line async for line in driver.lines()]
        await driver.succeed()
    resumed = {each["run_id"] for each in json.loads(said[-1]) if each["resumed"]}
    named = ", ".join(resumed) or "none, since the kill fell between two"
    stage.check(f"another driver resumes what was unfinished: {named}", resumed == left, (resumed, left))
