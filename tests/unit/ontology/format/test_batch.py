"""Bulk loads go through as columns: the same files, the same decisions and the same history as row by row."""

import random
from datetime import UTC, date, datetime
from pathlib import Path

import pyarrow as pa
import pytest

import holdfast
from holdfast.ontology import Entity, Field, Relation
from holdfast.ontology.chain.state import SEGMENTS, TypeState
from holdfast.ontology.format.data.batch import LARGE, Batch, digest, joined, joined_text, merged
from holdfast.ontology.format.data.intake import queued
from holdfast.ontology.format.data.rows import encode, to_parquet, to_table, written
from holdfast.ontology.session import Ontology
from holdfast.ontology.types.typeinfo import TypeInfo, type_info

MANY = LARGE + 5


class Customer(Entity):
    id: Field[str] = Field(primary_key=True)
    name: Field[str | None] = Field(default=None)
    visits: Field[int] = Field(default=0)
    since: Field[datetime | None] = Field(default=None)
    born: Field[date | None] = Field(default=None)
    vip: Field[bool] = Field(default=False)


class Product(Entity):
    id: Field[int] = Field(primary_key=True)


class Bought(Relation[Customer, Product]):
    order: Field[str] = Field(instance_key=True)
    price: Field[float] = Field(default=1.5)


def customers(count: int = MANY, *, name: str | None = "Ada", start: int = 0) -> list[Customer]:
    moment = datetime(2024, 5, 6, 7, 8, 9, 10, tzinfo=UTC)
    return [
        Customer(id=f"c{number}", name=name if number % 7 else 'ü "quoted"\n', visits=number, since=moment, vip=True)
        for number in range(start, start + count)
    ]


def table(objects: list[Customer]) -> pa.Table:
    return pa.Table.from_pylist([dict(vars(each)) for each in objects])


@pytest.fixture
def form() -> TypeInfo:
    return type_info(Customer)


class TestTheSameFiles:
    def test_of_objects_and_tables(self, form: TypeInfo) -> None:
        objects = customers()
        expected = to_parquet(to_table(form, written(form, objects), 3, 2))
        for given in (objects, table(objects), iter(objects), table(objects).to_batches()[0]):
            batch = queued(form, given)
            assert isinstance(batch, Batch)
            assert list(batch) == written(form, objects)
            assert encode(form, batch, 3, 2) == expected

    def test_of_relations(self) -> None:
        made = type_info(Bought)
        objects = [Bought(left_key=f"c{number}", right_key=number, order="o") for number in range(MANY)]
        batch = queued(made, objects)
        assert isinstance(batch, Batch)
        rows = written(made, objects)
        assert encode(made, batch, 1, 1) == to_parquet(to_table(made, rows, 1, 1))
        assert (batch[4], batch[:2], batch[-1]) == (rows[4], rows[:2], rows[-1])


def test_identities_are_joined_without_ambiguity() -> None:
    parts = ["", "a", ":", "1:a", "ab", "2:", "ü"]
    identities = [(one, two, three) for one in parts for two in parts for three in parts]
    columns = [pa.array(column) for column in zip(*identities, strict=True)]
    texts = joined(columns).to_pylist()
    assert texts == [joined_text(identity) for identity in identities]
    assert len(set(texts)) == len(identities)


@pytest.mark.parametrize("long", [False, True])
def test_segments_are_merged_to_the_latest_of_each_identity(long: bool, form: TypeInfo) -> None:
    state, model = TypeState(form.type_id), dict[str, tuple[int, str]]()
    rng = random.Random(4)
    for commit_id in range(1, 3 * SEGMENTS):
        name = ("x" * 400 if long else "") + str(commit_id)
        objects = customers(MANY, name=name, start=rng.randrange(2_000))
        batch = queued(form, objects)
        assert isinstance(batch, Batch)
        state.committed(batch, commit_id)
        model |= {row.identity[0]: (commit_id, row.fields_json) for row in batch}
        assert len(state.segments) <= SEGMENTS
    for key in rng.sample(sorted(model), 50):
        current = state.get((key,))
        assert current is not None
        assert current.commit_id == model[key][0]
        assert current.has_fields(digest(model[key][1]))
    assert state.get(("missing",)) is None
    whole = merged(state.segments)
    assert len(whole.joined) == len(model)


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"memory:{tmp_path.name}"


async def rows_of(onto: Ontology) -> dict[str, Customer]:
    return {each.id: each for each in await onto.all(Customer)}


async def test_bulk_and_single_commits_in_any_order_give_what_a_dictionary_would(address: str) -> None:
    rng = random.Random(7)
    model: dict[str, Customer] = {}
    async with holdfast.open(address) as hf:
        for _ in range(4):
            async with hf.ontology(Customer) as onto:  # each session reads what the ones before it wrote
                for _ in range(5):
                    name = rng.choice(["Ada", "Bob", None])
                    match rng.randrange(4):
                        case 0:
                            wanted = customers(MANY, name=name, start=rng.randrange(500))
                        case 1:
                            wanted = customers(rng.randrange(1, 4), name=name, start=rng.randrange(1_500))
                        case 2:
                            wanted = customers(MANY) + customers(MANY, name=name, start=20)
                        case _:
                            wanted = []
                            for key in rng.sample(sorted(model), min(3, len(model))):
                                onto.retract(Customer, key)
                                del model[key]
                    before = dict(model)
                    model |= {each.id: each for each in wanted}
                    onto.ensure(table(wanted) if wanted and rng.randrange(2) else wanted, Customer)
                    commit = await onto.commit()
                    if wanted:
                        changed = sum(model[key] != before.get(key) for key in {each.id for each in wanted})
                        assert (commit.rows if commit is not None else 0) == changed
                assert await rows_of(onto) == model
