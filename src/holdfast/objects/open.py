"""From a URI to a client: the backend that the scheme names, the retry policy, the disk cache, the format check.

``Client`` is the only thing between a backend and its users, in production, tests and the simulator alike.

``meta/format.json`` has the version of a store's layout; without it, the version is 1. A client that changes the
layout in a way that older ones misread writes this object first, and older clients then refuse the store.
"""

import json
import os
from collections.abc import Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar

from holdfast.base import codec
from holdfast.base.config import CacheSection, Settings
from holdfast.base.errors import Invalid, NotFound
from holdfast.base.ids import Ambient
from holdfast.objects.cache import DiskCache
from holdfast.objects.client import Client
from holdfast.objects.memory import MemoryStore, Shelf
from holdfast.objects.place import Place
from holdfast.objects.store import Store
from holdfast.objects.uri import FileOptions, StoreSpec

FORMAT_KEY = "meta/format.json"
FORMAT_NAME = "holdfast.store"
NEWEST = 1

_shelves: dict[str, Shelf] = {}
"""Named memory stores of this process."""


class Closable(Protocol):
    async def close(self) -> None: ...


T = TypeVar("T", bound=Closable)


class Opening(AbstractAsyncContextManager[T], Awaitable[T]):
    """Opens an object either for a block or until it is closed.

        async with holdfast.open(uri) as hf: ...

        hf = await holdfast.open(uri)
        ...
        await hf.close()

    ``opened`` opens the object; if it fails, it leaves nothing open.
    """

    def __init__(self, opened: Callable[[], Awaitable[T]]) -> None:
        self._open = opened
        self._thing: T | None = None

    def __await__(self) -> Generator[Any, None, T]:
        return self._open().__await__()

    async def __aenter__(self) -> T:
        if self._thing is not None:
            raise Invalid("it is open already", remedy="open it once for each async with block")
        self._thing = await self._open()
        return self._thing

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        thing, self._thing = self._thing, None
        if thing is not None:
            await thing.close()

    if not TYPE_CHECKING:  # type checkers report these mistakes themselves, unless they see these methods

        def __enter__(self) -> NoReturn:
            raise TypeError("this is opened by 'async with' or 'await'; for blocking code there is holdfast.connect")

        def __exit__(self, *_: object) -> None:
            """Never called: ``__enter__`` raises."""

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(f"no {name!r} before it is open: use 'async with' or 'await', or holdfast.connect")


def open_store(
    address: str | StoreSpec,
    *,
    settings: Settings | None = None,
    ambient: Ambient | None = None,
    immutable: Callable[[str], bool] | None = None,
    any_format: bool = False,
) -> Opening[Client]:
    """The store at ``address``, for an ``async with`` block or, awaited, until its ``close``.

    One request checks that this client can read it, unless ``any_format``. Objects whose keys are ``immutable`` (see
    ``cache``) are kept on disk, if the settings name a directory for them.
    """

    async def opened() -> Client:
        spec = address if isinstance(address, StoreSpec) else StoreSpec.parse(address, settings)
        own = ambient if ambient is not None else Ambient.system()
        bare = backend(spec)
        cache = None
        if immutable is not None and settings is not None:
            cache = _disk_cache(settings.cache, bare.place or Place.of(spec), immutable, own)
        client = Client(bare, ambient=own, retry=spec.retry, cache=cache, spec=spec)
        try:
            if not any_format:
                await check_format(client)
        except BaseException:
            await client.close()
            raise
        return client

    return Opening(opened)


async def check_format(store: Store) -> int:
    """The version of the store's layout; ``Incompatible`` if it is newer than this client."""
    found = await store.find(FORMAT_KEY)
    if found is None:
        return 1
    document = codec.decode(found.body, key=FORMAT_KEY)
    return codec.expect(document, format_name=FORMAT_NAME, newest=NEWEST, key=FORMAT_KEY)


def backend(spec: StoreSpec) -> Store:
    """The bare backend; nothing is contacted before its first use."""
    if spec.scheme == "memory":
        return MemoryStore(_shelves.setdefault(spec.place, Shelf()) if spec.place else Shelf())
    if spec.scheme == "file":
        from holdfast.objects.local import LocalStore  # noqa: PLC0415  # import only the backend that is used

        unsafe = spec.values(FileOptions).unsafe_network_filesystem
        return LocalStore(Path(spec.place), unsafe_network_filesystem=unsafe)
    from holdfast.objects.cloud import CloudStore  # noqa: PLC0415  # importing obstore takes a while

    return CloudStore(spec)


def check_exists(spec: StoreSpec, remedy: str) -> None:
    """``NotFound`` for a directory that does not exist. Reading it would give an empty store, because the first write
    makes it.
    """
    if spec.scheme == "file" and not Path(spec.place).exists():
        raise NotFound(f"no store at {spec.uri}", remedy=remedy)


def carried(spec: StoreSpec) -> StoreSpec:
    """The address with the settings and keys of this process, so that a process elsewhere opens the same store as the
    same identity. A role, or a file of credentials, cannot be passed on: that process needs it too.
    """
    if spec.scheme in ("file", "memory"):
        return spec
    from holdfast.objects.cloud import config  # noqa: PLC0415  # as above

    return config.carried(spec, os.environ)


def _disk_cache(
    section: CacheSection, place: Place, immutable: Callable[[str], bool], ambient: Ambient
) -> DiskCache | None:
    # A memory store with this name in another process has other objects.
    if section.dir is None or place.scheme == "memory":
        return None
    namespace = json.dumps(place.document())  # has the server: buckets with one name on two servers differ
    return DiskCache(
        section.dir, max_bytes=section.max_bytes, namespace=namespace, immutable=immutable, ambient=ambient
    )
