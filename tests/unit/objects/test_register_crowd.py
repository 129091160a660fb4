"""Registers in a crowd: an editor that others overtake again and again is neither confused nor starved."""

import random

import pytest

from holdfast.base.errors import Conflict
from holdfast.base.ids import Ambient
from holdfast.objects.client import Client, Usage
from holdfast.objects.memory import MemoryStore, Shelf
from holdfast.objects.register import Plain, RecentOperations, Register
from holdfast.objects.retry import RetryPolicy
from holdfast.objects.store import OVERWRITE, Lost, Mode, Written

FORMAT = Plain("test.counter")
KEEP = 8


class HandClock:
    """Time passes when the test says so."""

    def __init__(self) -> None:
        self.now_ns = 1_000

    def wall_ns(self) -> int:
        return self.now_ns

    def monotonic_ns(self) -> int:
        return self.now_ns

    def pass_ms(self, milliseconds: int) -> None:
        self.now_ns += milliseconds * 1_000_000


class Crowded(MemoryStore):
    """Before each of the next few writes of ours, rivals edit the register."""

    def __init__(self, desk: "Desk", *rivals: int) -> None:
        super().__init__(desk.shelf)
        self._desk = desk
        self._rivals = list(rivals)

    async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
        await self._desk.rivals(self._rivals.pop(0) if self._rivals else 0)
        return await super().put(key, body, mode)


class Desk:
    def __init__(self) -> None:
        self.shelf = Shelf()
        self.clock = HandClock()
        self.usage = Usage()
        self._others = 0

    def register(self, backend: MemoryStore | None = None, *, seed: int = 1, attempts: int = 50) -> Register[int]:
        ambient = Ambient(self.clock, random.Random(seed))
        usage = self.usage if backend is not None else Usage()
        retry = RetryPolicy(attempts=5, base_ms=0, max_ms=0)
        store = Client(backend or MemoryStore(self.shelf), ambient=ambient, retry=retry, usage=usage)
        return Register(store, "counter", FORMAT, ambient, history=RecentOperations(KEEP), policy=_policy(attempts))

    async def rivals(self, edits: int) -> None:
        rival = self.register(seed=1000 + self._others)
        for _ in range(edits):
            self._others += 1
            await rival.edit(f"rival-{self._others}", plus_one)

    async def value(self) -> int:
        found = await self.register().read()
        assert found is not None
        return found.value


def _policy(attempts: int) -> RetryPolicy:
    return RetryPolicy(attempts=attempts, base_ms=0, max_ms=0)


def plus_one(value: int | None) -> int:
    return (value or 0) + 1


async def test_an_editor_overtaken_again_and_again_is_not_confused() -> None:
    """Far more operations than the register remembers go by in all, but few at each try."""
    desk = Desk()
    editor = desk.register(Crowded(desk, *([KEEP - 1] * 10)))
    edited = await editor.edit("ours", plus_one)
    assert edited.value == 10 * (KEEP - 1) + 1
    assert not edited.replayed
    assert await desk.value() == edited.value


async def test_an_idle_editor_reads_before_it_writes() -> None:
    desk = Desk()
    editor = desk.register(MemoryStore(desk.shelf))
    await editor.edit("first", plus_one)
    desk.clock.pass_ms(60_000)
    await desk.rivals(10 * KEEP)
    before = dict(desk.usage.by_verb)
    assert (await editor.edit("second", plus_one)).value == 10 * KEEP + 2
    assert {verb: count - before[verb] for verb, count in desk.usage.by_verb.items()} == {"get": 1, "put": 1}


async def test_after_the_second_loss_it_looks_again_before_it_writes() -> None:
    """What was seen before the wait is old after it: a write over it would lose, at the price of two requests."""
    desk = Desk()
    await desk.rivals(1)
    editor = desk.register(Crowded(desk, 1, 1, 1))
    assert (await editor.edit("ours", plus_one)).value == 5
    # First read; four writes, three of them lost and read back; two of the three waits end in a look.
    assert desk.usage.by_verb == {"put": 4, "get": 1 + 3 + 2}


async def test_a_rival_with_the_same_operation_is_met_after_the_wait() -> None:
    """Two processes have the same operation: the second finds it done, even if that happened while it waited."""
    desk = Desk()
    await desk.rivals(1)
    twin = desk.register(seed=7)

    class Twinned(Crowded):
        writes = 0

        async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
            Twinned.writes += 1
            if Twinned.writes == 2:
                await twin.edit("ours", plus_one)
            return await super().put(key, body, mode)

    edited = await desk.register(Twinned(desk, 1, 1)).edit("ours", plus_one)
    assert edited.sequence == 3
    assert Twinned.writes == 2
    assert await desk.value() == 4  # two rivals' edits, the one from the start, and ours, once


async def test_losing_to_the_end_is_a_conflict_and_applies_nothing() -> None:
    desk = Desk()
    await desk.rivals(1)
    with pytest.raises(Conflict, match="lost 4 races and was not applied"):
        await desk.register(Crowded(desk, *([1] * 10)), attempts=4).edit("ours", plus_one)
    assert await desk.value() == 5
