"""Whatever a step may return comes back from the journal as the same value."""

import enum
import json
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Generic, TypeVar
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from holdfast.base.errors import Invalid
from holdfast.runs.errors import NotJson
from holdfast.runs.recorded import Packed
from holdfast.runs.values import from_json, register, to_json


class Tier(enum.Enum):
    GOLD = "gold"


@dataclass(frozen=True)
class Point:
    x: int
    tags: tuple[str, ...] = ()
    computed: int = field(init=False, default=7)


class Ticket(BaseModel):
    id: UUID
    due: date
    points: list[Point] = []


scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.decimals(allow_nan=False)
    | st.uuids()
    | st.datetimes(timezones=st.just(UTC))
    | st.dates()
    | st.times()
    | st.timedeltas()
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.text() | st.just("$type"), inner)
        | st.dictionaries(st.integers() | st.booleans(), inner)
        | st.tuples(inner, inner)
    ),
    max_leaves=12,
)


@given(values)
def test_any_value_survives_the_journal(value: Any) -> None:
    written = json.loads(json.dumps(to_json(value), allow_nan=False))
    assert from_json(written) == value
    assert type(from_json(written)) is type(value)


@pytest.mark.parametrize(
    "value",
    [
        Tier.GOLD,
        Point(3, ("a",)),
        Ticket(id=UUID(int=5), due=date(2026, 1, 2), points=[Point(1)]),
        {"at": datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC), "for": timedelta(days=-1, microseconds=5)},
        time(1, 2, 3),
        Decimal("1.10"),
        {1, 2, 3},
        frozenset({"a"}),
        float("inf"),
        2**80,
    ],
    ids=repr,
)
def test_common_types_work_out_of_the_box(value: Any) -> None:
    assert from_json(json.loads(json.dumps(to_json(value), allow_nan=False))) == value


def test_plain_json_stays_plain() -> None:
    value = {"a": [1, 2.5, None, True, "x"], "b": {}}
    assert to_json(value) == value


def test_what_cannot_be_written_is_named_with_its_place() -> None:
    with pytest.raises(NotJson, match=r"result\.rows\[1\] is a .*object"):
        to_json({"rows": [1, object()]}, "result")

    @dataclass
    class Local:
        x: int

    with pytest.raises(NotJson, match="cannot be found again"):
        to_json(Local(1))


def test_a_codec_can_be_registered_and_its_name_is_taken() -> None:
    class Money:
        def __init__(self, cents: int) -> None:
            self.cents = cents

    register(Money, "tests.Money", lambda money: money.cents, Money)
    assert from_json(json.loads(json.dumps(to_json(Money(5))))).cents == 5
    with pytest.raises(Invalid, match="exists already"):
        register(Point, "tests.Money", repr, Point)
    with pytest.raises(Invalid, match="no codec is registered"):
        from_json({"$type": "tests.Unheard", "value": 1})


def test_a_recorded_class_must_be_there_and_of_the_right_kind() -> None:
    with pytest.raises(Invalid, match="cannot be found"):
        from_json({"$type": "dataclass", "class": "tests.unit.runs.test_values:Gone", "value": {}})
    with pytest.raises(Invalid, match="not a class of the expected kind"):
        from_json({"$type": "dataclass", "class": "os:system", "value": {}})


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


class Swapped(BaseModel):
    a: int = Field(alias="b")
    b: int = Field(default=0, alias="a")


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")

    a: int = 1
    _private: int = PrivateAttr(default=5)


Item = TypeVar("Item")


class Box(BaseModel, Generic[Item]):
    item: Item


@pytest.mark.parametrize(
    "value",
    [
        Rights.READ | Rights.WRITE,
        Rights(0),
        Rights.READ,
        Swapped(b=1, a=2),
        Open.model_validate({"a": 2, "more": 3}),
        Open(),
        Box(item=1),
    ],
    ids=repr,
)
def test_flags_and_models_come_back_as_they_were(value: Any) -> None:
    again = from_json(json.loads(json.dumps(to_json(value))))
    assert again == value
    if isinstance(value, BaseModel):
        assert (again.model_extra, again.model_fields_set) == (value.model_extra, value.model_fields_set)
    if isinstance(value, Open):
        assert again._private == 5


def test_what_could_not_be_read_again_is_not_written() -> None:
    class Odd:
        pass

    register(Odd, "tests.Odd", lambda _: 1, lambda _: 1 // 0)
    with pytest.raises(NotJson, match=r"result could be written down, but not read again: ZeroDivisionError"):
        Packed([Odd()], "result").read_back()
    with pytest.raises(NotJson, match="cannot be found"):
        to_json(Box[int](item=1))
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(NotJson, match="contains itself"):
        to_json(endless)
