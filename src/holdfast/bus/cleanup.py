"""Retention: old events are deleted, with their claims and dedupe objects. Dead letters and sessions stay.

The order is the rule: the boundary first, then events, then claims. A claim that is created again after its name was
deleted finds the boundary past it. An event that a handler has still to do is kept, with all later ones, unless
``unsafe_unsettled``; so are all events of a namespace that no handler has read. Age is judged by an event's time and by
the store's own: a late event with an old time is not old. The next cleanup finishes one that was interrupted.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from holdfast.base.ids import Ambient
from holdfast.bus import layout
from holdfast.bus.publish import Boundary
from holdfast.bus.stats import digest_register
from holdfast.bus.worker.digest import Digest, forget_before, is_settled
from holdfast.objects.register import UNCHANGED, Register, Unchanged
from holdfast.objects.store import Store


@dataclass(frozen=True)
class Cleaned:
    events: int
    claims: int
    keys: int
    before_ns: int
    """Up to when events were removed: earlier than asked for if an older event is still to be done."""
    held: int = 0
    """Events that are old enough and stay, because a handler is not done with the first of them."""
    held_by: tuple[str, ...] = ()
    """The handlers that are not done with it; none if no handler has read this namespace yet."""


Tell = Callable[[Sequence[str]], Awaitable[None]]
"""Called with the keys that are about to be deleted."""


async def cleanup(
    store: Store,
    namespace: str,
    ambient: Ambient,
    before_ns: int,
    *,
    unsafe_unsettled: bool,
    dry_run: bool = False,
    tell: Tell | None = None,
) -> Cleaned:
    register = digest_register(store, namespace, ambient)
    found = await register.read()
    digest = None if unsafe_unsettled else Digest() if found is None else found.value
    # Claims are listed before events: a claim whose event is then missing belongs to a deleted event, on any clock.
    claims = [key async for key in store.keys(f"{layout.CLAIMS}{namespace}/")]
    names, kept, held = await _events(store, namespace, digest, before_ns)
    staying = {layout.event_id(name) for name in kept}
    claims = [key for key in claims if key.split("/")[2] not in staying]
    limit = min([layout.time_name(before_ns), *kept[:1]])
    limit_ns = layout.created_ns(limit) if "_" in limit else before_ns
    keys = await _old(store, layout.dedupe_folder(namespace), limit_ns)
    if tell is not None:
        await tell([*(layout.event_key(namespace, name) for name in names), *claims, *keys])
    if not dry_run:
        if names:
            await Boundary(store, namespace, ambient).advance(limit_ns)
            await store.delete_many([layout.event_key(namespace, name) for name in names])
        if claims:
            await store.delete_many(claims)
        if keys:
            await store.delete_many(keys)
        if found is not None and names:
            await _forget(register, limit, ambient)
    held_by = _held_by(digest, kept[0]) if held and digest is not None else ()
    return Cleaned(len(names), len(claims), len(keys), limit_ns, held, held_by)


def _held_by(digest: Digest, name: str) -> tuple[str, ...]:
    """The handlers that are not done with the event."""
    return tuple(handler for handler, section in sorted(digest.sections.items()) if not is_settled(section, name))


def _is_settled(digest: Digest | None, name: str) -> bool:
    """Whether every handler is known to be done with the event. Where no handler is known, none is."""
    return digest is None or (bool(digest.sections) and not _held_by(digest, name))


async def _events(
    store: Store, namespace: str, digest: Digest | None, before_ns: int
) -> tuple[list[str], list[str], int]:
    """The names to remove, those that stay (from the first on that must), and how many of these are held by a handler.

    An event that was stored after the last sweep may have a name before the cursors that no worker has read.
    """
    names: list[str] = []
    kept: list[str] = []
    held = 0
    is_held = False
    old = layout.time_name(before_ns)
    seen_ns = before_ns if digest is None else digest.swept_ns
    async for page in store.list(layout.event_folder(namespace)):
        for entry in page.entries:
            name = layout.name_of(entry.key)
            if not layout.is_name(name):
                continue  # no event: not ours to remove
            aged = name < old and entry.modified_ns < before_ns and entry.modified_ns <= seen_ns
            goes = not kept and aged and _is_settled(digest, name)
            is_held = is_held or (aged and not goes and not kept)
            held += aged and is_held
            (names if goes else kept).append(name)
    return names, kept, held


async def _old(store: Store, folder: str, before_ns: int) -> list[str]:
    """Keys that the store has not seen written since."""
    keys: list[str] = []
    async for page in store.list(folder):
        keys += [entry.key for entry in page.entries if entry.modified_ns < before_ns]
    return keys


async def _forget(register: Register[Digest], limit: str, ambient: Ambient) -> None:
    def forget(digest: Digest | None) -> Digest | Unchanged:
        if digest is None:
            return UNCHANGED
        sections = {name: forget_before(section, limit) for name, section in digest.sections.items()}
        return replace(digest, sections=sections)

    await register.edit(ambient.ids.unique(), forget)
