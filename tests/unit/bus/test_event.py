"""Events, their types and envelopes: names, shapes of the specification, one class per type, bad input."""

import importlib
import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pydantic import Field, computed_field

from holdfast.base.errors import Corrupt, Invalid
from holdfast.bus import BadPayload, Event, TypeTaken, UnknownEventType, layout
from holdfast.bus.event import Envelope, event_class
from tests.fakes.orders import OrderPlaced
from tests.unit.bus.desk import Desk, Renamed

PLAIN: dict[str, Any] = {
    "id": "0b0e",
    "namespace": "default",
    "type": "order.created",
    "payload": {"a": 1},
    "created_at": "2026-02-11T12:00:00.000000+00:00",
    "priority": 100,
    "root_event_id": "0b0e",
    "chain_depth": 0,
}


def test_types_are_named_after_their_classes() -> None:
    assert (OrderPlaced.type_name, Renamed.type_name) == ("order.placed", "shop.renamed")
    assert event_class("shop.renamed") is Renamed
    with pytest.raises(UnknownEventType, match="unknown"):
        event_class("unknown.type")


def test_a_payload_must_fit() -> None:
    assert OrderPlaced.from_payload({"order_id": "o1"}) == OrderPlaced(order_id="o1")
    for payload in ({}, {"order_id": 5}, {"order_id": "o1", "more": 1}):
        with pytest.raises(BadPayload, match=r"order\.placed"):
            OrderPlaced.from_payload(payload)


def test_fields_that_do_not_fit_are_an_error_of_the_library() -> None:
    class Parcel(Event):
        grams: int
        order: OrderPlaced | None = None

    cases: list[tuple[dict[str, Any], str]] = [
        ({}, "parcel: grams is missing"),
        ({"grams": "heavy"}, "parcel: grams: Input should be a valid integer.*, found 'heavy'"),
        ({"grams": 1, "weight": 1}, "parcel has no field weight"),
        ({"grams": 1, "order": {}}, "order.placed: order_id is missing"),
    ]
    for fields, message in cases:
        with pytest.raises(BadPayload, match=message):
            Parcel(**fields)


def test_the_plain_shape_is_read_and_written_as_it_is() -> None:
    envelope = Envelope.parse({**PLAIN, "colour": "red"}, key="k")
    assert envelope.document() == {**PLAIN, "colour": "red"}
    assert envelope.key == "events/default/2026-02-11T12-00-00.000000+00-00_0b0e.json"
    assert layout.parse_name(envelope.name) == (envelope.created_ns, "0b0e")


@pytest.mark.parametrize("change", [{"payload": 5}, {"created_at": "soon"}, {"id": None, "payload": None}])
def test_a_document_that_is_not_an_event_is_corrupt(change: dict[str, Any]) -> None:
    with pytest.raises(Corrupt, match="k: not an event"):
        Envelope.parse({**PLAIN, **change}, key="k")


@pytest.mark.parametrize("name", ["", "a/b", ".", "x" * 201, "a\nb"])
def test_names_that_cannot_stand_in_a_key_are_refused(name: str) -> None:
    with pytest.raises(Invalid, match="namespace"):
        layout.check_part("namespace", name)


def test_names_sort_by_time() -> None:
    names = [layout.event_name(1_800_000_000 * 10**9 + step * 1_000, f"{9 - step}") for step in range(9)]
    assert names == sorted(names)
    assert all(layout.time_name(1_800_000_000 * 10**9) < name for name in names)
    with pytest.raises(Corrupt):
        layout.parse_name("readme")


MODULE = """
from holdfast.bus import Event

class RegistryOrder(Event):
    order_id: str{more}
"""


def declared(module: str, name: str = "RegistryNote", **members: Any) -> type[Event]:
    return type(name, (Event,), {"__module__": module, "__qualname__": name, "__annotations__": {}, **members})


def test_a_second_class_with_the_same_type_is_refused() -> None:
    first = declared("shop.orders")
    with pytest.raises(TypeTaken, match=r"shop\.returns\.RegistryNote .* 'registry\.note', which shop\.orders"):
        declared("shop.returns")
    with pytest.raises(TypeTaken, match=r"'registry\.note'"):
        declared("shop.orders", "RegistryOther", type_name="registry.note")
    assert event_class("registry.note") is first
    assert event_class("order.placed") is OrderPlaced


def test_the_same_class_again_replaces_itself() -> None:
    """A cell of a notebook that is run again, or a function with a class in it that is called again."""
    classes = [declared("__main__", "RegistryCell") for _ in range(2)]
    assert event_class("registry.cell") is classes[1]


def test_a_module_may_be_reloaded_and_run_as_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    path = tmp_path / "registry_reload.py"
    path.write_text(MODULE.format(more=""), encoding="utf-8")
    module = importlib.import_module("registry_reload")
    try:
        path.write_text(MODULE.format(more="\n    amount: int = 0"), encoding="utf-8")
        importlib.invalidate_caches()
        module = importlib.reload(module)
        assert event_class("registry.order") is module.RegistryOrder
        same = importlib.util.spec_from_file_location("registry_again", path)  # as if it were __main__
        assert same is not None
        again = importlib.util.module_from_spec(same)
        monkeypatch.setitem(sys.modules, "registry_again", again)
        assert same.loader is not None
        same.loader.exec_module(again)
        assert event_class("registry.order") is again.RegistryOrder
    finally:
        sys.modules.pop("registry_reload")


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 501, 5])
def test_a_type_must_be_a_name(name: Any) -> None:
    with pytest.raises(Invalid, match="not a name for an event type"):
        declared("shop.bad", "RegistryBad", type_name=name)


class RegistryOdd(Event):
    type_name: ClassVar[str] = "registry.odd"
    number: float = Field(default=0.0, alias="no")
    thing: Any = None

    @computed_field  # type: ignore[prop-decorator]  # as its documentation has it
    @property
    def twice(self) -> float:
        return self.number * 2


def test_what_was_published_can_be_read_back() -> None:
    for given in (RegistryOdd.from_payload({"no": 3.0}), RegistryOdd(number=4.0, thing=[1, {"a": None}])):
        assert RegistryOdd.from_payload(given.to_payload()) == given


@pytest.mark.parametrize("wrong", [{"no": float("nan")}, {"thing": object()}, {"thing": "\ud800"}])
async def test_what_has_no_json_form_is_named_and_not_published(wrong: dict[str, Any]) -> None:
    desk = Desk()
    with pytest.raises(Invalid, match="JSON form"):
        await desk.bus().publish(RegistryOdd(**wrong))
    assert desk.documents("events/") == {}
