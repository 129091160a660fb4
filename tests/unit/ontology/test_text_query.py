"""Questions in words about fields of every type: the classes are not known there, and the rows are the same."""

from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any
from uuid import UUID

from typing_extensions import TypedDict

from holdfast.ontology import Condition, Entity, Field, Relation, left
from holdfast.ontology.query.sqltables import SqlTables
from holdfast.ontology.query.tabular import arrow_of
from holdfast.ontology.query.text_query import Wording, understood
from holdfast.ontology.session import Ontology
from tests.unit.ontology.desk import Desk


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Part(TypedDict):
    name: str
    sizes: list[int]


NUMBER = UUID("00000000-0000-0000-0000-000000000007")
NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)


class Thing(Entity):
    id: Field[int] = Field(primary_key=True)
    number: Field[UUID | None] = Field(default=None)
    colour: Field[Colour | None] = Field(default=None)
    level: Field[Level | None] = Field(default=None)
    price: Field[Decimal | None] = Field(default=None)
    day: Field[date | None] = Field(default=None)
    at: Field[datetime | None] = Field(default=None)
    seal: Field[bytes | None] = Field(default=None)
    flag: Field[bool | None] = Field(default=None)
    real: Field[float | None] = Field(default=None)
    either: Field[int | float | None] = Field(default=None)
    bag: Field[Any] = Field(default=None)
    parts: Field[list[Part]] = Field(default_factory=list)
    days: Field[list[date] | None] = Field(default=None)


class Holds(Relation[Thing, Thing]):
    slot: Field[str] = Field(instance_key=True)
    parts: Field[list[Part]] = Field(default_factory=list)


def things() -> list[Thing]:
    full = Thing(
        id=1,
        number=NUMBER,
        colour=Colour.RED,
        level=Level.HIGH,
        price=Decimal("19.90"),
        day=date(2026, 5, 1),
        at=NOON,
        seal=b"\x00\xff",
        flag=True,
        real=float("nan"),
        either=2**60 + 1,
        bag={"x": [{"y": 1}, {"y": "two"}], "first name": "Ada"},
        parts=[{"name": "bolt", "sizes": [1, 2]}],
        days=[date(2026, 5, 1), date(2026, 5, 2)],
    )
    other = Thing(id=2, bag=NOON.isoformat(), either=0.5, real=float("inf"), colour=Colour.BLUE, days=[])
    return [full, other, Thing(id=3, bag=1.5), Thing(id=10, bag=True, parts=[{"name": "nut", "sizes": []}])]


PAIRS: list[tuple[Condition, str]] = [
    (Thing.id == 10, "id == 10"),
    (Thing.number == NUMBER, f'number == "{NUMBER}"'),
    (Thing.colour == Colour.RED, 'colour == "red"'),
    (Thing.colour.in_([Colour.BLUE, None]), 'colour in ["blue", null]'),
    (Thing.level >= Level.HIGH, "level >= 2"),
    (Thing.price == Decimal("19.9"), 'price == "19.9"'),
    (Thing.price.between(Decimal(1), Decimal("19.90")), "price between 1 and 19.9"),
    (Thing.day == date(2026, 5, 1), 'day == "2026-05-01"'),
    (Thing.at <= NOON, 'at <= "2026-05-01T14:00:00+02:00"'),
    (Thing.seal == b"\x00\xff", 'seal == "AP8="'),
    (Thing.flag != True, "flag != true"),  # noqa: E712  # a field, not a truth
    (Thing.real > 1.0, "real > 1"),
    (Thing.real == float("inf"), "real == inf"),
    (Thing.either == 2**60 + 1, f"either == {2**60 + 1}"),
    (Thing.bag == Decimal("1.5"), 'bag == decimal "1.5"'),
    (Thing.bag == NOON, f'bag == datetime "{NOON.isoformat()}"'),
    (Thing.bag == True, "bag == true"),  # noqa: E712  # as above
    (Thing.bag.path("first name").startswith("A"), 'bag.`first name` startswith "A"'),
    (Thing.bag.path("x").any_path("y") == "two", 'any(bag.x[].y == "two")'),
    (Thing.bag.path("x").length() == 2, "len(bag.x) == 2"),
    (Thing.parts.any_path("name").matches("^n"), 'any(parts.name matches "^n")'),
    (Thing.parts.all_path("name").startswith("b"), 'all(parts.name startswith "b")'),
    (Thing.days.all_path() > date(2026, 4, 30), 'all(days > "2026-04-30")'),
]
HELD: list[tuple[Condition, str]] = [
    (Holds.left_key == "1", 'left_key == "1"'),
    (Holds.slot.in_(["a", "z"]), 'slot in ["a", "z"]'),
    (left(Holds).parts.any_path("name") == "bolt", 'any(left.parts.name == "bolt")'),
    (left(Holds).bag.path("x").length() > 1, "len(left.bag.x) > 1"),
    (~(left(Holds).colour == Colour.RED) | (Holds.slot == "b"), 'not left.colour == "red" or slot == "b"'),
]
ORDERS = ("number", "colour", "level", "price", "day", "at", "seal", "flag", "real", "either", "bag")


async def test_words_say_what_classes_say() -> None:
    desk = Desk()
    async with Ontology(desk.store, desk.ambient, [Thing, Holds]) as onto, SqlTables(desk.store) as tables:
        onto.ensure(things())
        onto.ensure([Holds(left_key="1", right_key="2", slot=slot) for slot in "ab"])
        onto.ensure(Holds(left_key="7", right_key="1", slot="a"))
        await onto.commit()

        async def shown(wording: Wording) -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = (await arrow_of(tables.engine, await understood(tables, wording))).to_pylist()
            return found

        asked: list[tuple[Any, list[tuple[Condition, str]]]] = [(Thing, PAIRS), (Holds, HELD)]
        for cls, pairs in asked:
            for condition, text in pairs:
                wanted = (await onto.query(cls).where(condition).arrow()).to_pylist()
                found = await shown(Wording(cls.__name__, [text]))
                assert [str(sorted(row.items())) for row in found] == [str(sorted(row.items())) for row in wanted], text
                assert 0 < len(wanted) < len(await onto.query(cls).all()), text
        for name in ORDERS:
            ordered = await onto.query(Thing).order_by(getattr(Thing, name).desc(nulls="first")).all()
            words = Wording("Thing", order_by=[f"{name} desc nulls first"], columns=["id"])
            assert [row["id"] for row in await shown(words)] == [one.id for one in ordered], name
