"""The first four acts of the demo: work, telemetry, data and events, each with processes that are killed."""

import asyncio
import json
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

from holdfast import Holdfast, runs
from holdfast.bus import Context, Retry, on
from holdfast.cli.demo.stage import Process, Stage
from holdfast.cli.demo.victim import NAMESPACE, ORDER_STEPS, ORDERS, SHELVES, ParcelOrdered
from holdfast.ontology import Entity, Field, meta
from holdfast.server import add_token
from holdfast.telemetry import Client, Gauge

# --- 1: a run whose process is killed again and again continues, and repeats no recorded step ---

KILL_AFTER = (7, 5, 6)  # lines of each process; the next one may finish


async def work_survives_kills(stage: Stage) -> None:
    ran: list[str] = []
    lines: list[str] = []
    report: dict[str, Any] = {}
    for number, most in enumerate((*KILL_AFTER, 0), 1):
        lines, report = await victim(stage, "run", most)
        stage.say(f"  process {number}: {lines[0]} to {lines[-1]}, {'killed with SIGKILL' if most else 'finished'}")
        ran += lines
    stage.check("the run's result is right", report["result"] == 10 * sum(range(1, SHELVES + 1)), report)
    check_steps(stage, ran, {f"shelf {number}" for number in range(1, SHELVES + 1)}, len(KILL_AFTER))
    puts = report["requests"]["put"]
    stage.check(f"the last {len(lines)} steps cost {puts} PUT requests", puts <= len(lines) + 6, report)


async def victim(stage: Stage, mode: str, most: int = 0) -> tuple[list[str], dict[str, Any]]:
    """The lines of a process that is killed after about ``most`` of them; with 0, of one that ends by itself, and its
    report."""
    stage.wait_for("a process starts")
    lines: list[str] = []
    async with stage.process("victim", "holdfast.cli.demo.victim", mode) as process:
        async for line in process.lines():
            lines.append(line)
            if len(lines) == most:
                process.send(signal.SIGKILL)  # the loop continues: it may have printed more before its end
        if most:
            return lines, {}
        await process.succeed()
    report: dict[str, Any] = json.loads(lines.pop())
    stage.charge(report["requests"])
    return lines, report


def check_steps(stage: Stage, ran: list[str], wanted: set[str], kills: int) -> None:
    times = Counter(ran)
    repeated = len(ran) - len(times)
    claim = f"{len(wanted)} steps ran, {repeated} of them twice: at most one for each kill, which interrupted it"
    stage.check(claim, times.keys() == wanted and repeated <= kills, times)


# --- 2: hosts send telemetry while a collector is killed; rollups are derived while the driver is killed ---

HOSTS = ("web-1", "web-2", "db-1", "db-2")
HOURS, EVERY_S = 2, 10
BATCH = 60
BATCHES = len(HOSTS) * HOURS * 3600 // EVERY_S * 2 // BATCH
RESEND_EVERY = 8  # so many batches one is sent twice, as by an agent that crashed before it noted the answer
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


async def fleet_loses_nothing(stage: Stage) -> Fleet:
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
        acknowledged, twice = len(fleet.batches), BATCHES // RESEND_EVERY
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
        for _ in range(2 if number % RESEND_EVERY == 0 else 1):
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
    stage.check("the driver is killed (SIGKILL) after its first rollup, and Spark with it", killed, driver.last_line())
    async with stage.open() as hf:
        found = [each async for each in runs.find(hf.store, tag="pipeline")]
    left = {each.run_id for each in found if each.status != "success"}
    stage.wait_for("another driver starts Spark")
    async with stage.process("driver", "holdfast", *words, "--takeover") as driver:
        printed = [line async for line in driver.lines()]
        await driver.succeed()
    resumed = {each["run_id"] for each in json.loads(printed[-1]) if each["resumed"]}
    named = ", ".join(resumed) or "none, since the kill fell between two"
    stage.check(f"another driver resumes the unfinished runs: {named}", resumed == left, (resumed, left))


