"""From a URI to the composed stack: backend, observe, retry, settle and, where asked for, the disk cache on top.

``compose`` is the only place where layers meet, so that production, tests and the simulator run the same stack.
"""

from collections.abc import Callable
from pathlib import Path

from holdfast.base.config import CacheSection, Settings
from holdfast.base.ids import Ambient
from holdfast.base.opening import Opening
from holdfast.objects import uri
from holdfast.objects.cache.cached import Cached
from holdfast.objects.format import check_format
from holdfast.objects.layer import Layer
from holdfast.objects.memory import MemoryStore, Shelf
from holdfast.objects.observe import Observed, Usage
from holdfast.objects.retry import Retrying, RetryPolicy
from holdfast.objects.settle import Settled
from holdfast.objects.spec import StoreSpec
from holdfast.objects.store import Store

_shelves: dict[str, Shelf] = {}
"""Named memory stores of this process."""


class OpenStore(Layer):
    """An open store: the stack, its address, what it has cost so far, and its disk cache if it has one."""

    def __init__(self, inner: Store, spec: StoreSpec, usage: Usage, ambient: Ambient) -> None:
        super().__init__(inner)
        self.spec = spec
        self.usage = usage
        self.ambient = ambient
        self.cache = inner if isinstance(inner, Cached) else None


def compose(backend: Store, *, ambient: Ambient, retry: RetryPolicy, usage: Usage) -> Store:
    """Every request is counted, retried where that is safe without looking, and settled where it is not."""
    return Settled(Retrying(Observed(backend, usage), retry, ambient), retry, ambient)


def open_store(
    address: str | StoreSpec,
    *,
    settings: Settings | None = None,
    ambient: Ambient | None = None,
    immutable: Callable[[str], bool] | None = None,
    any_format: bool = False,
) -> Opening[OpenStore]:
    """The store at ``address``, for an ``async with`` block or, awaited, until its ``close``.

    One request checks that this client can read it, unless ``any_format``. Objects whose keys are ``immutable`` (see
    ``cache``) are kept on disk, if the settings name a folder for them.
    """

    async def opened() -> OpenStore:
        spec = address if isinstance(address, StoreSpec) else StoreSpec.parse(address, settings)
        around = ambient if ambient is not None else Ambient.system()
        usage = Usage()
        stack = compose(backend(spec), ambient=around, retry=spec.retry, usage=usage)
        if immutable is not None and settings is not None:
            stack = _with_cache(stack, settings.cache, spec, immutable, around)
        store = OpenStore(stack, spec, usage, around)
        try:
            if not any_format:
                await check_format(store)
        except BaseException:
            await store.close()
            raise
        return store

    return Opening(opened)


def _with_cache(
    stack: Store, section: CacheSection, spec: StoreSpec, immutable: Callable[[str], bool], ambient: Ambient
) -> Store:
    # A store in memory may have its name in another process too, for other objects.
    if section.dir is None or spec.scheme == "memory":
        return stack
    options = dict(spec.options)
    namespace = " ".join([spec.uri, options.get("endpoint", ""), options.get("account", "")]).rstrip()
    return Cached(
        stack,
        section.dir,
        max_bytes=section.max_bytes,
        namespace=namespace,
        immutable=immutable,
        ambient=ambient,
    )


def backend(spec: StoreSpec) -> Store:
    """The bare backend; nothing is contacted before its first use."""
    if spec.scheme == "memory":
        return MemoryStore(_shelves.setdefault(spec.place, Shelf()) if spec.place else Shelf())
    options = dict(spec.options)
    if spec.scheme == "file":
        from holdfast.objects.local import LocalStore  # noqa: PLC0415  # a store pays only for its own backend

        unsafe = options.get("unsafe_network_filesystem") == "true"
        return LocalStore(Path(spec.place), unsafe_network_filesystem=unsafe)
    from holdfast.objects.cloud import CloudStore  # noqa: PLC0415  # importing obstore takes a while

    return CloudStore(uri.StoreSpec(spec.scheme, spec.place, spec.prefix, spec.options, spec.secrets))
