"""Programs for the tests of runs: processes that work on one run, die, and are started again. Each prints JSON.

    python -m tests.integration.run_workers dispatch|relay|haunt STORE NOTES RUN_ID SEED

What a step does to the world is one line appended to the file ``NOTES``, in one write. Children are forked from a
process without threads, so that starting one takes no longer than its first requests.
"""

import asyncio
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from holdfast import runs
from holdfast.base.config import load
from holdfast.base.errors import HoldfastError
from holdfast.base.ids import Ambient
from holdfast.objects import open as open_store
from holdfast.objects.uri import StoreSpec  # noqa: F401  # imported here, so that no child has to

Say = Callable[[str], object]

TURNS = 14
PAGES = ("a", "b", "c", "d", "e", "f")
APPROVAL = {"approved": True}
FILLING = "x" * 1_000

_notes = Path()
_say: Say = print
_sleeps_at = ""
"""The step in which this process stops until it gets SIGCONT."""
_steps_left = -1
"""After how many steps it stops too; below zero: never."""
MOST_STEPS = 8
"""Of one process that is to be killed: on a busy machine it would otherwise be done before it is."""


# What the run does


def act(ctx: runs.Context, label: str, got: str | None) -> dict[str, str]:
    """The effect of a step. ``got`` is what the step before it returned to the workflow's code."""
    gave = Ambient.system().ids.write_id()
    note = {"label": label, "key": ctx.key, "pid": os.getpid(), "session": ctx.session, "got": got, "gave": gave}
    file = os.open(_notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        os.write(file, json.dumps(note).encode() + b"\n")
    finally:
        os.close(file)
    _say(f"did {label}")
    globals().update(_steps_left=_steps_left - 1)
    if label == _sleeps_at or _steps_left == 0:
        os.kill(os.getpid(), signal.SIGSTOP)
    return {"gave": gave, "filling": FILLING}


async def act_async(ctx: runs.Context, label: str, got: str | None) -> dict[str, str]:
    made = act(ctx, label, got)
    await asyncio.sleep(0.001 * len(made) * (ord(label[-1]) % 3))
    return made


def act_large(ctx: runs.Context, label: str, got: str | None) -> dict[str, str]:
    return {**act(ctx, label, got), "filling": FILLING * 100}


@runs.workflow(version="1")
async def order(ctx: runs.Context, customer: str) -> dict[str, Any]:
    """Steps one after the other and at once, a large result, an event that is waited for, and one that came before."""
    last = None
    for turn in range(TURNS):
        last = (await ctx.step("turn", act, ctx, f"turn {turn}", last))["gave"]
    found = await ctx.parallel("fetch", {page: (act_async, ctx, f"fetch {page}", last) for page in PAGES}, limit=4)
    last = found[PAGES[-1]]["gave"]
    approval = await ctx.suspend("approval", customer=customer)
    last = (await ctx.step("large", act_large, ctx, "large", last))["gave"]
    early = await ctx.suspend("early")
    for turn in range(TURNS):
        last = (await ctx.step("turn", act_async, ctx, f"turn {TURNS + turn}", last))["gave"]
    return {"approval": approval, "early": early, "last": last, "found": {page: found[page]["gave"] for page in PAGES}}


async def work(store_uri: str, run_id: str) -> str:
    """One process's part: go on with the run as far as it goes. What a dispatcher has to know."""
    try:
        async with open_store(store_uri, settings=load()) as store:
            await runs.deliver(store, run_id, "early", "bird", key="only")
            outcome = await order.start(store, "a customer", run_id=run_id)
            if outcome.event == "approval":
                outcome = await order.resume(store, run_id, "approval", APPROVAL)
    except HoldfastError as error:
        return type(error).__name__
    return outcome.status


# Processes


class Child:
    """A process that does ``work``; what it says can be read line by line."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, str]], sleeps_at: str = "", most_steps: int = -1) -> None:
        reader, writer = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                with os.fdopen(writer, "w") as out:
                    globals().update(_say=partial(print, file=out, flush=True), _sleeps_at=sleeps_at)
                    globals().update(_steps_left=most_steps)
                    _say(f"end {asyncio.run(work())}")
                status = 0
            finally:
                os._exit(status)  # it must not run on into what the parent does next
        os.close(writer)
        self._said = os.fdopen(reader)
        self.ended = ""
        """How it ended, if it said so."""

    def hear(self) -> str:
        """Its next line; empty when it has ended."""
        line = self._said.readline().strip()
        if line.startswith("end "):
            self.ended = line.removeprefix("end ")
        return line

    def do(self, steps: int) -> None:
        """Let it do so many steps, unless it ends before."""
        while steps > 0 and self.hear() and not self.ended:
            steps -= 1

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self.wait()

    def wait(self) -> None:
        while self.hear():
            pass
        self._said.close()
        os.waitpid(self.pid, 0)


def dispatch(store_uri: str, run_id: str, rng: random.Random) -> dict[str, Any]:
    """Start a process for the run and kill it, at whatever it is doing, until one says that the run has succeeded."""
    ends: Counter[str] = Counter()
    while ends["success"] == 0:
        child = Child(partial(work, store_uri, run_id), most_steps=MOST_STEPS)
        child.do(rng.randrange(6))
        time.sleep(rng.uniform(0, 0.012))
        child.kill()
        ends[child.ended or "killed"] += 1
    return dict(ends)


def relay(store_uri: str, run_id: str, rng: random.Random) -> dict[str, Any]:
    """As ``dispatch``, but the next process starts while the last one still works, and may get to know of it."""
    ends: Counter[str] = Counter()
    older = Child(partial(work, store_uri, run_id))
    while ends["success"] == 0:
        younger = Child(partial(work, store_uri, run_id))
        younger.do(rng.randrange(1, 6))
        time.sleep(rng.uniform(0, 0.012))
        older.do(rng.randrange(3))
        older.kill()
        ends[older.ended or "killed"] += 1
        older = younger
    older.kill()
    return dict(ends)


def haunt(store_uri: str, run_id: str, rng: random.Random) -> dict[str, Any]:
    """A process stops in the middle of a step, another finishes the run, and the first one wakes up."""
    zombie = Child(partial(work, store_uri, run_id), sleeps_at=f"turn {rng.randrange(4, TURNS)}")
    try:
        os.waitpid(zombie.pid, os.WUNTRACED)
        successor = Child(partial(work, store_uri, run_id))
        successor.wait()
    finally:
        os.kill(zombie.pid, signal.SIGCONT)
        zombie.wait()
    return {"zombie": zombie.ended, "successor": successor.ended}


def main() -> None:
    program, store_uri, notes, run_id, seed = sys.argv[1:]
    globals().update(_notes=Path(notes), _say=len)  # a child prints only when asked to
    json.dump(PROGRAMS[program](store_uri, run_id, random.Random(int(seed))), sys.stdout)


PROGRAMS = {"dispatch": dispatch, "relay": relay, "haunt": haunt}

if __name__ == "__main__":
    main()
