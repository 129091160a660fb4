"""Writers that race for the same keys, in this process and in others: plain functions, which a process can be given.

A racer reports what it was answered; the test adds the reports up.
"""

import asyncio
import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import ParamSpec, TypeVar

from holdfast.base.errors import Contended
from holdfast.base.ids import Ambient
from holdfast.objects.client import Client, Usage
from holdfast.objects.cloud import CloudStore
from holdfast.objects.register import Plain, Register
from holdfast.objects.retry import RetryPolicy
from holdfast.objects.store import CREATE, IfMatch, Lost, Mode, Store, Written
from holdfast.objects.uri import StoreSpec

P = ParamSpec("P")
R = TypeVar("R")

RETRY = RetryPolicy(attempts=30, base_ms=5, max_ms=200)


@dataclass
class Report:
    """What one process was answered: the keys that it won, and how often it lost or met a 409."""

    won: list[str] = field(default_factory=list)
    lost: int = 0
    contended: int = 0

    def __add__(self, other: "Report") -> "Report":
        return Report(self.won + other.won, self.lost + other.lost, self.contended + other.contended)


def in_processes(count: int, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> list[R]:
    """Run ``function`` in ``count`` fresh processes at once."""
    with ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn")) as pool:
        return [future.result() for future in [pool.submit(function, *args, **kwargs) for _ in range(count)]]


def settled(target: StoreSpec) -> Store:
    """The production stack."""
    return Client(CloudStore(target, environ={}), ambient=Ambient.system(), retry=RETRY, usage=Usage())


def race(target: StoreSpec, keys: list[str], *, tasks: int, update: bool, settle: bool, processes: int = 1) -> Report:
    """Every task writes every key once, if it is absent or, with ``update``, still what it was at the start."""

    async def run() -> Report:
        store = settled(target) if settle else CloudStore(target, environ={})
        ambient = Ambient.system()
        modes: dict[str, Mode] = {key: IfMatch((await store.head(key)).version) if update else CREATE for key in keys}
        await _meet(store, ambient.ids.unique(), processes)
        report = Report()
        for key in keys:
            bodies = [f"{key} {ambient.ids.write_id()}".encode() for _ in range(tasks)]
            for answer in await asyncio.gather(*(_write(store, key, body, modes[key]) for body in bodies)):
                report.won += [key] if isinstance(answer, Written) else []
                report.lost += isinstance(answer, Lost)
                report.contended += isinstance(answer, Contended)
        return report

    return asyncio.run(run())


def count_up(target: StoreSpec, key: str, *, tasks: int, edits: int, processes: int = 1) -> int:
    """Every task adds one to the register ``edits`` times; returns how often the answer was that it was done."""

    async def run() -> int:
        ambient = Ambient.system()
        store = settled(target)
        await _meet(store, ambient.ids.unique(), processes)

        async def one() -> int:
            register: Register[int] = Register(store, key, Plain("test.counter"), ambient)
            for _ in range(edits):
                await register.edit(ambient.ids.unique(), lambda value: (value or 0) + 1)
            return edits

        return sum(await asyncio.gather(*(one() for _ in range(tasks))))

    return asyncio.run(run())


async def counted(target: StoreSpec, key: str) -> int:
    register: Register[int] = Register(settled(target), key, Plain("test.counter"), Ambient.system())
    found = await register.read()
    return 0 if found is None else found.value


async def _write(store: Store, key: str, body: bytes, mode: Mode) -> Written | Lost | Contended:
    try:
        return await store.put(key, body, mode)
    except Contended as contended:
        return contended


async def _meet(store: Store, name: str, processes: int) -> None:
    """Wait until all processes are here, so that they really race."""
    await store.put(f"here/{name}", b"")
    while len([key async for key in store.keys("here/")]) < processes:
        await asyncio.sleep(0.005)
