"""Who is compared: ours, delta-rs and pyiceberg, each with one table and one writer that stays open. Each creates its
table before anything is measured.

* **ours**: a session; one-row commits in bursts, with everything that follows a burst off the path.
* **delta merge**: an upsert as delta-rs offers it. **delta append** only adds rows, and so looks at nothing: it is not
  an upsert, but the least that a commit of delta-rs can cost.
* **pyiceberg**: its upsert, with the SQL catalog on a SQLite file, whose work is not counted as requests.

In a folder the others leave their files unsynced; they are synced as part of the commit, to stand where ours stands.
A missing one is left out: the ``bench`` extra installs them.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from importlib import import_module
from importlib.util import find_spec
from tempfile import mkdtemp
from typing import Any

import pyarrow as pa

import holdfast
from bench.ontology_write.places import Place, sync
from holdfast.ontology import Entity, Field

INSTALLED = all(find_spec(name) is not None for name in ("deltalake", "pyiceberg"))
MISSING = "delta-rs and pyiceberg are not both installed, so they are left out; the extra `bench` adds them"
QUIET_S = 0.6
"""After so long without a commit a session of ours has written all that was due, and given back the lock."""

SCHEMA = pa.schema(
    [pa.field("id", pa.string(), nullable=False), ("name", pa.string()), ("tier", pa.string()), ("seats", pa.int64())]
)


class Customer(Entity):
    id: Field[str] = Field(primary_key=True)
    name: Field[str]
    tier: Field[str]
    seats: Field[int]


def key_of(number: int) -> str:
    """Every other commit changes a row that is there, the others add one."""
    return f"c{number if number % 2 == 0 else number // 4 * 2:07d}"


def table_of(keys: Sequence[str], value: int) -> pa.Table:
    count = len(keys)
    return pa.table([keys, [f"name of {key}" for key in keys], ["gold"] * count, [value] * count], schema=SCHEMA)


class Writer(ABC):
    """``upsert`` and ``bulk`` say how long they took."""

    def __init__(self, place: Place) -> None:
        self.place = place

    @abstractmethod
    async def open(self) -> None: ...

    @abstractmethod
    async def upsert(self, number: int) -> float: ...

    async def grow(self, first: int, last: int) -> None:
        """Commits of new rows, in the quickest way there is."""
        for number in range(first, last):
            await self.upsert(number)

    @abstractmethod
    async def bulk(self, rows: pa.Table) -> float: ...

    async def settle(self) -> None:
        """Wait for what is done after the answer."""
        return

    async def close(self) -> None:
        """Let go of the table."""
        return


class Ours(Writer):
    _onto: Any
    _open: AsyncExitStack

    async def open(self) -> None:
        self._open = AsyncExitStack()
        hf = await self._open.enter_async_context(holdfast.open(self.place.uri, settings=self.place.settings))
        self._onto = await self._open.enter_async_context(hf.ontology(Customer))
        await self._onto.register()

    async def upsert(self, number: int) -> float:
        key = key_of(number)
        began = time.perf_counter()
        self._onto.ensure(Customer(id=key, name=f"name of {key}", tier="gold", seats=number))
        await self._onto.commit()
        return time.perf_counter() - began

    async def bulk(self, rows: pa.Table) -> float:
        began = time.perf_counter()
        self._onto.ensure(rows, Customer)
        await self._onto.commit()
        return time.perf_counter() - began

    async def settle(self) -> None:
        await asyncio.sleep(QUIET_S)

    async def close(self) -> None:
        await self._open.aclose()


class OursByObject(Ours):
    """The same in bulk, from one object per row."""

    async def bulk(self, rows: pa.Table) -> float:
        given = rows.to_pylist()
        began = time.perf_counter()
        self._onto.ensure([Customer(**each) for each in given])
        await self._onto.commit()
        return time.perf_counter() - began


class Peer(Writer):
    """A library that blocks: in a thread, so that background work of others goes on."""

    async def upsert(self, number: int) -> float:
        return await self._timed(self._upsert, table_of([key_of(number)], number))

    async def grow(self, first: int, last: int) -> None:
        for number in range(first, last):
            await asyncio.to_thread(self._append, table_of([f"c{number:07d}"], number))

    async def bulk(self, rows: pa.Table) -> float:
        return await self._timed(self._upsert, rows)

    async def _timed(self, work: Callable[[pa.Table], None], rows: pa.Table) -> float:
        self.place.unsynced()
        began = time.perf_counter()
        await asyncio.to_thread(work, rows)
        seconds = time.perf_counter() - began
        new = self.place.unsynced()
        began = time.perf_counter()
        if new:
            await asyncio.to_thread(sync, new)
        return seconds + time.perf_counter() - began

    @abstractmethod
    def _upsert(self, rows: pa.Table) -> None: ...

    @abstractmethod
    def _append(self, rows: pa.Table) -> None: ...


class DeltaMerge(Peer):
    _delta: Any
    _table: Any

    async def open(self) -> None:
        self._delta = import_module("deltalake")
        options = self.place.delta_options
        self._delta.write_deltalake(self.place.uri, table_of([], 0), storage_options=options)
        self._table = self._delta.DeltaTable(self.place.uri, storage_options=options)

    def _upsert(self, rows: pa.Table) -> None:
        merge = self._table.merge(rows, "t.id = s.id", source_alias="s", target_alias="t")
        merge.when_matched_update_all().when_not_matched_insert_all().execute()

    def _append(self, rows: pa.Table) -> None:
        self._delta.write_deltalake(self._table, rows, mode="append")


class DeltaAppend(DeltaMerge):
    def _upsert(self, rows: pa.Table) -> None:
        self._append(rows)


class Iceberg(Peer):
    _table: Any

    async def open(self) -> None:
        types, schema = import_module("pyiceberg.types"), import_module("pyiceberg.schema")
        kinds = {"id": types.StringType, "name": types.StringType, "tier": types.StringType, "seats": types.LongType}
        fields = [
            types.NestedField(number, name, kind(), required=name == "id")
            for number, (name, kind) in enumerate(kinds.items(), 1)
        ]
        catalog = import_module("pyiceberg.catalog.sql").SqlCatalog(
            "bench",
            uri=f"sqlite:///{mkdtemp(dir=self.place.scratch)}/catalog.db",
            warehouse=self.place.uri,
            **self.place.iceberg_options,
        )
        catalog.create_namespace("bench")
        self._table = catalog.create_table("bench.customer", schema.Schema(*fields, identifier_field_ids=[1]))

    def _upsert(self, rows: pa.Table) -> None:
        self._table.upsert(rows)

    def _append(self, rows: pa.Table) -> None:
        self._table.append(rows)


class IcebergAppend(Iceberg):
    def _upsert(self, rows: pa.Table) -> None:
        self._append(rows)


WRITERS: dict[str, type[Writer]] = {
    "ours": Ours,
    "delta merge": DeltaMerge,
    "delta append": DeltaAppend,
    "pyiceberg": Iceberg,
}
LIMITS = {"ours": 10_000, "delta merge": 1_000, "delta append": 1_000, "pyiceberg": 100}
"""Where each is stopped. A merge takes seconds at 1,000 commits; growing a table to 10,000 by appends would take
delta-rs an hour, and pyiceberg, whose every commit writes all snapshots again, ten minutes for 1,000."""
BULK: dict[str, tuple[type[Writer], int]] = {
    "ours": (Ours, 100_000),
    "ours, by object": (OursByObject, 100_000),
    "delta merge": (DeltaMerge, 100_000),
    "delta append": (DeltaAppend, 100_000),
    "pyiceberg": (Iceberg, 10_000),
    "pyiceberg append": (IcebergAppend, 100_000),
}
"""With the rows of one commit. An upsert of pyiceberg compares row by row: 100,000 would take it minutes."""


def present(names: Sequence[str]) -> list[str]:
    return [name for name in names if name.startswith("ours") or INSTALLED]
