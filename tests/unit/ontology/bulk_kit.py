"""Bulk loads without Spark: rows dealt out to tasks, decided in this process, committed by a real session."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from holdfast.base.codec import Document
from holdfast.base.ids import Ambient
from holdfast.objects.store import Store
from holdfast.ontology import Entity, Field
from holdfast.ontology.bulk.decide import Rules
from holdfast.ontology.bulk.load import Landed, Loader, Request, Task
from holdfast.ontology.bulk.stage import SIZES, Sizes, StagedFile, Stager
from holdfast.ontology.chain.chain import Chain
from holdfast.ontology.format.chainstate import Ledger
from holdfast.ontology.format.head import read_head
from holdfast.ontology.session import Ontology, Options
from holdfast.ontology.types.model import Mixin
from holdfast.ontology.types.typeinfo import type_info

SPREAD = Sizes(file_rows=60, group_rows=8, range_rows=25, small_rows=0, files_bytes=1)
"""So small that everything is staged, decided range by range, and put together from many parts."""


class Customer(Entity):
    id: Field[str] = Field(primary_key=True)
    name: Field[str]
    age: Field[int | None] = Field(default=None)


CUSTOMER_ID = type_info(Customer).type_id


class Product(Entity):
    sku: Field[str] = Field(primary_key=True)


COLUMNS = pa.schema([("id", pa.string()), ("name", pa.string()), ("age", pa.int64())])


def table(rows: Iterable[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=COLUMNS)


def customers(first: int, count: int, name: str = "n") -> list[dict[str, Any]]:
    numbers = range(first, first + count)
    return [{"id": f"c{each:05}", "name": f"{name}{each}", "age": each if each % 3 else None} for each in numbers]


@dataclass
class Yard:
    """Where loads are made: a store, and what its tasks were asked for."""

    store: Store
    ambient: Ambient = field(default_factory=Ambient.system)
    sizes: Sizes = SIZES
    tasks: int = 3
    asked: list[str] = field(default_factory=list)

    async def run(self, name: str, task: Task, payloads: Sequence[Document]) -> list[Document]:
        self.asked.append(name)
        found = [await task(self.store, self.ambient, json.loads(json.dumps(each))) for each in payloads]
        return [row for rows in found for row in rows]

    async def staged(
        self, load: str, rows: pa.Table, of: type[Mixin] = Customer, latest_by: str | None = None
    ) -> list[StagedFile]:
        """Dealt out in turn, so that the keys of every task reach over all of them."""
        staged_files: list[StagedFile] = []
        for task in range(self.tasks):
            stager = Stager(self.store, self.ambient, load, type_info(of), self.sizes, latest_by)
            await stager.add(rows.take(pa.array(range(task, rows.num_rows, self.tasks), pa.int64())))
            staged_files += await stager.finish()
        return staged_files

    def session(self, of: type[Mixin] = Customer) -> Ontology:
        return Ontology(self.store, self.ambient, [of], Options(compaction=False))

    async def land(
        self, staged_files: Sequence[StagedFile], of: type[Mixin] = Customer, load: str = "load", **wanted: Any
    ) -> Landed:
        async with self.session(of) as onto:
            loader = Loader(onto, self.ambient, type_info(of), self.run, self.sizes)
            landed = await loader.land(Request(load, **wanted), staged_files)
            if landed.replayed:
                await onto.flush()
            return landed

    async def load(
        self, rows: pa.Table, of: type[Mixin] = Customer, rules: Rules | None = None, **wanted: Any
    ) -> Landed:
        load = self.ambient.ids.unique()
        staged_files = await self.staged(load, rows, of, None if rules is None else rules.latest_by)
        return await self.land(staged_files, of, load, rules=rules or Rules(), **wanted)

    async def ledger(self) -> Ledger:
        return await Chain(self.store).ledger((await read_head(self.store)).place)

    async def names(self) -> dict[str, str]:
        async with self.session() as onto:
            return {each.id: each.name for each in await onto.all(Customer)}
