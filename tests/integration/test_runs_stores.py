"""Runs on every kind of store, from the outside: large results, long histories, damage, blocking code, workers that
share, a network that loses. What is there afterwards is read without our code.
"""

import asyncio
import hashlib
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from holdfast import runs
from holdfast.base.errors import Corrupt
from tests.fakes.fault_plans import Plan, lossy, rough
from tests.fakes.fault_proxy import FaultProxy
from tests.integration import run_places
from tests.integration.run_places import Place
from tests.integration.run_witness import Deed, faults, read_deeds, read_entries, read_result
from tests.integration.servers import S3Server
from tests.soak import SOAKING

ROOT = Path(__file__).parents[2]
LARGE_BYTES = 200 * 2**20
LONG = 10_000
HELPERS, SHARED = 2, 12
LOSSY_RUNS = 40 if SOAKING else 3


class Crash(BaseException):
    """The process dies here: nothing after it runs, nothing is recorded."""


class World:
    """What steps do here, counted; and whether the workflow's process dies before it can finish."""

    def __init__(self) -> None:
        self.done: Counter[str] = Counter()
        self.dies = False

    def workflow(self) -> runs.Workflow:
        """``n`` steps of 1 KiB, one after the other."""

        @runs.workflow(name="count")
        async def count(ctx: runs.Context, n: int) -> int:
            for number in range(n):
                await ctx.step("one", self.act, number)
            if self.dies:
                raise Crash
            return n

        return count

    async def act(self, number: int) -> str:
        self.done[str(number)] += 1
        return f"{number} ".ljust(1024, "x")

    async def die(self, place: Place, n: int) -> None:
        """Leave a run behind that has recorded ``n`` steps and not finished."""
        self.dies = True
        async with place.open() as store:
            with pytest.raises(Crash):
                await self.workflow().start(store, n, run_id="r")
        self.dies = False


# Large results


