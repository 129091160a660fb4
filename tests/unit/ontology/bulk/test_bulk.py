"""Bulk loads: one commit however many tasks, the same rows as a session's, once however often."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.base.codec import Document
from holdfast.base.errors import Conflict, Invalid
from holdfast.objects.layer import Layer
from holdfast.objects.memory import MemoryStore
from holdfast.objects.store import OVERWRITE, Lost, Mode, Object, Page, Part, Pieces, Store, Written
from holdfast.ontology import Entity, Field
from holdfast.ontology.bulk.decide import ORDER, RETRACTS, Policy, Rules
from holdfast.ontology.bulk.load import Loader, Prepared, Request, Run, Task
from holdfast.ontology.bulk.stage import SIZES, Sizes
from holdfast.ontology.chain.chain import Chain
from holdfast.ontology.format import layout
from holdfast.ontology.format.head import read_head
from holdfast.ontology.maintain import leftovers
from holdfast.ontology.maintain.verify.verify import verify
from holdfast.ontology.session import Ontology
from holdfast.ontology.types.refs import Position
from holdfast.ontology.types.typeinfo import type_info
from tests.unit.ontology.bulk_kit import SPREAD, Customer, Product, Yard, customers, table
from tests.unit.ontology.plain import PlainWriter

CUSTOMER = type_info(Customer).type_id
REPLACE = Rules(Policy.REPLACE)
BOTH = pytest.mark.parametrize("sizes", [SIZES, SPREAD], ids=["small", "spread"])


async def file_of(yard: Yard, commit_id: int) -> pa.Table:
    chain = Chain(yard.store)
    place = await chain.at((await yard.ledger()).place, commit_id)
    assert place is not None
    (entry,) = (await chain.manifest(place)).files
    return pq.read_table(pa.BufferReader((await yard.store.get(entry.path)).body))


@BOTH
async def test_a_load_is_one_commit_with_the_very_rows_of_a_session(sizes: Sizes) -> None:
    yard, other = Yard(MemoryStore(), sizes=sizes), Yard(MemoryStore())
    rows = customers(0, 200)
    landed = await yard.load(table(reversed(rows)))
    async with other.session() as onto:
        onto.ensure(table(rows), Customer)
        await onto.commit()
    assert landed.commit is not None
    assert (landed.commit.commit_id, landed.commit.rows) == (1, 200)
    ours, theirs = await file_of(yard, 1), await file_of(other, 1)
    assert ours.drop_columns(["commit_id"]).equals(theirs.drop_columns(["commit_id"]))
    assert ours.column("commit_id").to_pylist() == [1] * 200
    assert ours.schema.metadata == theirs.schema.metadata
    assert {each.rule.name for each in (await verify(yard.store, deep=True)).findings} == {"staged_load"}


async def test_a_few_rows_are_decided_here_however_many_the_type_has() -> None:
    yard = Yard(MemoryStore(), sizes=replace(SPREAD, small_rows=10))
    await yard.load(table(customers(0, 200)))
    yard.asked.clear()
    changed = table([*customers(3, 4, "other"), *customers(50, 4), *customers(200, 2)])
    tally = (await yard.load(changed, rules=REPLACE)).tally
    assert (tally.replaced, tally.same, tally.added, yard.asked) == (4, 4, 2, [])
    await yard.load(changed, rules=Rules(Policy.REPLACE, instead=True))  # is about all rows of the type
    assert yard.asked == ["state", "decide"]
    assert len(await yard.names()) == 10


class Reading(Entity):
    id: Field[str] = Field(primary_key=True)
    value: Field[float | None] = Field(default=None)
    place: Field[str]


@BOTH
async def test_latest_by_takes_nan_for_the_greatest_number(sizes: Sizes) -> None:
    yard = Yard(MemoryStore(), sizes=sizes)
    nan, rules = float("nan"), Rules(Policy.REPLACE, latest_by="value")

    async def load(*rows: tuple[float | None, str]) -> tuple[int, int]:
        columns = {"id": ["a"] * len(rows), "value": [each for each, _ in rows], "place": [each for _, each in rows]}
        tally = (await yard.load(pa.table(columns), Reading, rules)).tally
        return tally.replaced, tally.older

    await load((6.0, "first"), (nan, "second"), (7.0, "third"))
    assert await load((8.0, "x")) == (0, 1)
    assert await load((None, "x")) == (0, 1)
    assert await load((nan, "fourth"), (nan, "fourth")) == (1, 0)
    with pytest.raises(Conflict, match="1 identities are in the load more than once: 'a'"):
        await load((nan, "x"), (nan, "y"))
    with pytest.raises(Invalid, match="latest_by is 'valeu', which is not a field of this type"):
        await yard.load(pa.table({"id": ["a"], "place": ["x"]}), Reading, Rules(latest_by="valeu"))
    async with yard.session(Reading) as onto:
        assert [each.place for each in await onto.all(Reading)] == ["fourth"]


@BOTH
async def test_rows_retract_their_identity_and_the_newest_change_counts(sizes: Sizes) -> None:
    yard = Yard(MemoryStore(), sizes=sizes)
    await yard.load(table(customers(0, 60)))
    rows = pa.table(
        {
            "id": ["c00001", "c00002", "c00002", "c00003", "c00003", "c90000"],
            "name": [None, "back", None, None, "again", None],
            RETRACTS: [True, False, True, True, False, True],
            ORDER: [7, 9, 8, 8, 9, 7],
        }
    )
    landed = await yard.load(rows, rules=Rules(Policy.REPLACE, retracts=True))
    assert (landed.tally.retracted, landed.tally.replaced, landed.tally.same) == (1, 2, 1)
    found = await yard.names()
    assert "c00001" not in found
    assert (len(found), found["c00002"], found["c00003"]) == (59, "back", "again")
    assert (await verify(yard.store, deep=True)).good


# --- once ---


async def test_a_batch_that_comes_again_is_known_whatever_came_since() -> None:
    yard = Yard(MemoryStore())
    first = await yard.load(table(customers(0, 3)), source="q", batch=4, metadata={"n": 1})
    await yard.load(table(customers(0, 3, "later")), rules=REPLACE)
    async with yard.session(Product) as onto:
        for number in range(70):  # over a full manifest
            onto.ensure(Product(sku=f"p{number}"))
            await onto.commit()
    await PlainWriter(yard.store).commit({("entity", "Product"): [("plain", {"sku": "plain"})]})
    async with yard.session(Product) as onto:
        onto.ensure(Product(sku="last"))
        await onto.commit()
    for batch in (4, 3, 0):
        again = await yard.load(table(customers(0, 3)), rules=REPLACE, source="q", batch=batch)
        assert again.replayed
        assert again.commit == first.commit
    assert (await yard.names())["c00000"] == "later0"
    assert (await yard.ledger()).sinks == {"q": Position(4, 1)}
    following = await yard.load(table(customers(0, 3)), rules=REPLACE, source="q", batch=5)
    assert not following.replayed
    assert following.commit is not None
    assert (await yard.ledger()).sinks["q"] == Position(5, following.commit.commit_id)


# --- beside others ---


class Interrupted(Loader):
    """Another session commits while it is deciding."""

    async def _land(self, request: Request, prepared: Prepared, tally: object) -> object:  # type: ignore[override]
        if self.meanwhile:
            of, rows = self.meanwhile.pop()
            async with Ontology(self._store, self._ambient, [of]) as onto:
                onto.ensure(rows)
                await onto.commit()
        return await super()._land(request, prepared, tally)  # type: ignore[arg-type]

    meanwhile: list[tuple[type, list[object]]]


@pytest.mark.parametrize("other", [False, True])
async def test_only_a_commit_to_the_same_type_is_decided_about_again(other: bool) -> None:
    yard = Yard(MemoryStore(), sizes=SPREAD)
    staged_files = await yard.staged("load", table(customers(0, 50)))
    async with yard.session() as onto:
        loader = Interrupted(onto, yard.ambient, type_info(Customer), yard.run, yard.sizes)
        await onto.agreed(Customer)
        loader.meanwhile = [
            (Product, [Product(sku="p")]) if other else (Customer, [Customer(id="c00007", name="theirs", age=7)])
        ]
        landed = await loader.land(Request("load", REPLACE), staged_files)
    assert yard.asked.count("decide") == (1 if other else 2)
    assert landed.commit is not None
    assert landed.commit.commit_id == 2
    assert (await yard.names())["c00007"] == "n7"
    assert (landed.tally.replaced, landed.tally.added) == ((0, 50) if other else (1, 49))
    assert (await verify(yard.store, deep=True)).good


class Metered(MemoryStore):
    """Knows the largest piece of a streamed body, and the largest range that was read."""

    largest = 0
    streamed = 0

    async def range(self, key: str, start: int, end: int) -> Part:
        found = await super().range(key, start, end)
        self.largest = max(self.largest, len(found.body))
        return found

    async def put_stream(self, key: str, pieces: Pieces) -> Written:
        async def counted() -> AsyncIterator[bytes]:
            async for piece in pieces():
                self.largest = max(self.largest, len(piece))
                self.streamed += len(piece)
                yield piece

        return await super().put_stream(key, counted)


class Frugal(Loader):
    async def _prepared(self, *args: object) -> object:  # type: ignore[override]
        made, tally = await super()._prepared(*args)  # type: ignore[arg-type]
        return (None if made is None else replace(made, group_rows=2_000)), tally


async def test_a_driver_holds_pieces_of_the_file_and_never_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.ontology.bulk.load.PIECE_BYTES", 10_000)
    store = Metered()
    yard = Yard(store, sizes=replace(SPREAD, file_rows=5_000, range_rows=2_000, group_rows=500))
    staged_files = await yard.staged("load", table(customers(0, 20_000, "name ")))
    async with yard.session() as onto:
        store.largest = 0
        loader = Frugal(onto, yard.ambient, type_info(Customer), _elsewhere(yard, store), yard.sizes)
        landed = await loader.land(Request("load"), staged_files)
    assert landed.commit is not None
    assert landed.commit.rows == 20_000
    assert store.streamed > 100_000
    assert store.largest < store.streamed / 4  # a footer of a part, at the most
    assert (await verify(store, deep=True)).good


def _elsewhere(yard: Yard, store: Metered) -> Run:
    """What tasks read is not the driver's."""

    async def run(name: str, task: Task, payloads: Sequence[Document]) -> list[Document]:
        found = await yard.run(name, task, payloads)
        store.largest = 0
        return found

    return run


