"""A driver that dies at any request, or whose answers are lost: the next one makes the batch one commit."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

import pytest

from holdfast.objects.layer import Layer
from holdfast.objects.memory import MemoryStore
from holdfast.objects.store import OVERWRITE, Lost, Mode, Object, Page, Part, Store, Written
from holdfast.ontology.bulk.decide import Policy, Rules
from holdfast.ontology.chain.chain import Chain
from holdfast.ontology.format import layout
from holdfast.ontology.format.head import read_head
from holdfast.ontology.maintain import leftovers
from holdfast.ontology.maintain.verify.verify import verify
from tests.unit.ontology.bulk_kit import SPREAD, Yard, customers, table

T = TypeVar("T")
REPLACE = Rules(Policy.REPLACE)
MOST = 400


class Died(BaseException):
    """The process is gone: nothing tidies up."""


class Mortal(Layer):
    """Dies at a request: before it, or when it has landed."""

    def __init__(self, inner: Store, at: int, *, landed: bool) -> None:
        super().__init__(inner)
        self.requests = 0
        self._at, self._landed = at, landed

    async def _ask(self, call: Callable[[], Awaitable[T]]) -> T:
        self.requests += 1
        if self.requests > self._at or (self.requests == self._at and not self._landed):
            raise Died
        answer = await call()
        if self.requests == self._at:
            raise Died
        return answer

    async def get(self, key: str) -> Object:
        return await self._ask(lambda: self.inner.get(key))

    async def range(self, key: str, start: int, end: int) -> Part:
        return await self._ask(lambda: self.inner.range(key, start, end))

    async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
        return await self._ask(lambda: self.inner.put(key, body, mode))

    async def put_stream(self, key: str, pieces: object) -> Written:
        return await self._ask(lambda: self.inner.put_stream(key, pieces))  # type: ignore[arg-type]

    async def list(self, prefix: str = "", *, after: str | None = None, delimiter: bool = False) -> AsyncIterator[Page]:
        async for page in self.inner.list(prefix, after=after, delimiter=delimiter):
            yield page


async def commits_of(store: Store) -> list[tuple[str, int]]:
    """The batches on the chain, commit by commit."""
    chain, place = Chain(store), (await read_head(store)).place
    found: list[tuple[str, int]] = []
    while place is not None:
        manifest = await chain.manifest(place)
        sink = manifest.metadata.get("sink")
        if sink is not None:
            found.append((sink["query"], sink["batch"]))
        place = manifest.parent
    return found


async def driven(store: Store, rows: int = 40) -> None:
    yard = Yard(store, sizes=SPREAD)
    metadata = {"sink": {"query": "q", "batch": 0}}
    await yard.load(table(customers(0, rows)), rules=REPLACE, source="q", batch=0, metadata=metadata)


@pytest.mark.parametrize("landed", [False, True], ids=["before it lands", "when it has landed"])
async def test_a_driver_that_dies_anywhere_leaves_one_commit_to_the_next(landed: bool) -> None:
    for at in range(1, MOST):
        store = MemoryStore()
        await Yard(store).load(table(customers(0, 5, "before")))
        mortal = Mortal(store, at, landed=landed)
        try:
            await driven(mortal)
        except Died:
            await store.delete(layout.LOCK)  # its lease would run out in its time
        done = mortal.requests < at
        await driven(store)
        assert await commits_of(store) == [("q", 0)]
        assert len(await Yard(store).names()) == 40
        report = await verify(store, deep=True)
        assert report.good
        left = {layout.load_of_key(key) async for key in store.keys(layout.LOADS)}
        reported = {each.key for each in report.findings if each.kind == "staged_load"}
        assert reported == {layout.load_prefix(each or "") for each in left}
        assert {each.load for each in await leftovers.dead_loads(store, age_ns=-(10**12))} == left
        if done:
            return
    raise AssertionError("a load has more requests than were tried")
