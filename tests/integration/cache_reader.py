"""A process that uses a shared cache folder until it is killed: ``cache_reader.py FOLDER SEED``.

Every object's bytes follow from its key, so every answer can be judged here. One line is printed per ten operations.
"""

import asyncio
import random
import sys
from pathlib import Path

from holdfast.base.ids import Ambient
from holdfast.objects.cache import DiskCache
from holdfast.objects.memory import MemoryStore
from tests.unit.objects.caching import Caching

KEYS = [f"fixed/{number}" for number in range(60)]
MAX_BYTES = 400_000
LINE_EVERY = 10


def body_of(key: str) -> bytes:
    rng = random.Random(key)
    return rng.randbytes(rng.randrange(30_000))


async def filled_store() -> MemoryStore:
    store = MemoryStore()
    for key in KEYS:
        await store.put(key, body_of(key))
    return store


def cache_in(folder: Path, store: MemoryStore) -> Caching:
    ambient = Ambient.system()
    cache = DiskCache(folder, max_bytes=MAX_BYTES, namespace="shared", immutable=lambda _: True, ambient=ambient)
    return Caching(store, ambient=ambient, cache=cache)


async def use(cache: Caching, rng: random.Random) -> None:
    key = rng.choice(KEYS)
    body = body_of(key)
    match rng.randrange(8):
        case 0:
            start, end = sorted(rng.choices(range(30_000), k=2))
            assert (await cache.range(key, start, end)).body == body[start:end], f"range of {key}"
        case 1:
            assert (await cache.head(key)).size == len(body), f"head of {key}"
        case 2 | 3:
            async with cache.pinned(key) as path:
                await asyncio.sleep(0)
                assert path.read_bytes() == body, f"file of {key}"
        case 4:
            await cache.delete(key)
            await cache.put(key, body)
        case _:
            assert (await cache.get(key)).body == body, f"get of {key}"


async def main(folder: Path, rng: random.Random) -> None:
    cache = cache_in(folder, await filled_store())
    while True:
        for _ in range(LINE_EVERY):
            await use(cache, rng)
        assert cache.stats.failures == 0, cache.stats
        assert cache.stats.torn == 0, cache.stats
        print(cache.stats.hits, cache.stats.evictions, flush=True)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), random.Random(int(sys.argv[2]))))
