"""Events that several test suites share: two classes in one process cannot have the same event type."""

from holdfast.bus import Event


class OrderPlaced(Event):
    order_id: str
