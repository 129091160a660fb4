"""Loads as a pipeline makes them, without Spark: staged, landed, tidied up; and what the dead leave is collected."""

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from holdfast.base.errors import Conflict, Invalid
from holdfast.objects.client import Client
from holdfast.objects.open import open_store
from holdfast.ontology import Entity, Field
from holdfast.ontology.bulk.decide import Policy, Rules
from holdfast.ontology.bulk.load import Landed
from holdfast.ontology.format import layout
from holdfast.ontology.maintain.compact import Compactor
from holdfast.ontology.maintain.verify.verify import verify
from holdfast.ontology.session import Ontology, Options
from holdfast.ontology.types.errors import InvalidValue
from holdfast.pipeline.engine import Inline
from holdfast.pipeline.jobs.compact import compact
from holdfast.pipeline.write.rows import Columns, LoadOptions, Staged, Typed, imported, known_type, land, staged
from tests.unit.ontology.bulk_kit import CUSTOMER_ID, Customer, customers, table


async def loaded(store: Client, typed: Typed, rows: pa.Table, *, tasks: int = 2, **wanted: Any) -> Landed:
    load = store.ambient.ids.unique()
    parts = []
    for task in range(tasks):
        some = rows.take(pa.array(range(task, rows.num_rows, tasks), pa.int64()))
        done = await staged(store, load, typed.type_info(), some.to_batches())
        parts.append(Staged.parse(done.document(), key="load"))
    return await land(store, typed.type_info(), load, parts, LoadOptions(**wanted), Inline())


async def test_a_load_leaves_nothing_staged_whatever_came_of_it() -> None:
    async with open_store("memory:") as store:
        by_class = Typed(named="tests.unit.ontology.bulk_kit:Customer")
        landed = await loaded(store, by_class, table(customers(0, 50)), source="q", batch=0)
        assert landed.commit is not None
        assert landed.commit.rows == 50
        with pytest.raises(Conflict):
            await loaded(store, by_class, table(customers(0, 50, "other")))
        with pytest.raises(InvalidValue, match=r"Customer\.name"):
            await loaded(store, by_class, pa.table({"id": ["a"], "name": pa.array([None], pa.string())}))
        by_schema = await known_type(store, "Customer")
        again = await loaded(store, by_schema, table(customers(0, 5, "other")), source="q", batch=0)
        assert (again.replayed, again.commit) == (True, landed.commit)
        replacing = Rules(Policy.REPLACE)
        assert (await loaded(store, by_schema, table(customers(0, 5, "other")), rules=replacing)).tally.replaced == 5
        assert [key async for key in store.keys(layout.LOADS)] == []
        assert (await verify(store, deep=True)).good


class Price(Entity):
    id: Field[str] = Field(primary_key=True)
    amount: Field[Decimal]


async def test_a_decimal_has_one_text_whatever_the_places_of_its_column() -> None:
    async with open_store("memory:") as store:
        for number, kind in enumerate((pa.decimal128(12, 2), pa.decimal128(28, 18), pa.decimal128(38, 10))):
            rows = pa.table({"id": ["a"], "amount": pa.array([Decimal("1.10")], kind)})
            landed = await loaded(store, Typed(python=Price), rows, tasks=1)
            assert (landed.commit is not None) is (number == 0)
        wide = pa.table({"id": ["b"], "amount": pa.array([Decimal(10) ** 20], pa.decimal128(38, 10))})
        with pytest.raises(InvalidValue, match=r"Price\.amount, .*Decimal that decimal\(38, 18\) holds"):
            await loaded(store, Typed(python=Price), wide, tasks=1)


@pytest.mark.parametrize(
    ("column", "said"),
    [
        (pa.array(["D"]), "column op has the value 'D'"),
        (pa.array([None], pa.string()), "column op has the value None"),
        (pa.array([1]), "column op is of type int64, and says what becomes of a row"),
    ],
)
async def test_a_column_that_says_nothing_about_retracting_is_refused_with_what_it_may_say(
    column: pa.Array, said: str
) -> None:
    async with open_store("memory:") as store:
        info = Typed(python=Price).type_info()
        rows = pa.table({"id": ["a"], "op": column})
        meant = Columns.of(rows.column_names, info, "op", None)
        done = await staged(store, "load", info, rows.to_batches(), meant)
        with pytest.raises(InvalidValue, match=said) as refused:
            await land(store, info, "load", [done], LoadOptions(), Inline())
        assert "insert, update" in (refused.value.remedy or "")


def test_a_class_that_cannot_be_had_is_named() -> None:
    for target in ("nowhere:Customer", "tests.unit.ontology.bulk_kit:table", "Customer"):
        with pytest.raises(Invalid, match=target.partition(":")[0]):
            imported(target)


async def test_compaction_by_an_engine_gives_the_rows_and_files_of_one_machine() -> None:
    async with open_store("memory:") as store, open_store("memory:") as other:
        for each in (store, other):
            async with Ontology(each, each.ambient, [Customer], Options(compaction=False)) as onto:
                for number in range(20):
                    onto.ensure([Customer(**row) for row in customers(number * 2, 3, f"v{number}-")])
                    await onto.commit()
        planned = await compact(store, engine=Inline())
        assert (len(planned.done), [key async for key in store.keys(layout.SNAPSHOTS)]) == (0, [])
        said: list[str] = []
        done = await compact(store, ["Customer"], engine=Inline(), apply=True, say=lambda step, *_: said.append(step))
        alone = await Compactor(other, other.ambient).compact(CUSTOMER_ID)
        assert [(each.entry.first, each.entry.last, each.rows, each.published) for each in done.done] == [
            (each.entry.first, each.entry.last, each.rows, each.published) for each in alone
        ]
        assert len(done.done) >= 1
        assert {"merge", "publish"} <= set(said)
        for made, same in zip(done.done, alone, strict=True):
            ours, theirs = (await store.get(made.entry.path)).body, (await other.get(same.entry.path)).body
            assert pa.parquet.read_table(pa.BufferReader(ours)).equals(pa.parquet.read_table(pa.BufferReader(theirs)))
        assert (await verify(store, deep=True)).good
