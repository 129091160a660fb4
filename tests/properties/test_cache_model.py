"""Two caches in one directory: every answer is the store's own, also after a power failure has damaged files."""

import asyncio
import random
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from holdfast.base.errors import NotFound
from holdfast.objects.client import Client
from holdfast.objects.store import CREATE, NotModified, Version
from tests.unit.objects.caching import World

KEYS = ("fixed/a", "fixed/b", "fixed/a/b", "loose")
MAX_BYTES = 6 * 4096
"""Two of the larger bodies fit, so that evictions happen."""

keys = st.sampled_from(KEYS)
bodies = st.integers(0, 9000).map(lambda size: random.Random(size).randbytes(size))
who = st.integers(0, 1)
operations = st.one_of(
    st.tuples(st.just("put"), who, keys, bodies),
    st.tuples(st.just("create"), who, keys, bodies),
    st.tuples(st.just("delete"), who, keys),
    st.tuples(st.just("delete_many"), who, st.lists(keys, max_size=3)),
    st.tuples(st.just("get"), who, keys),
    st.tuples(st.just("unless"), who, keys, st.booleans()),
    st.tuples(st.just("head"), who, keys),
    st.tuples(st.just("range"), who, keys, st.integers(0, 10_000), st.integers(0, 10_000)),
    st.tuples(st.just("link"), who, keys),
    st.tuples(st.just("together"), st.lists(st.tuples(who, keys), min_size=2, max_size=6)),
    st.tuples(st.just("crash"), st.integers(0, 1 << 16), st.sampled_from(["cut", "alter", "remove", "empty"])),
)


@given(st.lists(operations, min_size=1, max_size=40))
def test_every_answer_is_the_stores_own(script: list[tuple]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(check_answers(World(Path(folder), max_bytes=MAX_BYTES), script))


async def check_answers(world: World, script: list[tuple]) -> None:
    clients = [world.client(), world.client()]
    for verb, *arguments in script:
        if verb == "crash":  # of the machine: files may be damaged, and processes start again
            harm(world, *arguments)
            clients = [world.client(), world.client()]
        elif verb == "together":
            found = await asyncio.gather(*(clients[number].find(key) for number, key in arguments[0]))
            assert found == [await world.store.find(key) for _, key in arguments[0]]
        else:
            await step(world, clients[arguments[0]], verb, *arguments[1:])
        assert world.taken <= world.max_bytes


async def step(world: World, cache: Client, verb: str, key: Any, *rest: Any) -> None:
    truth = None if verb == "delete_many" else await world.store.find(key)
    match verb:
        case "put":
            await cache.put(key, rest[0])
        case "create":
            await cache.put(key, rest[0], CREATE)
        case "delete":
            await cache.delete(key)
        case "delete_many":
            await cache.delete_many(key)
        case _ if truth is None:
            try:
                answer = await read(world, cache, verb, key, *rest)
            except NotFound:
                return
            raise AssertionError(f"{verb} of the missing {key} gave {answer!r}")
        case "get":
            assert await cache.get(key) == truth
        case "unless":
            answer = await cache.get_unless(key, truth.version if rest[0] else Version("other"))
            assert answer == (NotModified() if rest[0] else truth)
        case "head":
            assert await cache.head(key) == await world.store.head(key)
        case "range":
            start, end = sorted(rest)
            assert (await cache.range(key, start, end)).body == truth.body[start:end]
        case "link":
            assert await linked(world, cache, key) == (truth.body if key != "loose" else None)


async def read(world: World, cache: Client, verb: str, key: str, *rest: int) -> object:
    if verb == "range":
        return (await cache.range(key, *sorted(rest))).body
    if verb == "link" and key != "loose":
        return await linked(world, cache, key)
    return await (cache.head(key) if verb == "head" else cache.get(key))


async def linked(world: World, cache: Client, key: str) -> bytes | None:
    path = world.folder / "link"
    try:
        return path.read_bytes() if await cache.link(key, path) is not None else None
    finally:
        path.unlink(missing_ok=True)


def harm(world: World, choice: int, how: str) -> None:
    """What a power failure does to one file."""
    files = world.files()
    if not files:
        return
    victim = files[choice % len(files)]
    body = bytearray(victim.read_bytes())
    if how == "remove":
        victim.unlink()
    elif how == "cut":
        victim.write_bytes(body[: len(body) // 2])
    elif how == "empty":
        victim.write_bytes(b"")
    elif body:
        body[choice % len(body)] ^= 0x40
        victim.write_bytes(body)
