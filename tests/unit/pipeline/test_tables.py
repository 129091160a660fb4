"""Tables of a store, planned and read part by part in this process: the rows that DuckDB and the domains give."""

import json
import random
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from holdfast import pipeline
from holdfast.base.errors import Corrupt, HoldfastError, Invalid, NotFound
from holdfast.bus import Bus
from holdfast.objects.client import Client
from holdfast.objects.open import open_store
from holdfast.ontology.format.data.intake import JSON_TEXT, queued
from holdfast.ontology.format.data.rows import written
from holdfast.ontology.maintain.compact import Compactor
from holdfast.ontology.query.sqltables import SqlTables
from holdfast.ontology.session import Ontology, Options
from holdfast.ontology.types.refs import TypeId
from holdfast.ontology.types.typeinfo import type_info
from holdfast.pipeline.tables import Wanted, everything, find
from holdfast.pipeline.tables.given import Given
from holdfast.pipeline.tables.table import Condition, Conditions
from holdfast.pipeline.write.rows import READ_COLUMNS
from holdfast.platform.open import open_platform
from holdfast.telemetry.records import Gauge
from tests.unit.ontology.plain import PlainWriter
from tests.unit.ontology.shop import (
    NOON,
    Address,
    Cat,
    Customer,
    Everything,
    Order,
    Price,
    Product,
    Spot,
    Subscription,
)
from tests.unit.ontology.shop import everything as one_of_everything
from tests.unit.pipeline.field import HOUR, START, Field
from tests.unit.telemetry.rollup import plain

SHOP = (Customer, Product, Subscription, Order, Everything)


async def late(field: Field) -> None:
    """Batches that are accepted now, with records of long ago; one of them repeats numbers."""
    now = field.store.ambient.clock.wall_ns() if isinstance(field.store, Client) else 0
    for begin in (500, 503):
        records = {n: Gauge("load", float(n), START + n * 10**9, {"cpu": "1"}) for n in range(begin, begin + 6)}
        await field.accept("agent-1", "boot-1", records, at_ns=now)


def bag(table: pa.Table) -> list[str]:
    return sorted(map(repr, table.to_pylist()))


async def trade(store: Client, commits: int = 8, *, seed: int = 1) -> None:
    """Inserts, updates and retractions of a few customers and what they hold."""
    rng = random.Random(seed)
    async with Ontology(store, store.ambient, SHOP) as onto:
        onto.ensure([Product(id=number) for number in range(3)])
        onto.ensure(one_of_everything(counts={"x": 2}))
        for _ in range(commits):
            names = [f"c{rng.randrange(20):02d}" for _ in range(6)]
            onto.ensure(
                [Customer(id=each, name=each.upper(), tier=rng.choice(("Gold", "Std", None))) for each in names]
            )
            onto.ensure(Subscription(left_key=names[0], right_key=rng.randrange(3), seats=rng.randrange(9)))
            onto.ensure(Order(left_key=names[1], right_key=1, number=f"n{rng.randrange(5)}"))
            onto.retract(Customer, names[-1])
            await onto.commit()


async def compact(store: Client) -> None:
    await Compactor(store, store.ambient).compact(TypeId("entity", "Customer"))


async def test_types_have_the_rows_of_sql_however_they_are_divided() -> None:
    async with open_store("memory:") as store:
        await trade(store, 10)
        await compact(store)
        await trade(store, 3, seed=2)
        async with SqlTables(store) as sql:
            for name in ("Customer", "Customer__history", "Customer__as_of_4", "Order", "Subscription"):
                expected = bag(await sql.run(f'SELECT * FROM "{name}"'))
                for count in ("1", "3", "100"):
                    found = await everything(store, {"table": name, "partitions": count})
                    assert bag(found) == expected, (name, count)
            rows = await sql.run("SELECT * FROM Customer__history WHERE commit_id BETWEEN 3 AND 6")
            assert bag(await everything(store, {"table": "Customer", "between": "3,6"})) == bag(rows)
            rows = await sql.run("SELECT * FROM Customer__history WHERE commit_id > 3")
            assert bag(await everything(store, {"table": "customer", "since": "3"})) == bag(rows)
            rows = await sql.run("SELECT * FROM Customer__as_of_4")
            assert bag(await everything(store, {"table": "Customer", "as_of": "4", "partitions": "9"})) == bag(rows)
            rows = await sql.run("SELECT tier, id FROM Customer")
            assert bag(await everything(store, {"table": "Customer", "columns": "tier, ID"})) == bag(rows)


