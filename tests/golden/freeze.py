"""Writes the stores below `tests/golden/stores`: one of each kind, as Holdfast wrote them at commit 6facb1c.

It belongs to the code of that commit and is kept to show how the files came to be. It is not run by the tests, and
nothing in `stores` is ever written again in place: newer formats get a folder of their own beside it. To repeat it:

    git worktree add /some/folder 6facb1c
    PYTHONPATH=/some/folder/src:. python tests/golden/freeze.py /an/empty/folder

Clock, ids and random numbers are fixed. Two runs differ in nothing but what depends on the version of a library
(bytes of Parquet files, compressed frames) and in the order of what runs side by side.
"""

import asyncio
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

from holdfast.ingest.agent.folder import DiskFolder
from holdfast.ingest.agent.queue import QueueOptions, open_queue
from holdfast.ingest.agent.sender import Rejected, Silent, Taken
from holdfast.ingest.agent.shipper import Shipper, ShipperOptions
from holdfast.ingest.authority import Acceptance, Place, open_authority
from holdfast.ingest.collector import Collector, CollectorOptions
from holdfast.ingest.frame import Limits, decode, encode, pack
from holdfast.ingest.landing import SpoolCollector
from holdfast.ingest.marks import Marks
from holdfast.ingest.spool import open_spool
from holdfast.ingest.submit import inspect_frame, submission_of
from holdfast.metrics.windows import Windows
from holdfast.ontology.compact import Compactor
from holdfast.ontology.turn import Open

from holdfast import runs
from holdfast.base.clock import iso
from holdfast.base.config import BusSection, OntologySection, Settings
from holdfast.bus import Schedule
from holdfast.bus.pile import READY, Item
from holdfast.bus.piles import Piles
from holdfast.bus.schedule import Ticker
from holdfast.bus.sessions import Session
from holdfast.ontology import drop, erase, upgrader
from holdfast.pipeline import Options as PipelineOptions
from holdfast.pipeline import run as run_pipeline
from holdfast.platform.open import open_platform
from tests.golden import story
from tests.golden.story import BEGAN_NS, SECOND, Watch, ambient

PLACE = Place("s3", "https://s3.example.com", "golden", "telemetry")
SETTINGS = Settings(
    ontology=OntologySection(compaction="off"),
    bus=BusSection(event_poll_ms=5, event_backoff_base_ms=1, event_backoff_max_ms=2, event_jitter_ms=0),
)

upgrader(story.CustomerV2, from_version=1, to_version=2)(story.split_name)


PIPELINE = PipelineOptions(windows=Windows.of(["1m", "1h"]))


class Fleet:
    """Processes on one store that share a clock; each draws its own ids."""

    def __init__(self, folder: Path, first_seed: int) -> None:
        self.folder = folder
        self.watch = Watch()
        self.seed = first_seed

    def process(self) -> Any:
        made, _ = ambient(self.seed)
        self.seed += 1
        return open_platform(f"file:{self.folder}", settings=SETTINGS, ambient=type(made)(self.watch, made.rng))


# --- ontology ---


async def ontology(folder: Path) -> dict[str, Any]:
    fleet = Fleet(folder / "store", 100)
    types = (story.Customer, story.Product, story.Subscription, story.Rumour, story.Memo)

    async with fleet.process() as hf, hf.ontology(*types, runtime_id="first") as onto:
        onto.ensure([story.Customer(id="c1", name="Ada Lovelace"), story.Customer(id="c2", name="Bo Diddley")])
        onto.ensure(story.Customer(id="é/%1", name="Cy Ünal", tier="gold"))
        onto.ensure(story.Product(id="p1", price=Decimal("19.90"), sizes=[1, 2], weight=0.5, photo=b"\x00\xff"))
        onto.ensure(story.Product(id="p2", price=Decimal("5.00")))
        onto.ensure(story.Subscription(left_key="c1", right_key="p1", seats=2))
        onto.ensure(story.Rumour(id="r1", text="a secret"))
        onto.ensure(story.Memo(id="m1", text="keep"))
        await onto.commit(metadata={"why": "opening day"})
        fleet.watch.advance(seconds=60)
        onto.ensure(story.Customer(id="c1", name="Ada Lovelace", tier="gold"))
        onto.emit(story.CustomerWon(customer="c1"), order_key="c1")
        onto.emit(story.CustomerWon(customer="c2"))
        await onto.commit(metadata={"why": "birthday"})
        fleet.watch.advance(seconds=60)
        onto.retract(story.Customer, "c2")
        onto.ensure(story.Subscription(left_key="c1", right_key="p1", seats=3))
        onto.ensure(story.Subscription(left_key="c1", right_key="p2"))
        await onto.commit(metadata={"why": "he left"})
        await onto.flush()
        for number in range(4, 10):
            fleet.watch.advance(seconds=60)
            onto.ensure(story.Customer(id=f"n{number}", name=f"Customer {number}"))
            onto.ensure(story.Product(id="p2", price=Decimal(number)))
            await onto.commit()

    await _destroyed_and_migrated(fleet)
    return await _content(fleet)


