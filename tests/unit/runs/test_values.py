"""Whatever a step may return comes back from the journal as the same value."""

import copy
import enum
import json
import pickle
import sys
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, NamedTuple, TypeVar
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from holdfast.base.errors import Invalid
from holdfast.runs.engine.context import Context
from holdfast.runs.engine.workflow import workflow
from holdfast.runs.errors import NotJson, UnknownKind, UnreadableValue
from holdfast.runs.journal.payload import Packed
from holdfast.runs.values import MAX_DEPTH, from_json, register, to_json
from tests.unit.runs.desk import Desk


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


GONE = [
    {"$type": "dataclass", "class": "tests.unit.runs.test_values:Gone", "value": {"x": 1}},
    {"$type": "model", "class": "nowhere.at.all:Ticket", "value": {}},
    {"$type": "enum", "class": "os:system", "value": "rm"},
    {"$type": "com.example.Money", "cents": 5},
    {"$type": 7},
    {"$type": ["a", "list"]},
    {"$type": "enum"},
    {"$type": "enum", "members": ["a"]},
    {"$type": "float", "value": "much"},
    {"$type": "dict", "value": [[[], 1]]},
    {"$type": "set", "value": [[]]},
    {"$type": "bytes", "value": "é"},
    {"$type": "bytes", "value": "!"},
    {"$type": "bytes", "value": "!", "charset": "x"},
    {"$type": "decimal", "value": "x"},
    {"$type": "timedelta", "value": [1e300, 0, 0]},
    {"$type": "datetime", "value": 3},
    {"$type": "uuid"},
]


@pytest.mark.parametrize("document", GONE, ids=repr)
def test_a_value_of_an_unknown_kind_replays_as_the_document_that_was_written(document: dict[str, Any]) -> None:
    found = from_json({"before": [document]})["before"][0]
    assert found == document
    assert to_json(found) == document
    assert copy.deepcopy(found) == pickle.loads(pickle.dumps(found)) == document
    assert not hasattr(found, "amount")
    with pytest.raises(UnknownKind, match="which this program does not know: it has no 'amount'"):
        found.amount  # noqa: B018  # raises


async def test_a_run_waits_for_the_class_of_a_recorded_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """The call that lacks it is refused and the run stays open: the next call, which has it, goes on."""

    kind = Point

    @workflow
    async def plan(ctx: Context) -> int:
        point = await ctx.step("draw", kind, 7)
        await ctx.suspend("go")
        return int(point.x)

    desk = Desk()
    assert (await plan.start(desk.store(), run_id="r")).status == "suspended"
    with monkeypatch.context() as without:
        without.delattr(sys.modules[__name__], "Point")
        with pytest.raises(UnknownKind, match="it has no 'x'"):
            await plan.resume(desk.store(), "r", "go")
    assert (await plan.proceed(desk.store(), "r")).result == 7


def test_reading_a_value_imports_no_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also no module of a package that imports its own ones when they are first named."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "innocent.py").write_text("raise SystemExit('imported')\n", encoding="utf-8")
    lazily = ModuleType("lazily")
    lazily.__dict__["__getattr__"] = sys.exit
    monkeypatch.setitem(sys.modules, "lazily", lazily)
    before = set(sys.modules)
    for kind in ("dataclass", "model", "enum", "flags"):
        for name in ("innocent:Thing", "lazily:Thing.Inner", "antigravity:fly", "", ":", "os:", "..:x"):
            document: dict[str, Any] = {"$type": kind, "class": name, "value": {}}
            assert from_json(document) == document
    assert set(sys.modules) == before


@pytest.mark.parametrize(
    "document",
    [
        {"$type": "dataclass", "class": "tests.unit.runs.test_values:Tier", "value": {}},
        {"$type": "model", "class": "builtins:dict", "value": {}},
        {"$type": "enum", "class": "tests.unit.runs.test_values:Tier", "value": "TIN"},
        {"$type": "enum", "class": "tests.unit.runs.test_values:Tier", "value": ["GOLD"]},
        {"$type": "flags", "class": "tests.unit.runs.test_values:Rights", "value": "x"},
        {"$type": "dataclass", "class": "tests.unit.runs.test_values:Point", "value": [1]},
        {"$type": "dataclass", "class": "tests.unit.runs.test_values:Point", "value": {"__class__": 1}},
        {"$type": "model", "class": "tests.unit.runs.test_values:Ticket", "value": {"_fields_set": 1}},
        {"$type": "model", "class": "tests.unit.runs.test_values:Ticket", "set": 3},
    ],
    ids=repr,
)
def test_a_recorded_value_that_does_not_fit_its_kind_is_a_named_error(document: dict[str, Any]) -> None:
    with pytest.raises(UnreadableValue, match=r"does not fit|not a class of|not the name of"):
        from_json([document])


