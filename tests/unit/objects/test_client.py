"""The client: every outcome of a conditional write is settled, requests are retried and counted, arguments checked."""

import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import objects
from holdfast.base.clock import SystemClock
from holdfast.base.errors import Ambiguous, Contended, Corrupt, Denied, HoldfastError, Invalid, NotFound, Unavailable
from holdfast.base.ids import Ambient
from holdfast.objects.client import Client
from holdfast.objects.memory import MemoryStore, Shelf
from holdfast.objects.retry import RetryPolicy
from holdfast.objects.store import (
    ADDRESSED,
    CREATE,
    OVERWRITE,
    Create,
    IfMatch,
    Lost,
    Meta,
    Mode,
    Object,
    Page,
    Store,
    Version,
    Written,
)
from tests.unit.objects.scripted import Scripted

ATTEMPTS = 4
QUICK = RetryPolicy(attempts=ATTEMPTS, base_ms=0, max_ms=0)


def client(backend: Store) -> Client:
    return Client(backend, ambient=Ambient(SystemClock(), random.Random(1)), retry=QUICK)


# --- settling conditional writes ---


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
    outcome = await client(backend).put("k", b"ours", condition)
    current = await backend.inner.get("k")
    assert outcome == Written(current.version)
    assert current.body == b"ours"
    assert (backend.puts, backend.reads) == (puts, reads)


async def test_a_lost_race_returns_the_current_object() -> None:
    backend = Scripted()
    await backend.inner.put("k", b"theirs")
    outcome = await client(backend).put("k", b"ours", CREATE)
    assert isinstance(outcome, Lost)
    assert outcome.current is not None
    assert outcome.current.body == b"theirs"
    assert (backend.puts, backend.reads) == (1, 1)


@pytest.mark.parametrize("script", [["drop"] * 8, ["late"] * 8, ["clash"] * 8, ["late", *["busy"] * 8]])
async def test_a_write_that_may_land_after_the_last_attempt_is_ambiguous(script: list[str]) -> None:
    backend = Scripted(*script)

    async def never(key: str, body: bytes, mode: Mode = OVERWRITE) -> Lost:
        return Lost()

    backend.inner.put = never  # type: ignore[method-assign]
    with pytest.raises(Ambiguous, match="may or may not have landed"):
        await client(backend).put("k", b"ours", CREATE)
    assert (backend.puts, backend.reads) == (ATTEMPTS, ATTEMPTS)


async def test_a_write_that_cannot_be_read_back_is_ambiguous() -> None:
    class Unread(Scripted):
        async def get(self, key: str) -> Object:
            raise Unavailable("503")

    with pytest.raises(Ambiguous, match="may or may not have landed"):
        await client(Unread("lost")).put("k", b"ours", CREATE)


async def test_a_write_that_certainly_had_no_effect_is_unavailable() -> None:
    backend = Scripted(*["busy"] * 8)
    with pytest.raises(Unavailable, match="503"):
        await client(backend).put("k", b"ours", CREATE)
    assert await backend.inner.find("k") is None
    assert (backend.puts, backend.reads) == (ATTEMPTS, 0)


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


async def test_an_addressed_write_settles_by_existence_and_length() -> None:
    existing = Scripted()
    await existing.inner.put("sha/abc", b"bytes")
    assert await client(existing).put("sha/abc", b"bytes", ADDRESSED) == Lost()
    assert (existing.puts, existing.reads) == (1, 0), "an object that exists needs no read"
    unanswered = Scripted("lost")
    assert isinstance(await client(unanswered).put("sha/abc", b"bytes", ADDRESSED), Written)
    assert unanswered.puts == 1
    other = Scripted("drop")
    await other.inner.put("sha/abc", b"something longer")
    with pytest.raises(Corrupt, match="has 16 bytes, expected"):
        await client(other).put("sha/abc", b"bytes", ADDRESSED)


# --- retries ---


class Failing(MemoryStore):
    """Every verb fails so many times with an error before it works."""

    def __init__(self, error: HoldfastError, times: int) -> None:
        super().__init__()
        self.error = error
        self.left = times
        self.calls = 0

    def _fail(self) -> None:
        self.calls += 1
        if self.left:
            self.left -= 1
            raise self.error

    async def head(self, key: str) -> Meta:
        self._fail()
        return await super().head(key)

    async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
        self._fail()
        return await super().put(key, body, mode)

    async def delete(self, key: str) -> None:
        self._fail()
        await super().delete(key)


