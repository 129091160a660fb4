"""Looking at a local store from both sides: the keys that it lists, and the files that are there."""

import asyncio
from contextlib import suppress
from pathlib import Path

from holdfast.objects.local import LocalStore
from holdfast.objects.store import Store


def wishes(store: LocalStore) -> int:
    """How many wait until a folder is forced to disk once more."""
    loops = store._root.writable().syncs._loops.values()
    return sum(len(under_way.wishes) for each in loops for under_way in each.rounds.values())


async def keys(store: Store, prefix: str = "", *, after: str | None = None) -> list[str]:
    return [entry.key async for page in store.list(prefix, after=after) for entry in page.entries]


async def contents(store: Store) -> dict[str, bytes]:
    return {key: (await store.get(key)).body for key in await keys(store)}


def files(root: Path) -> list[str]:
    """Everything below the root, apart from the store's own folder."""
    paths = [path.relative_to(root) for path in root.rglob("*")]
    return sorted(str(path) for path in paths if path.parts[0] != ".%holdfast")


def staged(root: Path) -> list[str]:
    return [path.name for path in (root / ".%holdfast/staging").glob("*")]


async def open_below(root: Path) -> int:
    """How many files and folders below the root this process has open for longer, with those that have no name."""
    await asyncio.sleep(0.05)
    found = 0
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            found += str(link.readlink()).startswith(str(root))
    return found
