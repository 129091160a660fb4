"""The floor: DuckDB over one ideal Parquet file per table and moment. They could not be kept beside a writer."""

import asyncio
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from bench.ontology_read.data import History, Size
from bench.ontology_read.places import KEY_ID, REGION, SECRET, Place
from bench.ontology_read.questions import Question
from bench.ontology_read.sides import Session, Side
from holdfast.objects import open as open_store


class Floor(Side):
    async def commit(self, number: int, customers: pa.Table, history: History) -> None:
        if number == 1:
            await self._write("product", history.products)
            await self._write("subscription", history.subscriptions)
        if number == self.size.middle:
            await self._write("past", history.state())
        if number == self.size.commits:
            await self._write("customer", history.state())

    async def _write(self, name: str, table: pa.Table) -> None:
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, compression="zstd", row_group_size=122_880)
        async with open_store(self._root, settings=self.place.settings) as store:
            await store.put(f"{name}.parquet", sink.getvalue().to_pybytes())

    @property
    def _root(self) -> str:
        uri = self.place.uri("floor")
        return uri if self.place.endpoint is not None else f"file:{uri}"

    async def session(self, place: Place) -> Session:
        return _Files(place, self.size)


class _Files(Session):
    def __init__(self, place: Place, size: Size) -> None:
        self._size = size
        self._duck = connection(place)
        root = place.uri("floor")
        for name in ("customer", "past", "product", "subscription"):
            self._duck.execute(f"CREATE VIEW {name} AS SELECT * FROM read_parquet('{root}/{name}.parquet')")

    async def ask(self, question: Question) -> pa.Table:
        text = question.text(self._size)
        if question.past:
            text = text.replace("FROM customer", "FROM past")
        return await asyncio.to_thread(lambda: self._duck.execute(text).to_arrow_table())

    async def close(self) -> None:
        self._duck.close()


def connection(place: Place) -> duckdb.DuckDBPyConnection:
    made = duckdb.connect(":memory:")
    if place.endpoint is not None:
        spec = find_spec("duckdb_extension_httpfs")
        if spec is None or spec.origin is None:
            raise RuntimeError("duckdb-extension-httpfs is not installed")
        (extension,) = Path(spec.origin).parent.rglob("httpfs.duckdb_extension")
        made.execute(f"LOAD '{extension}'")
        made.execute(
            f"CREATE SECRET (TYPE s3, KEY_ID '{KEY_ID}', SECRET '{SECRET}', REGION '{REGION}', URL_STYLE 'path', "
            f"ENDPOINT '{urlsplit(place.endpoint).netloc}', USE_SSL false)"
        )
    return made
