"""pyiceberg: an upsert per commit; scans with pruning into Arrow, and DuckDB for the rest of the question.

Its catalog is a SQLite file beside us, whose work no server sees.
"""

import asyncio
from importlib.util import find_spec
from typing import Any

import duckdb
import pyarrow as pa

from bench.ontology_read.data import History, Size
from bench.ontology_read.places import Place
from bench.ontology_read.questions import Question
from bench.ontology_read.sides import Peer, Session

INSTALLED = find_spec("pyiceberg") is not None
TABLES = ("customer", "product", "subscription")
KEYS = {"customer": ["id"], "product": ["sku"], "subscription": ["left_key", "right_key"]}


def catalog(place: Place) -> Any:
    from pyiceberg.catalog.sql import SqlCatalog  # noqa: PLC0415  # an extra

    kind = "file" if place.endpoint is None else "s3"
    warehouse = f"file://{place.uri('iceberg')}" if place.endpoint is None else place.uri("iceberg")
    place.folder.mkdir(parents=True, exist_ok=True)
    where = f"sqlite:///{place.folder}/iceberg-{kind}.db"
    return SqlCatalog("bench", uri=where, warehouse=warehouse, **place.iceberg_options)


class Iceberg(Peer):
    async def begin(self, history: History) -> None:
        self._catalog = catalog(self.place)
        self._catalog.create_namespace("bench")

    async def commit(self, number: int, customers: pa.Table, history: History) -> None:
        await asyncio.to_thread(self._commit, number, customers, history)

    def _commit(self, number: int, customers: pa.Table, history: History) -> None:
        if number == 1:
            for name, table in zip(TABLES, (customers, history.products, history.subscriptions), strict=True):
                self._catalog.create_table(f"bench.{name}", schema=table.schema).append(table)
        else:
            self._catalog.load_table("bench.customer").upsert(customers, join_cols=["id"])
        if number == self.size.middle:
            self.past = self._catalog.load_table("bench.customer").current_snapshot().snapshot_id

    async def session(self, place: Place) -> Session:
        return await asyncio.to_thread(_Tables, place, self.size, self.past)


class _Tables(Session):
    def __init__(self, place: Place, size: Size, past: int) -> None:
        self._duck = duckdb.connect(":memory:")
        self._size = size
        self._past = past
        self._catalog = catalog(place)
        self._tables: dict[str, Any] = {}

    async def ask(self, question: Question) -> pa.Table:
        return await asyncio.to_thread(self._ask, question)

    def _ask(self, question: Question) -> pa.Table:
        for name, condition, columns in question.scans:
            if name in self._tables:
                self._tables[name].refresh()
            else:
                self._tables[name] = self._catalog.load_table(f"bench.{name}")
            wanted = (
                {} if condition is None else {"row_filter": condition.replace(":key", f"'{self._size.wanted_key}'")}
            )
            past = {"snapshot_id": self._past} if question.past else {}
            self._duck.register(name, self._tables[name].scan(selected_fields=columns, **wanted, **past).to_arrow())
        return self._duck.execute(question.text(self._size)).to_arrow_table()

    async def close(self) -> None:
        self._duck.close()
