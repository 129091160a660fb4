"""``holdfast.open`` for async code, ``holdfast.connect`` for blocking code: the same platform."""

import gc
import threading
from typing import Any

import pytest

import holdfast
from holdfast import objects, runs
from holdfast.base import codec
from holdfast.base.config import Settings, StoreSection
from holdfast.base.errors import Incompatible, Invalid, NotFound
from holdfast.objects import CREATE, IfMatch, Lost, NotModified, Written
from holdfast.objects.memory import MemoryStore
from holdfast.objects.open import FORMAT_KEY, FORMAT_NAME
from holdfast.ontology import Entity, Field


class Note(Entity):
    id: Field[str] = Field(primary_key=True)


async def test_open_gives_store_register_and_lease() -> None:
    async with holdfast.open("memory:") as hf:
        assert isinstance(await hf.store.put("a", b"1", CREATE), Written)
        assert (await hf.register("counter").edit("op", lambda value: (value or 0) + 1)).value == 1
        async with hf.lease("lease", "me").hold() as grant:
            assert grant.epoch == 1


async def test_without_an_address_the_settings_decide() -> None:
    settings = Settings(store=StoreSection(uri="memory:from-settings"))
    async with holdfast.open(settings=settings) as hf:
        assert hf.store.spec.uri == "memory:from-settings"


class TestConnect:
    def test_every_verb_of_the_store_blocks(self) -> None:
        with holdfast.connect("memory:") as hf:
            store = hf.store
            written = store.put("a/b", b"one", CREATE)
            assert isinstance(written, Written)
            lost = store.put("a/b", b"two", CREATE)
            assert isinstance(lost, Lost)
            assert lost.current is not None
            assert lost.current.body == b"one"
            assert isinstance(store.put("a/b", b"two", IfMatch(written.version)), Written)
            found = store.get("a/b")
            assert found.body == b"two"
            assert store.get_unless("a/b", found.version) == NotModified()
            assert store.head("a/b").size == 3
            assert store.range("a/b", 1, 3).body == b"wo"
            assert list(store.keys()) == ["a/b"]
            assert [page.folders for page in store.list(delimiter=True)] == [("a/",)]
            store.delete("a/b")
            assert store.find("a/b") is None
            with pytest.raises(NotFound, match="a/b"):
                store.get("a/b")

    def test_register_and_lease_block_too(self) -> None:
        with holdfast.connect("memory:") as hf:
            register = hf.register("counter")
            for turn in range(3):
                register.edit(f"turn-{turn}", lambda value: (value or 0) + 1)
            found = register.read()
            assert found is not None
            assert found.value == 3
            lease = hf.lease("lease", "me", ttl_ms=60_000)
            with lease.hold() as grant:
                lease.guard(grant)
                assert grant.epoch == 1
            assert grant.ended

    def test_its_thread_ends_with_it(self) -> None:
        before = threading.active_count()
        with holdfast.connect("memory:") as hf:
            hf.store.put("a", b"x")
        assert threading.active_count() == before
        with pytest.raises(Invalid, match="this connection is closed"):
            hf.store.get("a")

    def test_without_a_block_until_it_is_closed(self) -> None:
        before = threading.active_count()
        hf = holdfast.connect("memory:")
        hf.store.put("a", b"x")
        assert hf.store.get("a").body == b"x"
        hf.close()
        hf.close()
        assert threading.active_count() == before
        with pytest.raises(Invalid, match="this connection is closed"):
            hf.store.get("a")

    def test_an_address_that_cannot_be_read_leaves_nothing_without_a_block_either(self) -> None:
        before = threading.active_count()
        with pytest.raises(Invalid, match="no known scheme"):
            holdfast.connect("nowhere")
        assert threading.active_count() == before


class TestOpen:
    async def test_awaited_it_stays_open_until_it_is_closed(self) -> None:
        hf = await holdfast.open("memory:")
        gc.collect()
        await hf.store.put("a", b"x")
        assert (await hf.store.get("a")).body == b"x"
        await hf.close()
        await hf.close()

    async def test_a_block_closes_what_it_opened(self, monkeypatch: pytest.MonkeyPatch) -> None:
        closed: list[str] = []

        async def note(store: MemoryStore) -> None:
            closed.append("closed")

        monkeypatch.setattr(MemoryStore, "close", note)
        opening = holdfast.open("memory:")
        async with opening as hf:
            await hf.store.put("a", b"x")
            with pytest.raises(Invalid, match="open already"):
                await opening.__aenter__()
            assert closed == []
        assert closed == ["closed"]

    async def test_a_store_that_is_refused_is_closed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        closed: list[str] = []

        async def note(store: MemoryStore) -> None:
            closed.append("closed")

        monkeypatch.setattr(MemoryStore, "close", note)
        async with objects.open("memory:newer") as store:
            await store.put(FORMAT_KEY, codec.encode({"format": FORMAT_NAME, "version": 99}))
        with pytest.raises(Incompatible):
            await objects.open("memory:newer")
        assert closed == ["closed", "closed"]


def test_the_package_names_what_it_has() -> None:
    assert {"Holdfast", "connect", "objects", "open"} <= set(holdfast.__all__)
    assert all(hasattr(holdfast, name) for name in holdfast.__all__)
    with pytest.raises(AttributeError, match="module 'holdfast' has no attribute 'nothing'"):
        _ = holdfast.nothing


def test_blocking_code_reaches_every_function_that_takes_a_store() -> None:
    @runs.workflow
    async def greet(ctx: runs.Context, name: str) -> str:
        return f"hello {name}"

    with holdfast.connect("memory:") as hf:
        assert hf.start(greet, "Ada", run_id="r").result == "hello Ada"
        assert hf.call(runs.describe, "r").status == "success"
        assert [summary.run_id for summary in hf.call(runs.find, status="success")] == ["r"]
        assert {"store", "start", "call"} <= set(dir(hf))
        assert "memory:" in repr(hf)


async def test_what_is_not_open_yet_says_how_it_is_opened() -> None:
    opening: Any = holdfast.open("memory:")
    with pytest.raises(TypeError, match="async with"):
        opening.__enter__()
    with pytest.raises(AttributeError, match=r"no 'store' before it is open: .*holdfast\.connect"):
        _ = opening.store


@pytest.mark.parametrize("wrong", [[Note], Note(id="n"), "Note", None])
async def test_a_session_refuses_objects_that_are_not_types(wrong: Any) -> None:
    async with holdfast.open("memory:") as hf:
        with pytest.raises(Invalid, match=f"expected, found a {type(wrong).__name__}") as answer:
            hf.ontology(wrong)
        assert "hf.ontology(Customer, Order)" in (answer.value.remedy or "")