@pytest.mark.parametrize(
    "error", [Unavailable("503"), Unavailable("no answer", maybe_applied=True), Contended("409")], ids=str
)
async def test_reads_deletes_and_unconditional_writes_are_retried(error: HoldfastError) -> None:
    backend = Failing(error, ATTEMPTS - 1)
    assert isinstance(await client(backend).put("key", b"1"), Written)
    backend.left = ATTEMPTS - 1
    assert (await client(backend).head("key")).size == 1
    backend.left = ATTEMPTS - 1
    await client(backend).delete("key")
    assert backend.calls == 3 * ATTEMPTS
    assert backend.shelf.objects == {}
    denied = Failing(Denied("no"), 1)
    with pytest.raises(Denied):
        await client(denied).head("key")
    assert denied.calls == 1, "what fails again is not retried"


class Cut(MemoryStore):
    """A listing that breaks off after a page, until it has done so ``cuts`` times."""

    def __init__(self, shelf: Shelf, cuts: int, *, empty_first: bool = False) -> None:
        super().__init__(shelf, page_size=1)
        self.cuts = cuts
        self.listings = 0
        self._empty_first = empty_first

    async def list(self, prefix: str = "", *, after: str | None = None, delimiter: bool = False) -> AsyncIterator[Page]:
        self.listings += 1
        if self._empty_first:
            yield Page(())
            raise Unavailable("503")
        async for page in super().list(prefix, after=after, delimiter=delimiter):
            yield page
            if self.cuts:
                self.cuts -= 1
                raise Unavailable("503")


@pytest.mark.parametrize("delimiter", [False, True])
async def test_a_listing_is_resumed_after_the_last_item(delimiter: bool) -> None:
    shelf = Shelf()
    written = ["a", "a-b", "a/b", "a/c", "b", "c/d", "c/e/f", "g"]
    for key in written:
        await MemoryStore(shelf).put(key, b"")
    backend = Cut(shelf, cuts=6)  # more in all than attempts without progress
    listed: list[str] = []
    async for page in client(backend).list(delimiter=delimiter):
        listed += [entry.key for entry in page.entries] + [*page.folders]
    assert sorted(listed) == (["a", "a-b", "a/", "b", "c/", "g"] if delimiter else written)


async def test_pages_without_items_are_no_progress() -> None:
    backend = Cut(Shelf(), cuts=0, empty_first=True)
    with pytest.raises(Unavailable):
        [page async for page in client(backend).list()]
    assert backend.listings == ATTEMPTS


# --- counts and arguments ---


async def test_a_missing_object_is_an_answer_and_a_request_that_is_not_served_is_an_error() -> None:
    store = Client(Scripted("ok", "ok", "busy"), ambient=Ambient.system(), retry=RetryPolicy(attempts=1))
    for read in (store.get, store.head):
        with pytest.raises(NotFound):
            await read("meta/nothing")
    await store.put("meta/a", b"1", CREATE)
    assert isinstance(await store.put("meta/a", b"2", CREATE), Lost)
    assert [row["errors"] for row in store.usage.rows()] == [0, 0, 0]
    with pytest.raises(Unavailable):
        await store.put("meta/b", b"3", CREATE)
    assert (store.usage.at("put", "meta").requests, store.usage.at("put", "meta").errors) == (3, 1)


async def test_a_body_that_is_not_bytes_and_a_mode_that_is_none_are_refused() -> None:
    async with objects.open("memory:") as store:
        await store.put("k", b"before")
        bodies: list[Any] = ["text", Path("name"), [b"a", b"b"], None, 5]
        for body in bodies:
            with pytest.raises(Invalid, match=r"'k': the body is \w+, not bytes"):
                await store.put("k", body)
        modes: list[Any] = ["create", Create, IfMatch, None, Version("v")]
        for mode in modes:
            with pytest.raises(Invalid, match="is not a mode of writing"):
                await store.put("k", b"after", mode)
        with pytest.raises(Invalid, match="None is not a version"):
            await store.put("k", b"after", IfMatch(None))  # type: ignore[arg-type]  # the very mistake
        with pytest.raises(Invalid, match="cannot start at -3"):
            await store.range("k", -3, 5)
        assert (await store.get("k")).body == b"before"
        await store.put("l", bytearray(b"one"))  # type: ignore[arg-type]  # other kinds of bytes are accepted
        await store.put("m", memoryview(b"two"))  # type: ignore[arg-type]  # as above
        assert [(await store.get(key)).body for key in ("l", "m")] == [b"one", b"two"]
