"""Register: each operation once, at one request without contention."""

import random

import pytest

from holdfast.base import codec
from holdfast.base.errors import Ambiguous, Conflict, Corrupt, Incompatible, Invalid
from holdfast.base.ids import Ambient
from holdfast.objects.client import Client, Usage
from holdfast.objects.memory import MemoryStore, Shelf
from holdfast.objects.register import UNCHANGED, Plain, RecentOperations, Register
from holdfast.objects.retry import RetryPolicy
from holdfast.objects.store import Store

QUICK = RetryPolicy(attempts=5, base_ms=0, max_ms=0)
FORMAT = Plain("test.counter")


class StillClock:
    """Time stands still, so that a pause of the machine costs no request."""

    def wall_ns(self) -> int:
        return 1_700_000_000 * 10**9

    def monotonic_ns(self) -> int:
        return 0


def ambient(seed: int = 1) -> Ambient:
    return Ambient(StillClock(), random.Random(seed))


class Desk:
    """A shelf, a counted stack on it, and registers."""

    def __init__(self) -> None:
        self.shelf = Shelf()
        self.usage = Usage()
        self.store: Store = Client(MemoryStore(self.shelf), ambient=ambient(), retry=QUICK, usage=self.usage)

    def register(self, keep: int = 64, seed: int = 2, policy: RetryPolicy = QUICK) -> Register[int]:
        return Register(self.store, "counter", FORMAT, ambient(seed), history=RecentOperations(keep), policy=policy)


def plus_one(value: int | None) -> int:
    return (value or 0) + 1


async def test_a_warm_editor_pays_one_request() -> None:
    desk = Desk()
    register = desk.register()
    first = await register.edit("op-1", plus_one)
    assert (first.value, first.sequence, desk.usage.by_verb) == (1, 1, {"get": 1, "put": 1})
    for number in range(2, 6):
        await register.edit(f"op-{number}", plus_one)
    assert desk.usage.by_verb == {"get": 1, "put": 5}


async def test_a_lost_race_costs_one_read_and_one_more_write() -> None:
    desk = Desk()
    ours, theirs = desk.register(seed=2), desk.register(seed=3)
    await ours.edit("a", plus_one)
    await theirs.edit("b", plus_one)
    before = dict(desk.usage.by_verb)
    assert (await ours.edit("c", plus_one)).value == 3
    assert {verb: count - before[verb] for verb, count in desk.usage.by_verb.items()} == {"get": 1, "put": 2}


async def test_the_same_operation_again_is_recognised() -> None:
    desk = Desk()
    await desk.register().edit("op", plus_one)
    await desk.register().edit("other", plus_one)
    again = await desk.register(seed=9).edit("op", plus_one)
    assert (again.value, again.sequence, again.replayed) == (2, 1, True)


async def test_the_current_value_of_a_replay_is_read_not_remembered() -> None:
    desk = Desk()
    register = desk.register()
    await register.edit("op", plus_one)
    await desk.register(seed=3).edit("rival's", plus_one)
    again = await register.edit("op", plus_one)
    assert (again.value, again.sequence, again.replayed) == (2, 1, True)


async def test_of_two_callers_with_one_operation_the_slower_is_not_told_that_its_value_stands() -> None:
    """Both see the same state and try the same operation, each with a value of its own: only one value was applied."""
    desk = Desk()
    await desk.register().edit("start", lambda _: 0)
    twin = desk.register(seed=3)

    class Overtaken(MemoryStore):
        armed = True

        async def put(self, key, body, mode=None):  # type: ignore[no-untyped-def]
            if Overtaken.armed:
                Overtaken.armed = False
                await twin.edit("elect", lambda _: 2)
            return await super().put(key, body, mode)

    overtaken = Client(Overtaken(desk.shelf), ambient=ambient(), retry=QUICK, usage=Usage())
    slower: Register[int] = Register(overtaken, "counter", FORMAT, ambient(5), policy=QUICK)
    edited = await slower.edit("elect", lambda _: 1)
    assert (edited.value, edited.sequence, edited.replayed) == (2, 2, True)


async def test_a_log_without_marks_is_read() -> None:
    desk = Desk()
    await desk.register().edit("op", plus_one)
    stored = await desk.store.get("counter")
    document = codec.decode(stored.body, key="counter")
    document["log"]["recent"] = [each[:2] for each in document["log"]["recent"]]
    await desk.store.put("counter", codec.encode(document))
    assert (await desk.register(seed=4).edit("op", plus_one)).replayed
    assert (await desk.register(seed=4).edit("other", plus_one)).value == 2