async def _destroyed_and_migrated(fleet: Fleet) -> None:
    fleet.watch.advance(seconds=600)
    async with fleet.process() as hf:
        compactor = Compactor(hf.store, hf.store.ambient, whole=True)
        for type_id in await compactor.types():
            for merge in (await compactor.outlook(type_id)).merges:
                await compactor.perform(merge)
        fleet.watch.advance(seconds=60)
        found = await drop.preview(hf.store, "Rumour", purge=True)
        await drop.apply(hf.store, hf.ambient, found, found.token, turn=Open(), by="anna", why="false")
        fleet.watch.advance(seconds=60)
        found = await drop.preview(hf.store, "Memo")
        await drop.apply(hf.store, hf.ambient, found, found.token, turn=Open(), by="anna", why="old")
        fleet.watch.advance(seconds=60)
        gone = await erase.preview(hf.store, "Customer", "n5")
        await erase.apply(hf.store, hf.ambient, gone, gone.token, turn=Open(), by="anna", why="asked for")

    fleet.watch.advance(seconds=60)
    async with fleet.process() as hf, hf.ontology(story.CustomerV2, runtime_id="second") as onto:
        preview = await onto.migrate()
        await onto.migrate(preview.token, why="two names")
        fleet.watch.advance(seconds=60)
        onto.ensure(story.CustomerV2(id="c7", first="Di", last="Eve", tier="silver"))
        onto.emit(story.CustomerWon(customer="c7"))
        await onto.commit(metadata={"why": "after the migration"})


async def _content(fleet: Fleet) -> dict[str, Any]:
    notes: dict[str, Any] = {"as_of": {}}
    async with fleet.process() as hf, hf.ontology(story.CustomerV2, story.Product, story.Subscription) as onto:
        head = (await onto.info()).commit_id
        notes["head"] = head
        for commit in range(1, head + 1):
            notes["as_of"][str(commit)] = {
                "Customer": sorted(map(repr, await onto.query(story.CustomerV2).as_of(commit).all())),
                "Product": sorted(map(repr, await onto.query(story.Product).as_of(commit).all())),
                "Subscription": sorted(map(repr, await onto.query(story.Subscription).as_of(commit).all())),
            }
        notes["latest"] = {"Customer": sorted(map(repr, await onto.all(story.CustomerV2)))}
        notes["gold_at_3"] = await onto.query(story.CustomerV2).as_of(3).where(story.CustomerV2.tier == "gold").count()
        events = await hf.bus().events(limit=None)
        notes["events"] = sorted(json.dumps(each.envelope.payload) for each in events)
    async with fleet.process() as hf, hf.ontology(story.Memo) as onto:
        notes["memos_at_9"] = sorted(map(repr, await onto.query(story.Memo).as_of(9).all()))
    return notes


# --- runs ---


async def runs_story(folder: Path) -> dict[str, Any]:
    fleet = Fleet(folder / "store", 200)
    async with fleet.process() as hf:
        store = hf.store
        await story.completed.start(store, "o-1", run_id="completed", metadata={"customer": "acme"}, tags=["vip"])
        await story.waiting.start(store, "o-2", run_id="suspended")
        await story.waiting.start(store, "o-3", run_id="failed-over")
        await story.failing.start(store, run_id="failed")
        await story.sleeping.start(store, run_id="sleeping")
        await story.waiting.start(store, "o-4", run_id="cancelled")
        await story.waiting.cancel(store, "cancelled", reason="no more")
        await story.waiting.start(store, "o-5", run_id="mail")
        await runs.deliver(store, "mail", "approval", {"by": "post"}, key="letter-1")
        await story.sealed.start(store, 80, run_id="sealed")
        await story.parent.start(store, run_id="parent")
        await runs.fork(store, "completed", new_run_id="forked", after_step="values")
        await story.waiting.start(store, "o-6", run_id="odd é%-1")
    async with fleet.process() as hf:
        found = {}
        for run_id in RUNS:
            described = await runs.describe(hf.store, run_id)
            found[run_id] = {
                name: getattr(described, name) for name in ("status", "steps", "entries", "session", "event")
            }
        again = await story.completed.start(hf.store, "o-1", run_id="completed")
        return {
            "runs": found,
            "result": repr(again.result),
            "listed": sorted([each.run_id async for each in runs.find(hf.store)]),
        }


