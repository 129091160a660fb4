"""Editing an object in place: read it, change it, write it over the version that was read.

``Conflict`` if other writers are always faster.
"""

from collections.abc import Callable

from holdfast.base import codec
from holdfast.base.codec import Document
from holdfast.base.errors import Conflict
from holdfast.objects.store import CREATE, IfMatch, Object, Store, Written

TRIES = 16


async def edit(store: Store, key: str, change: Callable[[Object | None], Document | None]) -> None:
    """Write the document that ``change`` returns for the object under ``key``; None leaves the object as it is."""
    for _ in range(TRIES):
        found = await store.find(key)
        after = change(found)
        if after is None:
            return
        mode = CREATE if found is None else IfMatch(found.version)
        if isinstance(await store.put(key, codec.encode(after), mode), Written):
            return
    raise Conflict(f"{key}: other writers keep changing it", remedy="try again")
