"""Types of events: one class each, however often it is loaded; and what does not fit its class is named."""

import importlib
import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pydantic import Field, computed_field

from holdfast.base.errors import Invalid
from holdfast.bus import BadPayload, Event, TypeTaken
from holdfast.bus.event import event_class
from tests.fakes.orders import OrderPlaced
from tests.unit.bus.desk import Desk

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
    with pytest.raises(Invalid, match="no name of an event type"):
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


async def test_a_payload_is_an_object() -> None:
    bus = Desk().bus()
    with pytest.raises(Invalid, match="list is not a payload"):
        await bus.publish_raw("order.placed", [1])  # type: ignore[arg-type]  # a mistake
    with pytest.raises(BadPayload, match=r"order\.placed: order_id"):
        OrderPlaced.from_payload({"order_id": 5})