def nested(levels: int, wrap: Callable[[Any], Any]) -> Any:
    value: Any = 0
    for _ in range(levels):
        value = wrap(value)
    return value


@dataclass
class Node:
    under: Any


WRAPS: list[Callable[[Any], Any]] = [lambda v: [v], lambda v: {"k": v}, lambda v: (v,), Node, lambda v: {1: v}]


@pytest.mark.parametrize("wrap", WRAPS)
def test_what_is_written_deep_can_be_read_and_what_is_deeper_is_not_written(wrap: Callable[[Any], Any]) -> None:
    deep = nested(MAX_DEPTH // 2, wrap)
    assert from_json(json.loads(json.dumps(to_json(deep)))) == deep
    for levels in (MAX_DEPTH + 1, 5_000):
        with pytest.raises(NotJson, match="more than 100 levels"):
            to_json(nested(levels, wrap), "result")


def test_a_deep_value_of_another_writer_is_a_named_error() -> None:
    with pytest.raises(UnreadableValue, match="nested too deeply"):
        from_json(nested(50_000, lambda v: [v]))


@pytest.mark.parametrize("value", ["\ud800", {"\udfff": 1}, 10**5_000, -(10**5_000), {1: "x\ud800"}], ids=lambda _: "")
def test_what_has_no_bytes_in_json_is_not_written(value: Any) -> None:
    with pytest.raises(NotJson, match=r"result.* (half a surrogate pair|whole number)"):
        to_json([value], "result")


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
        Tier.GOLD,
        Rights.READ | Rights.WRITE,
        Rights(0),
        Point(3, ("a",)),
        Ticket(id=UUID(int=5), due=date(2026, 1, 2), points=[Point(1)]),
        Swapped(b=1, a=2),
        Open.model_validate({"a": 2, "more": 3}),
        Open(),
        Box(item=1),
        {1, 2, 3},
        frozenset({"a"}),
        float("inf"),
        {"a": [1, 2.5, None, True, "x"], "b": {}},
    ],
    ids=repr,
)
def test_sets_classes_and_models_come_back_as_they_were(value: Any) -> None:
    written = to_json(value)
    assert isinstance(value, dict) == (written == value), "plain JSON stays plain"
    again = from_json(json.loads(json.dumps(written, allow_nan=False)))
    assert again == value
    if isinstance(value, BaseModel):
        assert (again.model_extra, again.model_fields_set) == (value.model_extra, value.model_fields_set)
    if isinstance(value, Open):
        assert again._private == 5


def test_what_could_not_be_read_again_is_not_written() -> None:
    class Odd:
        pass

    register(Odd, "tests.Odd", lambda _: 1, lambda _: 1 // 0)
    with pytest.raises(NotJson, match=r"result could be written down, but not read again: .*ZeroDivisionError"):
        Packed([Odd()], "result").read_back()
    with pytest.raises(NotJson, match="cannot be found"):
        to_json(Box[int](item=1))
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(NotJson, match="contains itself"):
        to_json(endless)


class Text(str):
    """A subclass as libraries make them."""

    __slots__ = ()

    def __str__(self) -> str:
        return "something else"


class Number(int):
    """Another one."""


class Pair(NamedTuple):
    x: int
    y: int


@pytest.mark.parametrize(
    ("value", "base"),
    [
        (OrderedDict(b=1, a=2), {"a": 2, "b": 1}),
        (defaultdict(list, a=[1]), {"a": [1]}),
        (Counter("aab"), {"a": 2, "b": 1}),
        (Pair(1, 2), (1, 2)),
        (bytearray(b"ab"), b"ab"),
        (Text("plain"), "plain"),
        (Number(7), 7),
        ({Text("key"): [Number(1)]}, {"key": [1]}),
    ],
)
async def test_subclasses_are_taken_as_their_base_kinds(value: Any, base: Any) -> None:
    desk = Desk()

    @workflow()
    async def work(ctx: Context) -> Any:
        return await ctx.step("s", lambda: value)

    result = (await work.start(desk.store(), run_id="r")).result
    assert (type(result), result) == (type(base), base)
    assert from_json(to_json(value)) == base


async def test_what_cannot_be_recorded_is_named_with_step_and_place() -> None:
    class Odd:
        """Nothing knows how to write it."""

    @workflow()
    async def work(ctx: Context) -> Any:
        return await ctx.step("fetch", lambda: {"pages": [1, Odd()]}, key="x")

    with pytest.raises(NotJson, match=r"result of step fetch\[x\]\.pages\[1\] is a .*Odd"):
        await work.start(Desk().store(), run_id="r")