async def planned(store: Client, options: dict[str, str], *terms: Condition) -> tuple[Any, list[Any], Wanted]:
    table = await find(store, Given.of(options))
    wanted = Wanted(tuple(table.schema.names), Conditions(terms), 100)
    return table, await table.plan(store, wanted), wanted


async def kept(store: Client, options: dict[str, str], *terms: Condition) -> tuple[int, list[dict[str, Any]]]:
    """How many parts there are, and their rows."""
    table, found, wanted = await planned(store, options, *terms)
    rows = [row for part in found async for batch in table.read(store, part, wanted) for row in batch.to_pylist()]
    return len(found), rows


async def test_conditions_leave_out_files_and_never_a_row() -> None:
    async with open_store("memory:") as store:
        async with Ontology(store, store.ambient, [Customer], Options(compaction=False)) as onto:
            for number in range(10):
                onto.ensure([Customer(id=f"{number}{each}", name="n", tier=f"t{number}") for each in range(10)])
                await onto.commit()
            onto.ensure(Customer(id="33", name="n", tier="moved"))
            await onto.commit()
        customer = {"table": "Customer"}
        everybody, rows = await kept(store, customer)
        assert (everybody, len(rows)) == (11, 100)
        count, rows = await kept(store, customer, Condition("id", "=", "55"))
        assert (count, [row["tier"] for row in rows]) == (1, ["t5"])
        count, rows = await kept(store, customer, Condition("id", "in", ("05", "95")))
        assert (count, sorted(row["id"] for row in rows)) == (2, ["05", "95"])
        # The row that was moved is not there any more, though its newer one is in a file that cannot match.
        count, rows = await kept(store, customer, Condition("tier", "=", "t3"))
        assert (count, len(rows)) == (1, 9)
        assert "33" not in {row["id"] for row in rows}
        count, rows = await kept(store, {"table": "Customer__history"}, Condition("commit_id", ">", 9))
        assert (count, len(rows)) == (2, 11)
        count, rows = await kept(store, {"table": "changes"}, Condition("type_name", "=", "Other"))
        assert (count, rows) == (0, [])
        count, rows = await kept(store, {"table": "commits"}, Condition("commit_id", ">=", 10))
        assert (count, sorted(row["commit_id"] for row in rows)) == (2, [10, 11])


async def test_only_what_is_needed_of_large_files_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.ontology.query.cache.large_files.WHOLE_BYTES", 0)
    for module in ("format.data.rows", "maintain.merge"):
        monkeypatch.setattr(f"holdfast.ontology.{module}.ROW_GROUP", 16_384)
    for name, value in {"WHOLE_BYTES": 0, "TAIL_BYTES": 256, "GAP_BYTES": 0, "GAP_SHARE": 0, "SHARE": 2}.items():
        monkeypatch.setattr(f"holdfast.ontology.format.data.remote_parquet.{name}", value)
    async with open_store("memory:") as store:
        async with Ontology(store, store.ambient, [Customer, Product]) as onto:
            table = {"id": [f"{n:06d}" for n in range(75_000)], "name": [f"name {n}" for n in range(75_000)]}
            onto.ensure(pa.table({**table, "tier": ["Gold"] * 75_000}), of=Customer)
            await onto.commit()
            onto.ensure([Customer(id=f"{n:06d}", name="new", tier="Std") for n in range(0, 3000, 3)])
            await onto.commit()
            onto.ensure(Product(id=1))  # compaction leaves out the head
            await onto.commit()
        table, found, wanted = await planned(store, {"table": "Customer"})
        assert len([part for part in found if part.low]) > 2
        everybody = {f"{n:06d}": "new" if n < 3000 and n % 3 == 0 else f"name {n}" for n in range(75_000)}
        assert await named(store, table, found, wanted) == everybody
        spent = [received(store)]
        for columns in ("id,name,tier", "tier"):
            rows = await everything(store, {"table": "Customer", "partitions": "4", "columns": columns})
            assert Counter(rows.column("tier").to_pylist()) == {"Gold": 74_000, "Std": 1_000}
            spent.append(received(store))
        assert spent[2] - spent[1] < (spent[1] - spent[0]) * 2 / 3, "keys are always read, names are not"
        await Compactor(store, store.ambient, whole=True).compact(TypeId("entity", "Customer"))
        for options in ({}, {"as_of": "1"}, {"as_of": "2"}):
            table, found, wanted = await planned(store, {"table": "Customer", **options})
            assert len([part for part in found if part.low]) > 2
            assert all(entry.snapshot for part in found for entry in part.files)
            state = {key: f"name {int(key)}" for key in everybody} if options == {"as_of": "1"} else everybody
            assert await named(store, table, found, wanted) == state
        _, one, _ = await planned(store, {"table": "Customer"}, Condition("id", "=", "050000"))
        assert len(one) == 2, "one for each row group that can have it"
        some = await named(store, table, found[::2], wanted)
        await store.delete(found[0].files[0].path)
        others = await named(store, table, found[1::2], wanted)
        assert some.keys().isdisjoint(others), "without the snapshot, a part has the very rows that it would have had"
        assert some | others == everybody


