"""Register: what it costs, how it waits, what it refuses. That each operation is applied once is simulated."""

import random

import pytest

from holdfast.base.errors import Ambiguous, Conflict, Corrupt, Incompatible, Invalid
from holdfast.base.ids import Ambient
from holdfast.objects.client import Client, Usage
from holdfast.objects.memory import MemoryStore, Shelf
from holdfast.objects.register import UNCHANGED, Plain, Register
from holdfast.objects.retry import RetryPolicy
from holdfast.objects.store import OVERWRITE, Lost, Mode, Written

FORMAT = Plain("test.counter")
KEEP = 8


class HandClock:
    """Time passes when the test says so, and a pause of the machine costs no request."""

    def __init__(self) -> None:
        self.now_ns = 1_000

    def wall_ns(self) -> int:
        return self.now_ns

    def monotonic_ns(self) -> int:
        return self.now_ns


class Crowded(MemoryStore):
    """Before each of the next few writes of ours, rivals edit the register so many times."""

    def __init__(self, desk: "Desk", *rivals: int) -> None:
        super().__init__(desk.shelf)
        self._desk = desk
        self._rivals = list(rivals)

    async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
        await self._desk.rivals(self._rivals.pop(0) if self._rivals else 0)
        return await super().put(key, body, mode)


class Desk:
    """A shelf, and registers of one counter on it. Requests are counted for those that have a backend of their own."""

    def __init__(self) -> None:
        self.shelf = Shelf()
        self.clock = HandClock()
        self.usage = Usage()
        self._others = 0

    def client(self, backend: MemoryStore | None = None, *, seed: int = 1) -> Client:
        usage = self.usage if backend is not None else Usage()
        retry = RetryPolicy(attempts=5, base_ms=0, max_ms=0)
        return Client(backend or MemoryStore(self.shelf), ambient=self.ambient(seed), retry=retry, usage=usage)

    def ambient(self, seed: int) -> Ambient:
        return Ambient(self.clock, random.Random(seed))

    def register(self, backend: MemoryStore | None = None, *, seed: int = 1, attempts: int = 50) -> Register[int]:
        policy = RetryPolicy(attempts=attempts, base_ms=0, max_ms=0)
        store = self.client(backend, seed=seed)
        return Register(store, "counter", FORMAT, self.ambient(seed), keep=KEEP, policy=policy)

    def counted(self) -> Register[int]:
        return self.register(MemoryStore(self.shelf))

    async def rivals(self, edits: int) -> None:
        rival = self.register(seed=1000 + self._others)
        for _ in range(edits):
            self._others += 1
            await rival.edit(f"rival-{self._others}", plus_one)

    async def value(self) -> int:
        found = await self.register().read()
        assert found is not None
        return found.value


def plus_one(value: int | None) -> int:
    return (value or 0) + 1


async def test_requests_of_an_edit() -> None:
    desk = Desk()

    async def cost(editor: Register[int], operation: str) -> dict[str, int]:
        desk.usage.tallies.clear()
        await editor.edit(operation, plus_one)
        return desk.usage.by_verb

    editor = desk.counted()
    assert await cost(editor, "cold") == {"get": 1, "put": 1}
    assert await cost(editor, "warm") == {"put": 1}
    await desk.rivals(1)
    assert await cost(editor, "lost") == {"get": 1, "put": 2}
    desk.clock.now_ns += 60_000 * 1_000_000
    await desk.rivals(10 * KEEP)
    assert await cost(editor, "idle") == {"get": 1, "put": 1}  # it reads before it writes
    # First read; four writes, three of them lost and read back; after two of the waits it looks before it writes.
    assert await cost(desk.register(Crowded(desk, 1, 1, 1)), "crowded") == {"put": 4, "get": 1 + 3 + 2}
    assert await desk.value() == 5 + 1 + 10 * KEEP + 3


async def test_a_repeated_operation_is_recognised_and_returns_the_current_value() -> None:
    desk = Desk()
    register = desk.register()
    await register.edit("op", plus_one)
    await desk.rivals(1)
    for editor in (register, desk.register(seed=9)):
        again = await editor.edit("op", plus_one)
        assert (again.value, again.sequence, again.replayed) == (2, 1, True)
    assert (await desk.register(seed=4).edit("other", plus_one)).value == 3


async def test_of_two_callers_with_one_operation_id_one_is_applied_and_the_other_replayed() -> None:
    """Both see the same state and try the same operation, each with a value of its own."""
    desk = Desk()
    await desk.register().edit("start", lambda _: 0)
    twin = desk.register(seed=3)

    class Overtaken(MemoryStore):
        armed = True

        async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
            if Overtaken.armed:
                Overtaken.armed = False
                await twin.edit("elect", lambda _: 2)
            return await super().put(key, body, mode)

    edited = await desk.register(Overtaken(desk.shelf), seed=5).edit("elect", lambda _: 1)
    assert (edited.value, edited.sequence, edited.replayed) == (2, 2, True)


async def test_an_editor_that_loses_races() -> None:
    """Far more operations than the register remembers may go by in all, but no more than that at one try."""
    desk = Desk()
    edited = await desk.register(Crowded(desk, *([KEEP - 1] * 10))).edit("ours", plus_one)
    assert (edited.value, edited.replayed) == (10 * (KEEP - 1) + 1, False)
    with pytest.raises(Ambiguous, match=f"it remembers {KEEP}"):
        await desk.register(Crowded(desk, KEEP + 1), seed=5).edit("behind", plus_one)
    before = await desk.value()
    with pytest.raises(Conflict, match="lost 4 races and was not applied"):
        await desk.register(Crowded(desk, *([1] * 10)), attempts=4, seed=6).edit("theirs", plus_one)
    assert await desk.value() == before + 4


async def test_a_decision_not_to_write_needs_a_fresh_read() -> None:
    desk = Desk()
    stale, other = desk.register(seed=2), desk.register(seed=3)
    await stale.edit("a", plus_one)
    await other.edit("b", lambda _: 10)
    kept = await stale.edit("c", lambda value: UNCHANGED if value == 1 else (value or 0) + 1)
    assert kept.value == 11

    def refuse(value: int | None) -> int:
        raise ValueError(f"saw {value}")

    await other.edit("d", lambda _: 20)
    with pytest.raises(ValueError, match="saw 20"):
        await stale.edit("e", refuse)
    with pytest.raises(Invalid, match="does not exist"):
        await Register(desk.client(), "other", FORMAT, desk.ambient(1)).edit("f", lambda _: UNCHANGED)


async def test_unknown_fields_survive_an_edit() -> None:
    desk = Desk()
    await desk.register().edit("a", plus_one)
    stored = await desk.client().get("counter")
    await desk.client().put("counter", stored.body.replace(b'{"format"', b'{"foreign":[1],"format"'))
    await desk.register().edit("b", plus_one)
    assert b'"foreign":[1]' in (await desk.client().get("counter")).body


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"not json", Corrupt),
        (b'{"format":"other","version":1}', Corrupt),
        (b'{"format":"test.counter","version":2}', Incompatible),
        (b'{"format":"test.counter","version":1,"log":7}', Corrupt),
        (b'{"format":"test.counter","version":1,"log":{"incarnation":"i","sequence":1,"recent":[7]}}', Corrupt),
    ],
)
async def test_an_object_that_is_not_a_register_is_refused_and_not_changed(body: bytes, error: type[Exception]) -> None:
    desk = Desk()
    await desk.client().put("counter", body)
    with pytest.raises(error):
        await desk.register().edit("a", plus_one)
    assert (await desk.client().get("counter")).body == body
