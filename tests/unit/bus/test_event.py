"""Events and envelopes: names, types, shapes of the specification, bad input."""

from typing import Any

import pytest

from holdfast.base.errors import Corrupt, Invalid
from holdfast.bus import BadPayload, UnknownEventType, layout
from holdfast.bus.event import Envelope, event_class
from tests.fakes.orders import OrderPlaced
from tests.unit.bus.desk import Renamed

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
    with pytest.raises(UnknownEventType, match="nobody"):
        event_class("nobody.knows")


def test_a_payload_must_fit() -> None:
    assert OrderPlaced.from_payload({"order_id": "o1"}) == OrderPlaced(order_id="o1")
    for payload in ({}, {"order_id": 5}, {"order_id": "o1", "more": 1}):
        with pytest.raises(BadPayload, match=r"order\.placed"):
            OrderPlaced.from_payload(payload)


def test_the_plain_shape_is_read_and_written_as_it_is() -> None:
    envelope = Envelope.parse({**PLAIN, "colour": "red"}, key="k")
    assert envelope.document() == {**PLAIN, "colour": "red"}
    assert envelope.key == "events/default/2026-02-11T12-00-00.000000+00-00_0b0e.json"
    assert layout.parse_name(envelope.name) == (envelope.created_ns, "0b0e")


@pytest.mark.parametrize("change", [{"payload": 5}, {"created_at": "soon"}, {"id": None, "payload": None}])
def test_what_is_no_event_is_said_to_be_none(change: dict[str, Any]) -> None:
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