async def named(store: Client, table: Any, parts: Sequence[Any], wanted: Wanted) -> dict[str, str]:
    """The names of customers in these parts, which have each of them once."""
    found: dict[str, str] = {}
    for part in parts:
        async for batch in table.read(store, part, wanted):
            for row in batch.to_pylist():
                assert row["id"] not in found
                found[row["id"]] = row["name"]
    return found


def received(store: Client) -> int:
    return sum(each.received_bytes for each in store.usage.tallies.values())


async def test_a_snapshot_that_is_removed_after_planning_is_not_missed() -> None:
    async with open_store("memory:") as store:
        await trade(store, 9)
        await compact(store)
        before = await everything(store, {"table": "Customer"})
        table, found, wanted = await planned(store, {"table": "Customer"})
        snapshots = [entry.path for part in found for entry in (*part.files, *part.newer) if entry.snapshot]
        assert snapshots
        for path in snapshots:
            await store.delete(path)
        rows = [batch for part in found async for batch in table.read(store, part, wanted)]
        assert bag(pa.Table.from_batches(rows)) == bag(before)
        table, found, wanted = await planned(store, {"table": "Product"})
        await store.delete(found[0].files[0].path)
        with pytest.raises(Corrupt, match="missing"):  # a data file that is gone for good
            _ = [batch async for batch in table.read(store, found[0], wanted)]


def _as_fed(found: pa.Table) -> pa.Table:
    """Times as the feed has them."""
    times = [each.isoformat(timespec="microseconds") for each in found.column("_commit_timestamp").to_pylist()]
    place = found.schema.get_field_index("_commit_timestamp")
    return found.set_column(place, "_commit_timestamp", pa.array(times, pa.string()))


async def test_maps_structs_and_json_are_read_so_that_they_can_be_written_back() -> None:
    written = one_of_everything(
        amount=Decimal("1.5"),
        counts={"x": 2},
        place={"lat": 1.0, "lng": 2.0},
        address=Address(city="Paris", since=NOON.replace(tzinfo=None), spot=Spot(lat=Decimal("1.10"), seal=b"ab")),
        price=Price(Decimal("1.5"), history=[Price(Decimal("1.4"))]),
        either="3",
        pets=[Cat(lives=3)],
        anything={"a": [1, None]},
    )
    objects = [written, one_of_everything(id=UUID(int=8), amount=Decimal(2), either=3, moments=[None, NOON])]
    async with open_store("memory:") as store:
        async with Ontology(store, store.ambient, [Everything]) as onto:
            onto.ensure(objects)
            await onto.commit()
        for options in ({"table": "Everything"}, {"table": "changes", "type": "Everything"}):
            found = await everything(store, options)
            assert found.schema.field("counts").type == pa.map_(pa.string(), pa.int64())
            assert pa.types.is_struct(found.schema.field("address").type)
            assert found.schema.field("either").metadata == JSON_TEXT
            fields = found.drop_columns([name for name in found.column_names if name in READ_COLUMNS])
            assert sorted(queued(type_info(Everything), fields)) == sorted(queued(type_info(Everything), objects))


async def test_a_number_of_another_writer_that_its_column_cannot_hold_is_no_null() -> None:
    async with open_store("memory:") as store:
        async with Ontology(store, store.ambient, [Everything]) as onto:
            onto.ensure([one_of_everything(), one_of_everything(id=UUID(int=8))])
            await onto.commit()
        (row,) = written(type_info(Everything), [one_of_everything(id=UUID(int=9))])
        plain_fields = {
            name: one for name, one in json.loads(row.fields_json).items() if not isinstance(one, dict | list)
        }
        fields = {**plain_fields, "whole": 2**70}
        await PlainWriter(store).commit({("entity", "Everything"): [(row.identity[0], fields)]})
        for options in ({"table": "Everything"}, {"table": "changes", "type": "Everything"}):
            with pytest.raises(Invalid, match=r"Everything\.whole.* cannot hold"):
                await everything(store, options)
            assert len(await everything(store, {**options, "columns": "id,text"})) == 3


