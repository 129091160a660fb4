"""A number of bytes of things worth keeping, by the exact bytes that they were made of; what was not asked for longest
goes first. Not for several threads at a time."""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

Thing = TypeVar("Thing")


class Kept(Generic[Thing]):
    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._things: OrderedDict[Hashable, tuple[Thing, int]] = OrderedDict()
        self.held_bytes = 0

    def __len__(self) -> int:
        return len(self._things)

    def find(self, key: Hashable) -> Thing | None:
        found = self._things.get(key)
        if found is None:
            return None
        self._things.move_to_end(key)
        return found[0]

    def keep(self, key: Hashable, thing: Thing, size: int) -> None:
        """``size``: bytes that it takes, and its key."""
        if key in self._things or size > self._most_bytes:
            return
        self._things[key] = thing, size
        self.held_bytes += size
        while self.held_bytes > self._most_bytes:
            _, (_, gone) = self._things.popitem(last=False)
            self.held_bytes -= gone