# --- 3: several writers commit to one history, and every past commit can be queried ---

WRITERS = ("anna", "ben", "carla")
COMMITS = 3


class Machine(Entity):
    id: Field[str] = Field(primary_key=True)
    state: Field[str]


async def data_has_a_past(stage: Stage) -> None:
    stage.wait_for(f"{len(WRITERS)} writers commit")
    total, made = len(WRITERS) * COMMITS, list[int]()
    async with stage.open() as hf, hf.ontology(Machine) as onto:
        await asyncio.gather(*(write(hf, name, made) for name in WRITERS))
        made.sort()
        numbers = list(range(made[0], made[0] + total))
        stage.check(f"{len(WRITERS)} writers at once made {total} commits, one after the other", made == numbers, made)
        onto.ensure(Machine(id="anna-0", state="broken"))
        await onto.commit()
        onto.retract(Machine, "anna-0")
        await onto.commit()
        machines = onto.query(Machine)
        then = [await machines.as_of(commit).count() for commit in numbers]
        stage.check(f"as of each commit: {', '.join(map(str, then))} machines", then == [*range(1, total + 1)], then)
        now = await machines.count()
        stage.check(f"one broke and was retracted, so now: {now}", now == total - 1, now)
        past = await machines.where(Machine.id == "anna-0").with_history().all()
        states = ["retracted" if meta(each).retracted else each.state for each in past]
        stage.check(f"its history: {', '.join(states)}", states == ["new", "broken", "retracted"], states)


async def write(hf: Holdfast, name: str, made: list[int]) -> None:
    async with hf.ontology(Machine) as onto:
        for number in range(COMMITS):
            onto.ensure(Machine(id=f"{name}-{number}", state="new"))
            committed = await onto.commit()
            made += [] if committed is None else [committed.commit_id]


# --- 4: events that are committed with the data, a worker that is killed, and an event whose handler fails ---

ATTEMPTS = 3


class Order(Entity):
    id: Field[str] = Field(primary_key=True)


async def events_are_handled(stage: Stage) -> None:
    async with stage.open() as hf:
        async with hf.ontology(Order) as onto:
            for order_id in ORDERS:
                stage.wait_for(f"{order_id} is committed")
                onto.ensure(Order(id=order_id))
                onto.emit(ParcelOrdered(order_id=order_id), namespace=NAMESPACE)
                await onto.commit()
        listed = await hf.bus(NAMESPACE).events()
    stage.check(f"{len(ORDERS)} commits of an order brought an event each", len(listed) == len(ORDERS), listed)

    first, _ = await victim(stage, "work", len(ORDER_STEPS) - 1)
    stage.say(f"  a worker: {', '.join(first)}, killed with SIGKILL")
    second, report = await victim(stage, "work")
    stage.say(f"  another worker: {', '.join(second)}")
    stage.check(f"the other worker handled all {len(ORDERS)} events", report["result"] == len(ORDERS), report)
    check_steps(stage, first + second, {f"{step} {order_id}" for order_id in ORDERS for step in ORDER_STEPS}, 1)

    tries = 0

    @on(ParcelOrdered, id="invoice", retry=Retry(attempts=ATTEMPTS, base_ms=1, max_ms=10))
    async def invoice(ctx: Context, event: ParcelOrdered) -> None:
        nonlocal tries
        if event.order_id == ORDERS[0]:
            tries += 1
            raise ValueError("this order has no address")

    stage.wait_for("a handler that fails for one order")
    async with stage.open() as hf:
        worked = await hf.run([invoice], namespace=NAMESPACE, until_idle=True)
        letters = await hf.bus(NAMESPACE).dead_letters()
    claim = f"a handler failed {tries} times for one event, now a dead letter, and handled {worked.handled} others"
    stage.check(claim, (tries, worked.handled, worked.dead, len(letters)) == (ATTEMPTS, 2, 1, 1), worked)
