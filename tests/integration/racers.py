"""Writers that race for the same keys. A racer reports its outcomes; the test adds the reports up."""

import asyncio
from dataclasses import dataclass, field

from holdfast.base.errors import Contended
from holdfast.base.ids import Ambient
from holdfast.objects.client import Client
from holdfast.objects.cloud import CloudStore
from holdfast.objects.register import Plain, Register
from holdfast.objects.retry import RetryPolicy
from holdfast.objects.store import CREATE, IfMatch, Lost, Mode, Store, Written
from holdfast.objects.uri import StoreSpec

RETRY = RetryPolicy(attempts=30, base_ms=5, max_ms=200)


@dataclass
class Report:
    """The keys that were won, and how often a write lost or got a 409."""

    won: list[str] = field(default_factory=list)
    lost: int = 0
    contended: int = 0

    def __add__(self, other: "Report") -> "Report":
        return Report(self.won + other.won, self.lost + other.lost, self.contended + other.contended)


def settled(target: StoreSpec) -> Store:
    """The production stack."""
    return Client(CloudStore(target, environ={}), ambient=Ambient.system(), retry=RETRY)


def race(target: StoreSpec, keys: list[str], *, tasks: int, update: bool, settle: bool) -> Report:
    """Every task writes every key once, if it is absent or, with ``update``, has the version of the beginning."""

    async def run() -> Report:
        store = settled(target) if settle else CloudStore(target, environ={})
        ambient = Ambient.system()
        modes: dict[str, Mode] = {key: IfMatch((await store.head(key)).version) if update else CREATE for key in keys}
        report = Report()
        for key in keys:
            bodies = [f"{key} {ambient.ids.write_id()}".encode() for _ in range(tasks)]
            for answer in await asyncio.gather(*(_write(store, key, body, modes[key]) for body in bodies)):
                report.won += [key] if isinstance(answer, Written) else []
                report.lost += isinstance(answer, Lost)
                report.contended += isinstance(answer, Contended)
        return report

    return asyncio.run(run())


def count_up(target: StoreSpec, key: str, *, tasks: int, edits: int) -> int:
    """Every task adds one to the register ``edits`` times. Returns how many edits were acknowledged."""

    async def run() -> int:
        ambient = Ambient.system()
        store = settled(target)

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