RUNS = ["completed", "suspended", "failed", "sleeping", "cancelled", "mail", "sealed", "parent", "forked", "odd é%-1"]


# --- bus ---


async def bus_story(folder: Path) -> dict[str, Any]:
    fleet = Fleet(folder / "store", 300)
    async with fleet.process() as hf:
        bus = hf.bus("default")
        await bus.publish(story.OrderPlaced(order_id="old"))
        await bus.run(story.HANDLERS, until_idle=True)
        fleet.watch.advance(seconds=8 * 86_400)
        await bus.run(story.HANDLERS, until_idle=True)
        await bus.cleanup()
        await bus.publish(story.OrderPlaced(order_id="good"), key="good", priority=7)
        await bus.publish(story.OrderPlaced(order_id="bad"))
        await bus.publish(story.OrderPlaced(order_id="ordered"), order_key="k")
        fleet.watch.advance(seconds=1)
        await bus.run(story.HANDLERS, until_idle=True)
        await Session(bus.store, "default", "s1", bus.ambient, {"hostname": "h", "pid": 1}).register()
        runner = bus.runner(story.HANDLERS)
        cron = [Schedule("0 3 * * *", story.OrderPlaced(order_id="tick"), name="nightly")]
        await Ticker(bus.store, runner.publisher, bus.ambient, cron).fire_due()
        rows = [(each.envelope.name, Item(7, "order.placed", 0, "k")) for each in await bus.events()]
        await Piles(bus.store, "default", bus.ambient).spill(rows, READY)
        await bus.publish(story.OrderPlaced(order_id="waiting"))
        await bus.publish(story.OrderPlaced(order_id="tomorrow"), delay=86_400)
        await hf.bus("other").publish(story.OrderPlaced(order_id="elsewhere"))
    async with fleet.process() as hf:
        bus = hf.bus("default")
        events = await bus.events(limit=None)
        return {
            "now_ns": fleet.watch.ns,
            "events": sorted(
                [each.envelope.type, each.envelope.payload.get("order_id"), str(each.status)] for each in events
            ),
            "dead": [[each["type"], each["handler_id"]] for each in await bus.dead_letters()],
            "namespaces": sorted(each.namespace for each in await bus.namespaces()),
        }


# --- telemetry ---


def frame(agent: str, boot: str, start: int, at_ns: int, number: int) -> bytes:
    return encode(pack(agent, boot, story.records(agent, at_ns, number), seq_start=start))


def submitted(body: bytes) -> Any:
    return submission_of(body, decode(body, Limits()))


async def telemetry(folder: Path) -> dict[str, Any]:
    fleet = Fleet(folder / "store", 400)
    refused: list[str] = []
    async with fleet.process() as one, fleet.process() as two:
        collectors, marks = [], []
        for number, hf in enumerate((one, two), start=1):
            authority = await open_authority(hf.store, hf.ambient, PLACE, Acceptance.S3_MANIFEST)
            made = Collector(hf.store, hf.ambient, authority, CollectorOptions(f"collector-{number}"))
            collectors.append(made)
            mark = Marks(hf.store, hf.ambient, made.references, collector_id=f"collector-{number}", every_ms=1_000)
            await mark.write()
            marks.append(mark)
        first, second = collectors
        for number in range(4):
            at_ns = BEGAN_NS + number * 1_200 * SECOND
            fleet.watch.ns = at_ns + 5 * SECOND
            await first.accept(submitted(frame("web-1", "boot-a", number * 6, at_ns, number + 1)))
            await first.accept(submitted(frame("db-1", "boot-ü", number * 6, at_ns, number + 10)))
            await second.accept(submitted(frame("web-2", "boot-b", number * 6, at_ns, number + 20)))
            await first.references.flush()
            await second.references.flush()
        conflict = await second.accept(submitted(frame("web-1", "boot-a", 0, BEGAN_NS, 99)))
        refused.append(conflict.quarantine.key)
        await second.references.flush()
        for mark in marks:
            await mark.write()
        fleet.watch.advance(seconds=3600)
        for ran in await run_pipeline(one.store, ["reconcile", "derive"], options=PIPELINE):
            assert ran.status == "success", ran
        late = fleet.watch.ns
        await second.accept(submitted(frame("web-3", "boot-c", 0, late, 50)))  # is in nothing derived
        await second.references.flush()
        await marks[0].write(ended=True)
        await marks[1].write()
    notes = {"refused": refused, "now_ns": fleet.watch.ns}
    async with fleet.process() as hf:
        return {**notes, **await story.telemetry_answers(hf), "manifests": await story.manifests_by_scan(hf.store)}