async def test_changes_and_commits_are_those_of_the_feed() -> None:
    async with open_store("memory:") as store:
        await trade(store, 5)
        async with Ontology(store, store.ambient, SHOP) as onto:
            expected = await onto.changes().arrow()
            some = await onto.changes(since=3).arrow()
        assert bag(_as_fed(await everything(store, {"table": "changes"}))) == bag(expected)
        assert bag(_as_fed(await everything(store, {"table": "changes", "since": "3"}))) == bag(some)
        until = await everything(store, {"table": "changes", "until": "3", "type": "Customer,Order"})
        assert set(until.column("_commit_version").to_pylist()) == {1, 2, 3}
        assert set(until.column("type_name").to_pylist()) == {"Customer", "Order"}
        commits = (await everything(store, {"table": "commits", "partitions": "2"})).to_pylist()
        assert sorted(row["commit_id"] for row in commits) == [1, 2, 3, 4, 5]
        found = await everything(store, {"table": "changes", "type": "Order"})
        own = ["left_key", "right_key", "number", "placed", "_change_type", "_commit_version", "_commit_timestamp"]
        assert found.column_names == own
        assert pa.types.is_timestamp(found.schema.field("_commit_timestamp").type)
        fed = [row["key"] for row in expected.to_pylist() if row["type_name"] == "Order"]
        assert [[row["left_key"], row["right_key"], row["number"]] for row in found.to_pylist()] == fed


async def test_records_come_once_with_and_without_a_reconciler() -> None:
    async with open_store("memory:") as store:
        field = Field(store)
        await field.season(5, agents=4)
        tables = ("samples", "logs", "alerts")
        whole = {name: bag(await everything(store, {"table": name})) for name in tables}
        ranges = {"since": "2020-01-01T00:00:00Z"}
        ranged = {name: bag(await everything(store, {"table": name, **ranges})) for name in tables}
        assert ranged == whole
        await pipeline.run(store)
        await late(field)
        for name in tables:
            found = await everything(store, {"table": name, **ranges, "partitions": "3"})
            assert bag(found) == bag(await everything(store, {"table": name}))
        samples = (await everything(store, {"table": "samples", "columns": "agent,boot,seq"})).to_pylist()
        logs = (await everything(store, {"table": "logs", "columns": "agent,boot,seq"})).to_pylist()
        numbers = [tuple(row.values()) for row in (*samples, *logs)]
        assert len(numbers) == len(set(numbers)) > 50
        sent = {
            (each.identity.agent_id, each.identity.boot_id, record.seq)
            for each in field.batches
            for record in each.records()
        }
        assert set(numbers) == sent


