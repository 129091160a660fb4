"""What is exported comes back as it was, through every format."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from holdfast.ontology import Entity, Field, Relation
from holdfast.ontology.bulk.transfer import FileFormat, export_file, import_file
from holdfast.ontology.session import Ontology
from tests.soak import examples
from tests.unit.ontology.desk import Desk


class Item(Entity):
    id: Field[int] = Field(primary_key=True)
    text: Field[str]
    maybe: Field[str | None] = Field(default=None)
    number: Field[float] = Field(default=0.0)
    flag: Field[bool | None] = Field(default=None)
    amount: Field[Decimal | None] = Field(default=None)
    blob: Field[bytes] = Field(default=b"")
    moment: Field[datetime | None] = Field(default=None)
    either: Field[int | str | None] = Field(default=None)
    tags: Field[list[str]] = Field(default_factory=list)
    anything: Field[Any] = Field(default=None)


class Link(Relation[Item, Item]):
    code: Field[str] = Field(instance_key=True)
    note: Field[str | None] = Field(default=None)


texts = st.one_of(st.text(max_size=8), st.sampled_from(["", '"', "12", "null", "a,b\n", ' "x" ', "1e5", "[]"]))
moments = st.integers(-(2**40), 2**50).map(lambda us: datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=us))
plain = st.none() | st.booleans() | st.integers(-5, 5) | texts
items: st.SearchStrategy[Any] = st.builds(
    dict,
    text=texts,
    maybe=st.none() | texts,
    number=st.floats(allow_nan=False, allow_infinity=False),
    flag=st.none() | st.booleans(),
    amount=st.none() | st.decimals(-1000, 1000, places=3),
    blob=st.binary(max_size=5),
    moment=st.none() | moments,
    either=st.none() | st.integers(-9, 9) | texts,
    tags=st.lists(texts, max_size=2),
    anything=plain | st.lists(plain, max_size=2) | st.dictionaries(texts, plain, max_size=2),
)
links = st.dictionaries(
    st.tuples(st.integers(0, 3), st.integers(0, 3), texts.filter(bool)), st.none() | texts, max_size=4
)


@examples(6)
@given(st.lists(items, max_size=4), links)
async def test_a_round_trip_loses_nothing(given_items: list[Any], given_links: Any) -> None:
    here = Desk()
    with TemporaryDirectory() as folder:
        async with Ontology(here.store, here.ambient, [Item, Link]) as onto:
            onto.ensure([Item(id=number, **one) for number, one in enumerate(given_items)], Item)
            onto.ensure(
                [Link(left_key=str(a), right_key=str(b), code=code, note=n) for (a, b, code), n in given_links.items()],
                Link,
            )
            await onto.commit()
            await onto.register()
            before = await onto.all(Item), await onto.all(Link)
        for style in FileFormat:
            there = Desk()
            async with Ontology(there.store, there.ambient, [Item, Link]) as onto:
                for kind in (Item, Link):
                    path = Path(folder) / f"{kind.__name__}.{style.value}"
                    await export_file(here.store, kind.__name__, path)
                    await import_file(onto, kind, path)
                    again = await import_file(onto, kind, path)
                    assert (again.commit, again.same) == (None, again.rows)
                assert (await onto.all(Item), await onto.all(Link)) == before
