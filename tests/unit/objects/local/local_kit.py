"""What tests of the local store share: the keys that it lists, the files that are there, and its locks."""

import os
from pathlib import Path

from holdfast.objects.local.files import Directory
from holdfast.objects.local.locks import Locks
from holdfast.objects.store import Store


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


def locks(root: Path) -> Locks:
    """Those of the store, to be taken by a test."""
    return Locks(Directory.at(os.fsencode(root / ".%holdfast/locks")))