async def spool(folder: Path) -> dict[str, Any]:
    """What has landed is in `store`, what waits is in `spool`. When a batch was accepted is the time of its file."""
    fleet = Fleet(folder / "store", 500)
    async with fleet.process() as hf, open_spool(folder / "spool", hf.ambient) as held:
        spool_id = await held.spool_id(hf.ambient)
        authority = await open_authority(hf.store, hf.ambient, PLACE, Acceptance.LOCAL_SPOOL, spool_id=spool_id)
        collector = SpoolCollector(held, hf.store, hf.ambient, authority, CollectorOptions("spooler"), inspect_frame)
        for number in range(3):
            await collector.accept(submitted(frame("web-1", "boot-a", number * 6, BEGAN_NS, number + 1)))
        await collector.accept(submitted(frame("web-1", "boot-a", 0, BEGAN_NS, 77)))  # a conflict, on record later
        story.set_times(folder / "spool")
        await collector.land()
        for number in range(3, 6):
            await collector.accept(submitted(frame("web-1", "boot-a", number * 6, BEGAN_NS, number + 1)))
        await collector.accept(submitted(frame("db-1", "boot-ü", 0, BEGAN_NS, 40)))
        await collector.accept(submitted(frame("web-1", "boot-a", 18, BEGAN_NS, 78)))  # a conflict that waits
        story.set_times(folder / "spool")
        waiting = sorted([str(each.identity) async for each in held.pending()])
        landed = await story.manifests_by_scan(hf.store)
    return {"waiting": waiting, "landed": landed, "spool_id": spool_id}


# --- the agent's queue ---


class Scripted:
    """Answers by sequence number: two batches are accepted, one is refused for good, the rest meets silence."""

    async def post(self, route: int, identity: Any, frame: bytes) -> Any:
        if identity.seq_start < 12:
            return Taken(duplicate=False)
        if identity.seq_start == 12:
            return Rejected("too_large", "a frame of so many bytes is too large")
        return Silent("no route to host")


async def queue(folder: Path) -> dict[str, Any]:
    made, watch = ambient(600)
    (folder / "queue").mkdir(parents=True)
    held = DiskFolder(folder / "queue")
    opened = await open_queue(held, "web-1", made, QueueOptions(segment_bytes=2_000, tidy_bytes=1_500))
    for number in range(7):
        records = story.records("web-1", BEGAN_NS + number * SECOND, number + 1)
        await opened.append(records, {"files": {"/var/log/x": number * 100}, "changes": {"rules": {f"r{number}": 1}}})
    shipper = Shipper(opened, Scripted(), made, ShipperOptions(window=1))
    working = asyncio.create_task(shipper.run())
    while not shipper.shipped.failures:
        await asyncio.sleep(0.01)
        watch.advance(seconds=1)
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)
    frames, at = [], opened.cursor
    while (found := await opened.read(at)) is not None:
        frames.append([str(found.identity), hashlib.sha256(found.frame).hexdigest()])
        at = found.after
    return {
        "agent_id": opened.agent_id,
        "boot_id": opened.boot_id,
        "next_seq": opened.next_seq,
        "state": opened.state,
        "unsent": frames,
        "parked": sorted(name for name in await held.names() if name.endswith(".parked")),
    }


STORIES: dict[str, Callable[[Path], Any]] = {
    "ontology": ontology,
    "runs": runs_story,
    "bus": bus_story,
    "telemetry": telemetry,
    "spool": spool,
    "queue": queue,
}
LEFT_OUT = ("*.lock", "locks", "staging", "reserve", "queue.reserve")
"""Locks, files being written, and bytes that only keep room: they are made where they are needed."""


def main(target: Path, *kinds: str) -> None:
    for kind, tell in STORIES.items():
        if kinds and kind not in kinds:
            continue
        work = target / f".{kind}"
        work.mkdir(parents=True)
        notes = asyncio.run(tell(work))
        shutil.copytree(work, target / kind, ignore=shutil.ignore_patterns(*LEFT_OUT))
        shutil.rmtree(work)
        text = json.dumps(notes, indent=1, sort_keys=True, ensure_ascii=False)
        (target / kind / "expected.json").write_text(f"{text}\n", encoding="utf-8")
        print(f"{kind}: {sum(path.is_file() for path in (target / kind).rglob('*'))} files, {iso(BEGAN_NS)}")
    os.sync()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
