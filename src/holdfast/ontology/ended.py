"""Chains that have ended because the store was made anew. Their commits stay; whatever must reach all that was ever
written finds them by the records under ``meta/restarts/``.
"""

from typing import Any

from holdfast.base import codec
from holdfast.base.errors import Corrupt
from holdfast.objects.store import Store
from holdfast.ontology import layout
from holdfast.ontology.chain import Chain
from holdfast.ontology.refs import FileRef, Place

FORMAT = "holdfast.ontology.restart"


async def ended_chains(store: Store) -> list[Place]:
    """The last commit of each."""
    found: list[Place] = []
    async for key in store.keys(layout.RESTARTS):
        document: dict[str, Any] = codec.decode((await store.get(key)).body, key=key)
        codec.expect(document, format_name=FORMAT, newest=1, key=key)
        try:
            found.append(Place(int(document["ended"]["commit_id"]), str(document["ended"]["manifest_path"])))
        except codec.MALFORMED as error:
            raise Corrupt(f"{key}: it does not say which chain ended", remedy="restore it from a backup") from error
    return found


async def ended_files(store: Store) -> list[FileRef]:
    """Every data file that a chain names that has ended. ``Corrupt`` if one of them cannot be followed any more."""
    found: list[FileRef] = []
    for place in await ended_chains(store):
        try:
            found += await Chain(store).files(0, place, checkpoints=False)
        except Corrupt as error:
            key = layout.restart_key(place.path)
            raise Corrupt(
                f"{place.path}: the chain that ended here cannot be followed: {error}",
                remedy=f"restore it, or remove what is left of its commits and {key}, and try again",
            ) from error
    return found
