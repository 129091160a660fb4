"""Every outcome of a conditional write settles to the truth, at the request cost that the design states."""

import random

import pytest

from holdfast.base.clock import SystemClock
from holdfast.base.errors import Ambiguous, Corrupt, Unavailable
from holdfast.base.ids import Ambient
from holdfast.objects.client import Client
from holdfast.objects.retry import RetryPolicy
from holdfast.objects.store import ADDRESSED, CREATE, OVERWRITE, IfMatch, Lost, Mode, Object, Written
from tests.unit.objects.scripted import Scripted

QUICK = RetryPolicy(attempts=4, base_ms=0, max_ms=0)


def stack(backend: Scripted) -> Client:
    ambient = Ambient(SystemClock(), random.Random(1))
    return Client(backend, ambient=ambient, retry=QUICK)


@pytest.mark.parametrize(
    ("script", "puts", "reads"),
    [
        (["ok"], 1, 0),
        (["lost"], 1, 1),
        (["twice"], 1, 1),
        (["drop", "ok"], 2, 1),
        (["clash", "ok"], 2, 1),
        (["busy", "ok"], 2, 0),
        (["late", "ok"], 2, 2),
        (["drop", "lost"], 2, 2),
    ],
)
@pytest.mark.parametrize("mode", ["create", "if-match"])
async def test_own_write_is_reported_as_written(script: list[str], puts: int, reads: int, mode: str) -> None:
    backend = Scripted(*script)
    condition: Mode = CREATE
    if mode == "if-match":
        first = await backend.inner.put("k", b"before")
        assert isinstance(first, Written)
        condition = IfMatch(first.version)
    outcome = await stack(backend).put("k", b"ours", condition)
    current = await backend.inner.get("k")
    assert outcome == Written(current.version)
    assert current.body == b"ours"
    assert (backend.puts, backend.reads) == (puts, reads)


async def test_lost_race_carries_what_won() -> None:
    backend = Scripted()
    await backend.inner.put("k", b"theirs")
    outcome = await stack(backend).put("k", b"ours", CREATE)
    assert isinstance(outcome, Lost)
    assert outcome.current is not None
    assert outcome.current.body == b"theirs"
    assert (backend.puts, backend.reads) == (1, 1)


@pytest.mark.parametrize("word", ["drop", "late", "clash"])
async def test_open_to_the_end_is_ambiguous(word: str) -> None:
    backend = Scripted(*[word] * 8)
    backend.inner.put = _never  # type: ignore[method-assign]
    with pytest.raises(Ambiguous, match="may or may not have landed"):
        await stack(backend).put("k", b"ours", CREATE)


async def _never(key: str, body: bytes, mode: Mode = OVERWRITE) -> Lost:
    return Lost()


async def test_a_write_that_cannot_be_read_back_is_ambiguous() -> None:
    class Unread(Scripted):
        async def get(self, key: str) -> Object:
            raise Unavailable("503")

    with pytest.raises(Ambiguous, match="may or may not have landed"):
        await stack(Unread("lost")).put("k", b"ours", CREATE)


async def test_certainly_not_written_is_unavailable() -> None:
    backend = Scripted(*["busy"] * 8)
    with pytest.raises(Unavailable, match="503"):
        await stack(backend).put("k", b"ours", CREATE)
    assert await backend.inner.find("k") is None
    assert (backend.puts, backend.reads) == (4, 0)


async def test_a_refusal_after_an_open_attempt_is_ambiguous() -> None:
    """The last attempts certainly did nothing, but the first one may still land."""
    backend = Scripted("late", *["busy"] * 8)
    backend.inner.put = _never  # type: ignore[method-assign]
    with pytest.raises(Ambiguous, match="503"):
        await stack(backend).put("k", b"ours", CREATE)
    assert (backend.puts, backend.reads) == (4, 4)


async def test_no_attempt_begins_after_the_deadline() -> None:
    class Slow(SystemClock):
        now_ns = 0

        def monotonic_ns(self) -> int:
            self.now_ns += 400_000_000
            return self.now_ns

    backend = Scripted(*["busy"] * 8)
    policy = RetryPolicy(attempts=8, base_ms=0, max_ms=0, deadline_ms=1_000)
    with pytest.raises(Unavailable, match="503"):
        await Client(backend, ambient=Ambient(Slow(), random.Random(1)), retry=policy).put("k", b"ours", CREATE)
    assert backend.puts == 3


async def test_addressed_needs_no_read_when_it_exists() -> None:
    backend = Scripted()
    await backend.inner.put("sha/abc", b"bytes")
    assert await stack(backend).put("sha/abc", b"bytes", ADDRESSED) == Lost()
    assert (backend.puts, backend.reads) == (1, 0)


async def test_addressed_settles_by_existence_and_length() -> None:
    backend = Scripted("lost")
    assert isinstance(await stack(backend).put("sha/abc", b"bytes", ADDRESSED), Written)
    assert backend.puts == 1
    other = Scripted("drop")
    await other.inner.put("sha/abc", b"something longer")
    with pytest.raises(Corrupt, match="has 16 bytes, expected"):
        await stack(other).put("sha/abc", b"bytes", ADDRESSED)
