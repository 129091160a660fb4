"""Programs for ``test_local_kill``: processes that write to one local store, race, and die. Each prints JSON.

    python -m tests.integration.local_writers race|crashes FOLDER

Children are forked from a process without threads: blocking calls are made in place, as under the simulator.
"""

import asyncio
import itertools
import json
import os
import random
import signal
import sys
import traceback
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from holdfast.base.clock import SystemClock
from holdfast.base.ids import Ambient
from holdfast.objects.client import Client, Usage
from holdfast.objects.local import LocalStore
from holdfast.objects.register import Plain, Register
from holdfast.objects.retry import RetryPolicy
from holdfast.objects.store import CREATE, OVERWRITE, IfMatch, Mode, Written, content_version
from tests.unit.objects.local.local_kit import contents, files, staged

T = TypeVar("T")
Say = Callable[[str], None]

RACERS, NAMES, EDITS = 4, 40, 25


def run(work: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner() as runner:
        runner.get_loop().runs_blocking_inline = True  # type: ignore[attr-defined]  # holdfast.base.aio looks for it
        return runner.run(work)


class Child:
    """A process that does ``work``. What it says can be read from ``said``, line by line."""

    def __init__(self, work: Callable[[Say], Coroutine[Any, Any, None]]) -> None:
        reader, writer = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                with os.fdopen(writer, "w") as out:
                    run(work(lambda line: print(line, file=out, flush=True)))
                status = 0
            except BaseException:
                traceback.print_exc()
                raise
            finally:
                os._exit(status)  # it must not run on into what the parent does next
        os.close(writer)
        self.said = os.fdopen(reader)

    def end(self) -> list[str]:
        """What it has still said before its end."""
        with self.said:
            rest = self.said.read().splitlines()
        assert self.wait() == 0
        return rest

    def wait(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


# Processes that want the same


def race(folder: Path) -> dict[str, int]:
    """How often a create was won, and where a counter stands that all of them have counted up."""
    ready, start = os.pipe()

    async def work(say: Say) -> None:
        ambient = Ambient(SystemClock(), random.Random(os.getpid()))
        store = Client(LocalStore(folder), ambient=ambient, retry=RetryPolicy(), usage=Usage())
        os.close(start)
        os.read(ready, 1)
        for number in range(NAMES):
            mine = ambient.ids.write_id().encode()
            if isinstance(await store.put(f"names/{number}", mine, CREATE), Written):
                say("won")
        counter: Register[int] = Register(store, "counter", Plain("test.counter"), ambient)
        for _ in range(EDITS):
            await counter.edit(ambient.ids.unique(), lambda count: (count or 0) + 1)

    children = [Child(work) for _ in range(RACERS)]
    os.close(start)  # everybody's end of the pipe is closed now, and all begin
    won = sum(len(child.end()) for child in children)
    counter = json.loads((folder / "counter").read_bytes())
    return {"won": won, "count": counter["value"]}


# Processes that are killed before each of their file operations

FILE_OPERATIONS = {"fcntl.flock", "open", "os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.scandir"}
OLD, NEW = b"old", b"new"

Contents = dict[str, bytes]
SCENARIOS: dict[str, tuple[Contents, Contents]] = {
    "first object": ({}, {"a": NEW}),
    "create": ({"x/a": OLD}, {"x/a": OLD, "x/b": NEW}),
    "create in new folders": ({"x/a": OLD}, {"x/a": OLD, "x/y/z/b": NEW}),
    "create in a folder of its name": ({"a/b": OLD}, {"a": NEW, "a/b": OLD}),
    "replaced object": ({"a": OLD}, {"a": NEW}),
    "object that makes room": ({"x/a": OLD}, {"x/a": OLD, "x/a/b": NEW}),
    "object that makes room, with a long name": ({"x" * 300: OLD}, {"x" * 300: OLD, "x" * 300 + "/b": NEW}),
    "replaced object in a folder of its name": ({"a": OLD, "a/b": OLD}, {"a": NEW, "a/b": OLD}),
    "last object of its folders": ({"x/y/z": OLD}, {}),
    "deleted object in a folder of its name": ({"a": OLD, "a/b": OLD}, {"a/b": OLD}),
}
"""What is there before and after the one call of a scenario; at no time anything else. Its name says if it creates."""


def crashes(folder: Path) -> dict[str, int]:
    """At how many points the call of each scenario was cut short."""
    os.fsync = lambda fd: None  # a killed process loses nothing that it has written: only power cuts do
    return {name: crash_everywhere(folder / str(number), name) for number, name in enumerate(SCENARIOS)}


def crash_everywhere(folder: Path, name: str) -> int:
    before, after = SCENARIOS[name]
    mode = CREATE if name.startswith("create") else OVERWRITE
    for point in itertools.count(1):
        root = folder / str(point)
        run(fill(root, before))
        child = Child(partial(change, root, before, after, point, mode))
        child.said.close()
        status = child.wait()
        if status == 0:
            return point - 1
        assert status == -signal.SIGKILL
        run(survive(root, before, after))
    raise AssertionError


async def fill(root: Path, wanted: Contents) -> None:
    store = LocalStore(root)
    for key, body in wanted.items():
        await store.put(key, body)


async def change(root: Path, before: Contents, after: Contents, point: int, mode: Mode, _: Say) -> None:
    """The one call that leads from ``before`` to ``after``, killed just before its file operation ``point``."""
    operations = itertools.count(1)

    def count(event: str, _: object) -> None:
        if event in FILE_OPERATIONS and next(operations) == point:
            os.kill(os.getpid(), signal.SIGKILL)

    store = LocalStore(root)
    if before:
        await store.delete("nothing")  # the store is opened before the count begins; a first object opens it itself
    sys.addaudithook(count)
    for key in before.keys() - after.keys():
        await store.delete(key)
    for key, body in after.items() - before.items():
        await store.put(key, body, mode)


async def survive(root: Path, before: Contents, after: Contents) -> None:
    """All or nothing has happened; others can work on, and tidy up."""
    found = await contents(LocalStore(root))
    assert found in (before, after), found
    store = LocalStore(root)
    for key, body in found.items():
        assert isinstance(await store.put(key, b"next", IfMatch(content_version(body))), Written)
    assert await contents(store) == dict.fromkeys(found, b"next")
    await store.delete_many([*before, *after])
    assert files(root) == []
    assert staged(root) == []


if __name__ == "__main__":
    program = {"race": race, "crashes": crashes}[sys.argv[1]]
    json.dump(program(Path(sys.argv[2])), sys.stdout)
