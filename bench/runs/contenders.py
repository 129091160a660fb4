"""Ours and the floor as contenders, on each kind of store."""

import asyncio
import fcntl
import os
import resource
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from obstore.store import MemoryStore, S3Store

from bench.objects.clients import Client as BareClient
from bench.objects.clients import Obstore, PlainFiles, Plan, Step, expect
from bench.objects.server import BUCKET, s3_server
from bench.runs.floor import FOLDER, Floor, plans
from bench.runs.rounds import Measure, Taken
from bench.runs.work import Workload
from holdfast.base.config import Settings
from holdfast.objects import Client
from holdfast.objects import open as open_store

STORES = ("memory", "file", "s3", "far")
CONDITIONAL = "floor, conditional"
"""Where the floor itself keeps no conditions: the folder. Bare clients of the other stores do."""
FAR_MS = 10
"""How much later ``far`` answers: about what the fastest object stores take. A server on the loopback takes one."""
KEY_ID, SECRET, REGION = "bench", "benchbench", "us-east-1"


class FilesInThread(PlainFiles):
    """Plain files as a program with an event loop has to write them: each write in a thread, so that the loop lives."""

    async def run(self, plan: Plan) -> None:
        for steps in plan:
            for step in steps:
                await asyncio.to_thread(self._work, [step])


class ConditionalFiles(PlainFiles):
    """The least that a conditional write takes in a folder that processes share: in a thread, and under a lock that all
    respect it is compared with what stands there, before the same safe write. Compared are a file's number, size and
    time, which is cheaper than its bytes, and not quite safe: numbers are used again.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._seen: dict[str, tuple[int, int, int]] = {}

    async def run(self, plan: Plan) -> None:
        for steps in plan:
            for step in steps:
                await asyncio.to_thread(self._conditional, step)

    def _conditional(self, step: Step) -> None:
        if step.verb == "get":
            self._work([step])
            return
        lock = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            path = self._folder / step.key
            expect(_identity(path) == (self._seen[step.key] if step.verb == "replace" else None))
            self._work([step])
            found = _identity(path)
            expect(found is not None)
            self._seen[step.key] = found or (0, 0, 0)
        finally:
            os.close(lock)


def _identity(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


@dataclass(frozen=True)
class Sides:
    """One store as we open it, and bare clients for other places on the same medium; the first is the floor."""

    ours: Client
    bare: dict[str, BareClient]
    at_once: bool
    """Whether the bare clients read segments at the same time."""

    def run(self, floor: Floor, steps: int) -> dict[str, Measure]:
        workload = Workload()

        async def ours(number: int) -> Taken:
            return await self._measured(workload.run(self.ours, f"run-{steps}-{number}", steps))

        def bare(client: BareClient) -> Measure:
            async def measure(number: int) -> Taken:
                return await self._bare(client, floor.run, steps * 1_000 + number)

            return measure

        return {"ours": ours, **{name: bare(client) for name, client in self.bare.items()}}

    def resume(self, floor: Floor, steps: int) -> dict[str, Measure]:
        """Every round finds an unfinished run with all its steps recorded."""
        workload = Workload()

        async def ours(number: int) -> Taken:
            run_id = f"resume-{steps}-{number}"
            for step in floor.left:
                await self.ours.put(step.key.replace(FOLDER, f"runs/{run_id}/"), step.body)
            taken = await self._measured(workload.run(self.ours, run_id, steps))
            if workload.executed:
                raise RuntimeError("a recorded step ran again")
            return taken

        def bare(client: BareClient) -> Measure:
            async def measure(number: int) -> Taken:
                place = steps * 1_000_000 + number
                await self._bare(client, floor.left, place)
                return await self._bare(client, floor.resume, place)

            return measure

        return {"ours": ours, **{name: bare(client) for name, client in self.bare.items()}}

    async def _measured(self, work: Awaitable[None]) -> Taken:
        usage = self.ours.usage
        requests, uploaded = usage.requests(), _sent(self.ours)
        cpu, began = _cpu_seconds(), time.perf_counter()
        await work
        seconds = time.perf_counter() - began
        return Taken(seconds, _cpu_seconds() - cpu, usage.requests() - requests, _sent(self.ours) - uploaded)

    async def _bare(self, client: BareClient, part: Sequence[Step], number: int) -> Taken:
        work = plans(part, number, at_once=self.at_once)
        cpu, began = _cpu_seconds(), time.perf_counter()
        for plan in work:
            await client.run(plan)
        seconds = time.perf_counter() - began
        return Taken(seconds, _cpu_seconds() - cpu, len(part), sum(len(step.body) for step in part))


@asynccontextmanager
async def sides(store: str, folder: Path) -> AsyncIterator[Sides]:
    if store == "memory":
        async with open_store("memory:") as ours:
            yield Sides(ours, {"floor": Obstore(MemoryStore())}, at_once=True)
    elif store == "file":
        (folder / "bare-conditional").mkdir()
        bare = {
            "floor": PlainFiles(folder / "bare"),
            "floor, in a thread": FilesInThread(folder / "bare-thread"),
            CONDITIONAL: ConditionalFiles(folder / "bare-conditional"),
        }
        async with open_store(f"file:{folder / 'ours'}") as ours:
            yield Sides(ours, {**bare}, at_once=False)
    else:
        with s3_server(folder) as near, _door(near, FAR_MS if store == "far" else 0) as address:
            keys = {"access_key_id": KEY_ID, "secret_access_key": SECRET, "region": REGION, "endpoint": address}
            client = S3Store(
                BUCKET,
                prefix="bare",
                access_key_id=KEY_ID,
                secret_access_key=SECRET,
                region=REGION,
                endpoint=address,
                client_options={"allow_http": True},
                retry_config={"max_retries": 0},
            )
            settings = Settings.model_validate({"s3": keys})
            async with open_store(f"s3://{BUCKET}/ours", settings=settings) as ours:
                yield Sides(ours, {"floor": Obstore(client)}, at_once=True)


@contextmanager
def _door(address: str, delay_ms: int) -> Iterator[str]:
    """Where to reach the server: itself, or a proxy that passes every answer on so much later."""
    if not delay_ms:
        yield address
        return
    command = [sys.executable, "-m", "tests.fakes.fault_proxy", address, str(delay_ms)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as proxy:
        try:
            yield (proxy.stdout.readline() if proxy.stdout is not None else "").strip()
        finally:
            proxy.terminate()
            proxy.communicate()


def _sent(store: Client) -> int:
    return sum(tally.sent_bytes for tally in store.usage.tallies.values())


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
