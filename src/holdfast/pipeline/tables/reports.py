"""Where keys come from that S3 itself names: files of event notifications, and inventory reports.

A location is a path on this machine (a file, or a folder with all its files) or a URI such as
``s3://bucket/path/manifest.json``; settings reach other buckets as they reach the store's own. Keys are handed on group
by group, so that a report of any size passes through.

Errors: ``NotFound`` for a location that is not there. Of notifications, a file that is none or cannot be read is passed
to ``refused``, if there is one, and the others are taken. An inventory is whole or nothing: a part that is missing or
damaged ends it.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath

from holdfast.base.aio import blocking
from holdfast.base.config import Settings
from holdfast.base.errors import HoldfastError, Invalid, NotFound
from holdfast.objects.open import open_store
from holdfast.objects.store import Store
from holdfast.objects.uri import SCHEMES, StoreSpec
from holdfast.telemetry.accept import notices

GROUP = 20_000
Refused = Callable[[HoldfastError], None]
"""Called with a file that is passed over, and the reason."""


async def event_keys(
    location: str, prefix: str, settings: Settings, refused: Refused | None = None
) -> AsyncIterator[list[str]]:
    """Keys that notifications name, in groups."""
    group: list[str] = []
    async for name, read in _files(location, settings):
        try:
            group += list(notices.event_keys(await read(), name, prefix))
        except (Invalid, NotFound) as error:
            if refused is None:
                raise
            refused(error)
        while len(group) >= GROUP:
            yield group[:GROUP]
            group = group[GROUP:]
    if group:
        yield group


async def inventory_keys(
    location: str, prefix: str, settings: Settings, bucket: str | None = None
) -> AsyncIterator[list[str]]:
    """Keys that a report lists, in groups; ``location`` is that of its manifest.json. It is ``Invalid`` if it is known
    to be another bucket's.
    """
    group: list[str] = []
    async with _beside(location, settings) as (read, name):
        inventory = _of(bucket, notices.read_inventory(await read(None), name), name)
        for key in inventory.files:
            for found in notices.inventory_keys(inventory, await read(key), key, prefix):
                group.append(found)
                if len(group) >= GROUP:
                    yield group
                    group = []
    if group:
        yield group


async def inventory_made_ns(location: str, settings: Settings, bucket: str | None = None) -> int:
    """When the report at ``location`` was begun, by S3's clock."""
    async with _beside(location, settings) as (read, name):
        return _of(bucket, notices.read_inventory(await read(None), name), name).made_ns


def bucket_of(spec: StoreSpec) -> str | None:
    """The bucket of a store as its inventory calls it; None where there is none, or it goes by another name."""
    return spec.place if spec.scheme == "s3" and not spec.place.endswith("-s3alias") else None


def _of(bucket: str | None, inventory: notices.Inventory, name: str) -> notices.Inventory:
    if bucket is not None and inventory.bucket != bucket:
        raise Invalid(
            f"{name}: the inventory of bucket {inventory.bucket}, and the store is in {bucket}",
            remedy="give the report of the store's own bucket",
        )
    return inventory


class _Reader:
    """The report's own file (None), and its parts by their keys."""

    def __init__(self, store: Store | None, manifest: str) -> None:
        self._store = store
        self._manifest = manifest

    async def __call__(self, key: str | None) -> bytes:
        if self._store is not None:
            return (await self._store.get(self._manifest if key is None else key)).body
        path = Path(self._manifest) if key is None else _local(Path(self._manifest), key)
        try:
            return await blocking(path.read_bytes)
        except OSError as error:
            raise NotFound(f"{path}: {error.strerror}") from error


@asynccontextmanager
async def _beside(location: str, settings: Settings) -> "AsyncIterator[tuple[_Reader, str]]":
    if not _is_uri(location):
        yield _Reader(None, location), location
        return
    spec = StoreSpec.parse(location, settings)
    # Parts are named from the root of the bucket; a folder has no such root, so they are looked for around the report.
    if spec.scheme == "file":
        yield _Reader(None, spec.place), location
        return
    async with open_store(replace(spec, prefix=""), any_format=True) as store:
        yield _Reader(store, spec.prefix), location


def _local(manifest: Path, key: str) -> Path:
    """A part of a report that was copied from its bucket: below some folder that also holds the report."""
    names = PurePosixPath(key).parts
    for folder in manifest.resolve().parents:
        for begin in range(len(names)):
            path = folder.joinpath(*names[begin:])
            if path.is_file():
                return path
    raise NotFound(f"{manifest}: its part {key} is not beside it", remedy="copy the whole report, folders and all")


async def _files(location: str, settings: Settings) -> AsyncIterator[tuple[str, Callable[[], Awaitable[bytes]]]]:
    """Names, each with what reads it: of ``NotFound`` and ``Invalid`` the others know nothing."""
    if _is_uri(location) and not location.startswith("file:"):
        spec = StoreSpec.parse(location, settings)
        async with open_store(replace(spec, prefix=""), any_format=True) as store:
            found = await store.find(spec.prefix) if spec.prefix else None
            if found is not None:
                yield location, partial(_body, store, spec.prefix)
                return
            async for key in store.keys(f"{spec.prefix}/" if spec.prefix else ""):
                yield key, partial(_body, store, key)
        return
    for path in _paths(Path(location.removeprefix("file:"))):
        yield str(path), partial(_bytes, path)


async def _body(store: Store, key: str) -> bytes:
    return (await store.get(key)).body


async def _bytes(path: Path) -> bytes:
    try:
        return await blocking(path.read_bytes)
    except OSError as error:
        raise Invalid(f"{path}: {error.strerror}", remedy="give a file that can be read") from error


def _paths(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
    elif path.is_dir():
        yield from sorted(each for each in path.rglob("*") if each.is_file())
    else:
        raise NotFound(f"{path}: no such file or folder")


def _is_uri(location: str) -> bool:
    scheme, colon, _ = location.partition(":")
    if colon and scheme == "memory":
        raise Invalid(f"{location}: a store in memory holds no report")
    return bool(colon) and scheme in SCHEMES
