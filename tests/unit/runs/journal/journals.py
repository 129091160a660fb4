"""What tests of journals share: the production stack with every request counted, and short ways to journals on it."""

import random
from typing import Any

from holdfast.base.clock import Clock, SystemClock
from holdfast.base.errors import Unavailable
from holdfast.base.ids import Ambient
from holdfast.objects.client import Client, Usage
from holdfast.objects.memory import MemoryStore, Shelf
from holdfast.objects.retry import RetryPolicy
from holdfast.objects.store import OVERWRITE, Lost, Mode, Object, Store, Written
from holdfast.runs import layout
from holdfast.runs.journal.entry import Draft
from holdfast.runs.journal.history import History, read_history
from holdfast.runs.journal.journal import Journal
from holdfast.runs.journal.segments import SegmentPolicy

QUICK = RetryPolicy(attempts=3, base_ms=0, max_ms=0)
TINY = SegmentPolicy(lines=2, size=1, fan_in=3)
"""Seals every two lines and merges every three segments."""


class Archive:
    """A shelf with journals on it."""

    def __init__(self, backend: Store | None = None, *, seed: int = 1, clock: Clock | None = None) -> None:
        self.shelf = Shelf()
        self.backend = backend if backend is not None else MemoryStore(self.shelf, clock=clock)
        self.usage = Usage()
        self.ambient = Ambient(clock if clock is not None else SystemClock(), random.Random(seed))
        self.store = Client(self.backend, ambient=self.ambient, retry=QUICK, usage=self.usage)

    async def history(self, run_id: str = "r") -> History:
        found = await read_history(self.store, run_id)
        assert found is not None
        return found

    async def begin(
        self, run_id: str = "r", *then: Draft, policy: SegmentPolicy | None = None, **start: Any
    ) -> Journal:
        """A new session on the run as it stands."""
        history = await read_history(self.store, run_id)
        return await Journal.begin(self.store, self.ambient, run_id, history, {"workflow": "w", **start}, then, policy)

    def body(self, run_id: str = "r") -> bytes:
        """The journal object as it lies there."""
        return self.shelf.objects[layout.journal_key(run_id)].body

    def lines(self, run_id: str = "r") -> list[bytes]:
        return self.body(run_id).splitlines()

    def keys(self, word: str) -> list[str]:
        return sorted(key for key in self.shelf.objects if word in key)

    def spent(self) -> dict[str, int]:
        """Requests since the last call, by verb."""
        spent = dict(self.usage.by_verb)
        self.usage.tallies.clear()
        return spent


class Unsteady(MemoryStore):
    """Refuses to answer for a while: requests are lost, or land without an answer."""

    def __init__(self) -> None:
        super().__init__()
        self.mode = "ok"

    async def get(self, key: str) -> Object:
        if self.mode != "ok":
            raise Unavailable(f"{key}: down")
        return await super().get(key)

    async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
        if self.mode == "ok":
            return await super().put(key, body, mode)
        if self.mode == "lands":
            await super().put(key, body, mode)
        raise Unavailable(f"{key}: down", maybe_applied=True)


def step(number: int | str, result: Any = None) -> Draft:
    return Draft("step", {"stepId": f"s{number}", "name": "s", "result": result})