async def test_a_range_of_time_and_an_agent_leave_out_batches() -> None:
    async with open_store("memory:") as store:
        field = Field(store)
        await field.season(5, agents=4, hours=6)
        await pipeline.run(store)
        low = datetime.fromtimestamp((START + HOUR) // 10**9, UTC)
        terms = (Condition("time", ">=", low), Condition("time_ns", "<", START + 2 * HOUR))
        _, found, _ = await planned(store, {"table": "samples"}, *terms)
        read = {ref.identity for part in found for cluster in part.clusters for ref in cluster}
        assert 0 < len(read) < len(field.batches)
        _, rows = await kept(store, {"table": "samples"}, *terms)
        all_rows = (await everything(store, {"table": "samples"})).to_pylist()
        assert sorted(map(repr, rows)) == sorted(
            repr(row) for row in all_rows if START + HOUR <= row["time_ns"] < START + 2 * HOUR
        )
        _, rows = await kept(store, {"table": "samples"}, Condition("agent", "=", "agent-1"))
        assert {row["agent"] for row in rows} == {"agent-1"}
        _, accepted = await kept(store, {"table": "accepted"}, Condition("accepted_at_ns", ">=", START + HOUR))
        assert 0 < len(accepted) < len(field.batches)
        assert len((await everything(store, {"table": "accepted"})).to_pylist()) == len(field.batches)


async def test_rollups_are_complete_whatever_was_derived() -> None:
    windows = {"1m": 60, "1h": 3600, "1d": 86400}

    async def rows(store: Client) -> dict[str, list[str]]:
        return {name: bag(await everything(store, {"table": "rollup", "window": name})) for name in windows}

    async with open_store("memory:") as store:
        field = Field(store)
        await field.season(7, agents=4)
        raw = await rows(store)
        await pipeline.run(store)
        assert await rows(store) == raw
        for derived in (True, False):
            found = await rows(store)
            for name, seconds in windows.items():
                assert len(found[name]) == len(plain.windows(field.batches, seconds * 10**9)) > 0
            if derived:
                await late(field)


async def test_metrics_labels_and_times_leave_out_chunks() -> None:
    async with open_store("memory:") as store:
        field = Field(store)
        await field.season(9, agents=4, batches=8)
        await pipeline.run(store)
        _, found, _ = await planned(store, {"table": "rollup"})
        chunks = sum(len(part.chunks) for part in found)
        for options, terms in (
            ({}, [Condition("metric", "=", "load")]),
            ({"since": datetime.fromtimestamp((START + HOUR) // 10**9, UTC).isoformat()}, []),
            ({"where": "cpu=9"}, []),
        ):
            _, found, _ = await planned(store, {"table": "rollup", **options}, *terms)
            assert sum(len(part.chunks) for part in found) < chunks, (options, terms)
        rows = (await everything(store, {"table": "rollup", "where": "cpu=1"})).to_pylist()
        assert rows
        assert {dict(row["labels"])["cpu"] for row in rows} == {"1"}


async def test_runs_and_events() -> None:
    async with open_platform("memory:") as hf:
        bus = Bus(hf.store, hf.ambient, "shop")
        for number in range(3):
            await bus.publish_raw("order.placed", {"number": number})
        await Field(hf.store).season(3)
        await pipeline.run(hf.store)
        runs = (await everything(hf.store, {"table": "runs"})).to_pylist()
        assert {row["status"] for row in runs} == {"success"}
        steps = (await everything(hf.store, {"table": "steps"})).to_pylist()
        assert {row["run_id"] for row in steps} == {row["run_id"] for row in runs}
        events = (await everything(hf.store, {"table": "events", "namespace": "shop"})).to_pylist()
        assert [(row["type"], row["status"]) for row in events] == [("order.placed", "pending")] * 3
        assert (await everything(hf.store, {"table": "events"})).num_rows > 3
        assert (await everything(hf.store, {"table": "claims"})).num_rows == 0
        _, rows = await kept(hf.store, {"table": "runs"}, Condition("status", "=", "failed"))
        assert rows == []


@pytest.mark.parametrize(
    ("options", "said", "hint"),
    [
        ({"table": "Custommer"}, "there is no table 'Custommer'", "did you mean Customer?"),
        ({"table": "sampels"}, "there is no table 'sampels'", "did you mean samples?"),
        ({}, "which table", "option"),
        ({"table": "Customer", "as_off": "3"}, "no option 'as_off'", "did you mean as_of?"),
        ({"table": "Customer", "as_of": "last tuesday"}, "neither a commit nor a time nor a tag", "write 42"),
        ({"table": "Customer", "columns": "nmae"}, "no column 'nmae'", "did you mean name?"),
        ({"table": "Customer", "history": "perhaps"}, "neither true nor false", ""),
        ({"table": "Customer", "between": "3"}, "not two moments", "3,9"),
        ({"table": "Customer", "as_of": "1", "since": "1"}, "exclude each other", "one of them"),
        ({"table": "changes", "type": "Custommer"}, "no type 'Custommer'", "did you mean Customer?"),
        ({"table": "rollup", "window": "7 weeks"}, "is not a window", "10s"),
        ({"table": "rollup", "since": "1h", "until": "2h"}, "until: '2h' is not after since, '1h'", "later than since"),
        ({"table": "logs", "since": "2026-01-02", "until": "2026-01-02"}, "is not after since", "later than since"),
        ({"table": "Customer", "partitions": "none"}, "no whole number", ""),
    ],
)
async def test_errors_say_what_to_do(options: dict[str, str], said: str, hint: str) -> None:
    async with open_store("memory:") as store:
        await trade(store, 1)
        with pytest.raises(HoldfastError, match=said) as caught:
            await everything(store, options)
        assert isinstance(caught.value, Invalid | NotFound)
        assert hint in (caught.value.remedy or "")


async def test_what_cannot_be_read_fails_or_is_left_out() -> None:
    async with open_store("memory:") as store:
        field = Field(store)
        await field.season(5, agents=2)
        await store.delete(field.manifests[0].raw_blob_key)
        with pytest.raises(Corrupt, match="cannot be read") as caught:
            await everything(store, {"table": "samples"})
        assert "unreadable" in str(caught.value.remedy)
        assert (await everything(store, {"table": "samples", "unreadable": "skip"})).num_rows > 0
