"""delta-rs: a merge per commit, so that the table is the state; its own scans with pruning, and DuckDB over them."""

import asyncio
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import duckdb
import pyarrow as pa

from bench.ontology_read.data import History, Size
from bench.ontology_read.places import Place
from bench.ontology_read.questions import Question
from bench.ontology_read.sides import Peer, Session

INSTALLED = find_spec("deltalake") is not None
TABLES = ("customer", "product", "subscription")


class Delta(Peer):
    async def commit(self, number: int, customers: pa.Table, history: History) -> None:
        await asyncio.to_thread(self._commit, number, customers, history)

    def _commit(self, number: int, customers: pa.Table, history: History) -> None:
        from deltalake import DeltaTable, write_deltalake  # noqa: PLC0415  # an extra

        root, options = self.place.uri("delta"), self.place.delta_options
        if number == 1:
            for name, table in zip(TABLES, (customers, history.products, history.subscriptions), strict=True):
                write_deltalake(f"{root}/{name}", table, storage_options=options)
        else:
            table = DeltaTable(f"{root}/customer", storage_options=options)
            merging = table.merge(customers, "t.id = s.id", source_alias="s", target_alias="t")
            merging.when_matched_update_all().when_not_matched_insert_all().execute()
        if number == self.size.middle:
            self.past = DeltaTable(f"{root}/customer", storage_options=options).version()

    async def compact(self) -> bool:
        await asyncio.to_thread(self._optimize)
        return True

    def _optimize(self) -> None:
        from deltalake import DeltaTable  # noqa: PLC0415  # an extra

        DeltaTable(f"{self.place.uri('delta')}/customer", storage_options=self.place.delta_options).optimize.compact()

    async def session(self, place: Place) -> Session:
        return await asyncio.to_thread(_Tables, place, self.size, self.past)


class _Tables(Session):
    def __init__(self, place: Place, size: Size, past: int) -> None:
        from deltalake import DeltaTable  # noqa: PLC0415  # loads slowly, and only this contender needs it

        self._duck = duckdb.connect(":memory:")
        self._size = size
        self._past = past
        self._place = place
        self._open: Callable[..., Any] = lambda name, version=None: DeltaTable(
            f"{place.uri('delta')}/{name}", version=version, storage_options=place.delta_options
        )
        self._tables: dict[str, Any] = {}

    async def ask(self, question: Question) -> pa.Table:
        return await asyncio.to_thread(self._ask, question)

    def _ask(self, question: Question) -> pa.Table:
        for name, condition, columns in question.scans:
            if question.past:
                table = self._open(name, self._past)
            elif name in self._tables:
                table = self._tables[name]
                table.update_incremental()
            else:
                table = self._tables[name] = self._open(name)
            wanted = None if condition is None else condition.replace("==", "=")
            wanted = wanted and wanted.replace(":key", f"'{self._size.wanted_key}'")
            found = table.scan(columns=list(columns), predicate=wanted)
            self._duck.register(name, _plain(pa.RecordBatchReader.from_stream(found).read_all()))
        return self._duck.execute(question.text(self._size)).to_arrow_table()

    async def close(self) -> None:
        self._duck.close()


def _plain(table: pa.Table) -> pa.Table:
    """DuckDB hands its conditions to Arrow, which cannot compare views of strings everywhere."""
    schema = [(each.name, pa.string() if each.type == pa.string_view() else each.type) for each in table.schema]
    return table.cast(pa.schema(schema))