# --- what is left ---


async def test_what_a_dead_load_has_staged_is_reported_and_swept_later() -> None:
    yard = Yard(MemoryStore())
    await yard.load(table(customers(0, 3)))
    await yard.staged("dead", table(customers(3, 30)))
    report = await verify(yard.store)
    assert [each.key for each in report.findings if each.rule.name == "staged_load" and "dead" in each.key] == [
        layout.load_prefix("dead")
    ]
    assert report.good
    assert await leftovers.sweep(yard.store) == []
    await yard.load(table(customers(50, 3)))  # moves the head, whose time is the time of now
    assert len(await leftovers.sweep(yard.store, age_ns=0)) >= 1
    assert [key async for key in yard.store.keys(layout.LOADS)] == []


async def test_a_load_whose_parts_were_taken_away_fails_and_leaves_nothing_visible() -> None:
    yard = Yard(MemoryStore(), sizes=SPREAD)
    staged_files = await yard.staged("load", table(customers(0, 50)))
    await leftovers.forget(yard.store, "load")
    with pytest.raises(Conflict, match="a staged file of the load was removed"):
        await yard.land(staged_files)
    assert (await yard.ledger()).commit_id == 0


T = TypeVar("T")
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
        reported = {each.key for each in report.findings if each.rule.name == "staged_load"}
        assert reported == {layout.load_prefix(each or "") for each in left}
        assert {each.load for each in await leftovers.dead_loads(store, age_ns=-(10**12))} == left
        if done:
            return
    raise AssertionError("a load has more requests than were tried")
