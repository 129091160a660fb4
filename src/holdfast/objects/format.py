"""A store's format version: the one thing that a client reads before anything else.

No object means version 1. A client that would change the layout in a way older ones misread writes the object first;
older clients then refuse the store instead of misreading it.
"""

from holdfast.base import codec
from holdfast.objects.store import Store

FORMAT_KEY = "meta/format.json"
FORMAT_NAME = "holdfast.store"
NEWEST = 1


async def check_format(store: Store) -> int:
    """The store's format version; ``Incompatible`` if it is newer than this client."""
    found = await store.find(FORMAT_KEY)
    if found is None:
        return 1
    document = codec.decode(found.body, key=FORMAT_KEY)
    return codec.expect(document, format_name=FORMAT_NAME, newest=NEWEST, key=FORMAT_KEY)