async def test_a_step_may_return_200_mib(place: Place) -> None:
    dies = True

    def build() -> bytes:
        return hashlib.sha256(b"seed").digest() * (LARGE_BYTES // 32)

    @runs.workflow()
    async def large(ctx: runs.Context) -> str:
        body = await ctx.step("build", build)
        if dies:
            raise Crash
        return hashlib.sha256(body).hexdigest()

    async with place.open() as store:
        with pytest.raises(Crash):
            await large.start(store, run_id="r")
    (payload,) = [key for key in place.keys() if "/payloads/" in key]  # noqa: SIM118  # no dictionary
    dies = False
    async with place.open() as store:
        outcome = await large.start(store, run_id="r")
        assert store.usage.requests("get", "runs") == 2, "the journal and the payload"
    assert outcome.result == hashlib.sha256(build()).hexdigest()
    (entry,) = [entry for entry in read_entries(place.get, "r") if entry["type"] == "step"]
    assert entry["payload"] == {
        "key": payload,
        "bytes": LARGE_BYTES,
        "sha256": outcome.result,
        "encoding": "bytes",
    }
    assert len(place.get("runs/r/journal.jsonl")) < 2_000


# Long histories


@pytest.fixture(scope="module")
def long_run() -> dict[str, bytes]:
    """The objects of a run that has recorded 10,000 steps. Where they were made does not matter: they are bytes."""
    made = run_places.memory()
    asyncio.run(World().die(made, LONG))
    return {key: body for key, body in made.contents().items() if key.startswith("runs/")}


def referred(objects: dict[str, bytes]) -> list[str]:
    """The segments that the journal refers to; others are left over from merging."""
    head = json.loads(objects["runs/r/journal.jsonl"].splitlines()[0])
    return [f"runs/r/segments/{level}-{first:010d}-{attempt}.jsonl" for level, first, _, _, attempt, _ in head["refs"]]


async def test_a_long_run_resumes_in_a_handful_of_reads(place: Place, long_run: dict[str, bytes]) -> None:
    segments = referred(long_run)
    assert len(segments) < 28
    for key in ["runs/r/journal.jsonl", *segments]:
        place.put(key, long_run[key])
    world = World()
    async with place.open() as store:
        outcome = await world.workflow().start(store, LONG, run_id="r")
        assert (outcome.status, outcome.result) == ("success", LONG)
        # The journal and its segments; and once it is over, one look for segments that nothing refers to any more.
        assert store.usage.requests("get", "runs") == 1 + len(segments) + 1
        assert store.usage.requests("list", "runs") == 1
        assert store.usage.requests("put", "runs") == 2, "start and complete"
    assert not world.done
    entries = read_entries(place.get, "r")
    assert [entry["stepId"] for entry in entries if entry["type"] == "step"][:3] == ["one", "one#2", "one#3"]
    assert Counter(entry["type"] for entry in entries) == {"start": 2, "step": LONG, "complete": 1}


async def test_the_server_sees_no_more_requests_than_we_count(ministack: S3Server, long_run: dict[str, bytes]) -> None:
    async with FaultProxy(ministack.endpoint) as proxy:
        place = run_places.s3(ministack, proxy.endpoint)
        for key in ["runs/r/journal.jsonl", *referred(long_run)]:
            place.put(key, long_run[key])
        async with place.open() as store:
            await World().workflow().start(store, LONG, run_id="r")
            assert {verb: proxy.counts.asked(verb) for verb in store.usage.by_verb} == store.usage.by_verb
        assert proxy.counts.asked() == sum(store.usage.by_verb.values())
        # The store's format, the journal and its segments, the journal once more; start and complete; the index.
        assert proxy.counts.asked("get") == 3 + len(referred(long_run))
        assert proxy.counts.asked("put") == 2 + 2


# Damage

STEPS = 40
"""So many that the first of them lie in a segment."""


def damage(body: bytes, line: int, how: str) -> bytes:
    lines = body.splitlines(keepends=True)
    other = {
        "garbage": b"\x00\xff not a line\n",
        "cut short": lines[line][: len(lines[line]) // 2],
        "missing": b"",
        "twice": lines[line] * 2,
        "of another session": lines[line].replace(b'"session":1', b'"session":9'),
    }
    return b"".join([*lines[:line], other[how], *lines[line + 1 :]])


@pytest.mark.parametrize("how", ["garbage", "cut short", "missing", "twice", "of another session"])
async def test_a_damaged_line_is_reported_and_nothing_is_overwritten(place: Place, how: str) -> None:
    world = World()
    await world.die(place, 5)
    before = place.get("runs/r/journal.jsonl")
    place.put("runs/r/journal.jsonl", damage(before, 3, how))
    offset = 4 if how == "twice" else 3
    await expect_corrupt(place, world, rf"runs/r/journal\.jsonl: .*offset {offset}\b")
    place.put("runs/r/journal.jsonl", before)
    async with place.open() as store:
        assert (await world.workflow().start(store, 5, run_id="r")).status == "success"
    assert set(world.done.values()) == {1}


@pytest.mark.parametrize("how", ["garbage", "missing"])
async def test_a_damaged_segment_is_reported_and_nothing_is_overwritten(place: Place, how: str) -> None:
    world = World()
    await world.die(place, STEPS)
    (segment,) = referred(place.contents())
    place.put(segment, damage(place.get(segment), 3, how))
    await expect_corrupt(place, world, rf"{segment}: .*offset 0 on", n=STEPS)


async def expect_corrupt(place: Place, world: World, message: str, n: int = 5) -> None:
    """Whatever is tried, it fails in the same way, and leaves every byte where it was."""
    there = place.contents()
    count = world.workflow()
    async with place.open() as store:
        for call in (
            count.start(store, n, run_id="r"),
            count.proceed(store, "r"),
            count.resume(store, "r", "go", 1),
            count.cancel(store, "r"),
        ):
            with pytest.raises(Corrupt, match=message) as found:
                await call
            assert runs.acknowledge(found.value)
    assert place.contents() == there
    assert sum(world.done.values()) == n, "no step ran again"


# Blocking code


@runs.workflow(version="1")
async def greet(ctx: runs.Context, name: str) -> list[Any]:
    return [await ctx.step("greet", str.title, name), await ctx.suspend("go"), await ctx.suspend("mail")]


def test_blocking_code_can_do_all_of_it(place: Place) -> None:
    with place.connect() as hf:
        outcome = hf.start(greet, "ada", run_id="r", tags=["t"])
        assert (outcome.status, outcome.event) == ("suspended", "go")
        with pytest.raises(runs.WrongEvent):
            hf.resume(greet, "r", "mail", 2)
        assert hf.resume(greet, "r", "go", 1).event == "mail"
        hf.deliver("r", "mail", {"n": 2}, key="once")
        hf.deliver("r", "mail", {"n": 2}, key="once")
    with place.connect() as hf:
        assert hf.work([greet], until_idle=True).finished == 1
        assert hf.start(greet, "ada", run_id="r").unwrap() == ["Ada", 1, {"n": 2}]
    assert [entry["type"] for entry in read_entries(place.get, "r")] == [
        *("start", "step", "suspend"),
        *("start", "resume", "suspend"),
        *("start", "resume", "complete"),
    ]


# Workers that share


async def test_workers_in_two_processes_share_what_is_due(place: Place, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    names = [f"nap-{number}" for number in range(SHARED)]
    command = [sys.executable, "-m", "tests.integration.run_workers"]
    environ = {**os.environ, **place.environ}
    begun = subprocess.run(
        [*command, "begin", place.uri, str(notes), *names], cwd=ROOT, env=environ, capture_output=True, check=False
    )
    assert (begun.returncode, begun.stderr) == (0, b"")
    helpers = [
        subprocess.Popen(
            [*command, "help", place.uri, str(notes), str(HELPERS)], cwd=ROOT, env=environ, stdout=subprocess.PIPE
        )
        for _ in range(HELPERS)
    ]
    worked = [json.loads(helper.communicate()[0]) for helper in helpers]
    assert [helper.returncode for helper in helpers] == [0] * HELPERS
    assert min(each["called"] for each in worked) > 0
    deeds = read_deeds(notes)
    for name in names:
        judge(place, name, [deed for deed in deeds if deed.key.startswith(f"{name}/")], {"before", "after"})


def judge(place: Place, run_id: str, deeds: list[Deed], steps: set[str]) -> None:
    entries = read_entries(place.get, run_id)
    gave = {entry["stepId"]: read_result(place.get, entry)["gave"] for entry in entries if entry["type"] == "step"}
    assert gave.keys() == steps
    assert faults(run_id, entries, deeds, gave) == []


# A network that loses


@pytest.mark.parametrize("trouble", [lossy, rough])
async def test_every_step_is_recorded_once_through_a_bad_network(ministack: S3Server, trouble: Any) -> None:
    for seed in range(LOSSY_RUNS):
        plan: Plan = trouble(seed)
        await check_through(ministack, plan)


async def check_through(server: S3Server, plan: Plan) -> None:
    done: Counter[str] = Counter()

    async def act(name: str) -> str:
        done[name] += 1
        return name.ljust(1024, "x")

    @runs.workflow()
    async def work(ctx: runs.Context) -> list[str]:
        first = [await ctx.step("turn", act, f"turn {number}") for number in range(30)]
        found = await ctx.parallel("fetch", [(act, f"fetch {number}") for number in range(8)])
        await ctx.suspend("go")
        return [*first, *found, await ctx.step("last", act, "last")]

    async with FaultProxy(server.endpoint) as proxy:
        place = run_places.s3(server, proxy.endpoint)
        async with place.open() as store:
            proxy.use(plan)
            assert (await work.start(store, run_id="r")).status == "suspended"
            outcome = await work.resume(store, "r", "go", True)
        happened = sum(proxy.counts.faults.values())
    assert happened > 5
    expected = [f"turn {number}" for number in range(30)] + [f"fetch {number}" for number in range(8)] + ["last"]
    assert [value.rstrip("x") for value in outcome.unwrap()] == expected
    assert done == dict.fromkeys(expected, 1)
    entries = read_entries(place.get, "r")
    assert [entry["offset"] for entry in entries] == list(range(len(entries)))
    steps = [str(entry["result"]).rstrip("x") for entry in entries if entry["type"] == "step"]
    assert sorted(steps) == sorted(expected)
    assert Counter(entry["type"] for entry in entries) == {
        "start": 2,
        "step": len(expected),
        "suspend": 1,
        "resume": 1,
        "complete": 1,
    }