async def test_landed_then_overwritten_is_not_applied_twice() -> None:
    """Our write lands, its answer is an echo, and a rival overwrites it before we look."""
    desk = Desk()
    register, rival = desk.register(seed=2), desk.register(seed=3)
    await register.edit("start", plus_one)

    class Overtaken(MemoryStore):
        armed = True

        async def put(self, key, body, mode=None):  # type: ignore[no-untyped-def]
            outcome = await super().put(key, body, mode)
            if Overtaken.armed:
                Overtaken.armed = False
                await rival.edit("rival", plus_one)
                return await super().put(key, body, mode)
            return outcome

    overtaken = Client(Overtaken(desk.shelf), ambient=ambient(), retry=QUICK, usage=Usage())
    editor: Register[int] = Register(overtaken, "counter", FORMAT, ambient(5), policy=QUICK)
    edited = await editor.edit("ours", plus_one)
    assert (edited.value, edited.sequence, edited.replayed) == (2, 2, False)
    final = await register.read()
    assert final is not None
    assert final.value == 3


async def test_too_far_behind_is_ambiguous() -> None:
    desk = Desk()
    register = desk.register(keep=3, seed=2)
    await register.edit("start", plus_one)

    class Swamped(MemoryStore):
        armed = True

        async def put(self, key, body, mode=None):  # type: ignore[no-untyped-def]
            if Swamped.armed:
                Swamped.armed = False
                for number in range(4):
                    await desk.register(keep=3, seed=10 + number).edit(f"rival-{number}", plus_one)
            return await super().put(key, body, mode)

    swamped = Client(Swamped(desk.shelf), ambient=ambient(), retry=QUICK, usage=Usage())
    editor: Register[int] = Register(swamped, "counter", FORMAT, ambient(5), history=RecentOperations(3), policy=QUICK)
    with pytest.raises(Ambiguous, match="it remembers 3"):
        await editor.edit("ours", plus_one)


async def test_deciding_not_to_write_is_believed_only_on_a_fresh_read() -> None:
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
        await Register(desk.store, "other", FORMAT, ambient()).edit("f", lambda _: UNCHANGED)


async def test_losing_every_race_is_a_conflict_and_applies_nothing() -> None:
    desk = Desk()
    await desk.register().edit("start", plus_one)
    turn = 0

    class Hostile(MemoryStore):
        async def put(self, key, body, mode=None):  # type: ignore[no-untyped-def]
            nonlocal turn
            turn += 1
            await desk.register(seed=100 + turn).edit(f"rival-{turn}", plus_one)
            return await super().put(key, body, mode)

    hostile = Client(Hostile(desk.shelf), ambient=ambient(), retry=QUICK, usage=Usage())
    editor: Register[int] = Register(hostile, "counter", FORMAT, ambient(5), policy=QUICK)
    with pytest.raises(Conflict, match="lost 5 races"):
        await editor.edit("ours", plus_one)
    final = await desk.register().read()
    assert final is not None
    assert final.value == 6


async def test_unknown_fields_survive_an_edit() -> None:
    desk = Desk()
    await desk.register().edit("a", plus_one)
    stored = await desk.store.get("counter")
    await desk.store.put("counter", stored.body.replace(b'{"format"', b'{"foreign":[1],"format"'))
    await desk.register().edit("b", plus_one)
    assert b'"foreign":[1]' in (await desk.store.get("counter")).body


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"not json", Corrupt),
        (b"[]", Corrupt),
        (b'{"format":"other","version":1}', Corrupt),
        (b'{"format":"test.counter","version":2}', Incompatible),
        (b'{"format":"test.counter","version":1,"log":7}', Corrupt),
        (b'{"format":"test.counter","version":1,"log":{"incarnation":"i","sequence":1,"recent":[7]}}', Corrupt),
    ],
)
async def test_what_is_not_a_register_is_refused_and_kept(body: bytes, error: type[Exception]) -> None:
    desk = Desk()
    await desk.store.put("counter", body)
    with pytest.raises(error):
        await desk.register().edit("a", plus_one)
    assert (await desk.store.get("counter")).body == body
