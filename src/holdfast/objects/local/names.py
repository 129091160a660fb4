"""Keys and file names of the local store: a pure, one-to-one mapping.

Each component of a key is a name on the object's path, so people and tools find the object by its key. Three
things do not fit into file names, and a ``%`` marks them:

    100%            100%25              a literal % is escaped
    <400 bytes>     <254 bytes>%/<146>  a component too long for one name continues inside a directory that ends in %
    a and a/b       a/%self, a/b        an object whose key is also a prefix is stored inside the directory

Every ``%`` of a key is escaped, so a ``%`` without two hex digits after it is never part of a key: such names are the
store's own. A path belongs to a key only if that key maps to exactly this path; other files are not objects.
"""

import re
from collections.abc import Iterator

from holdfast.base.errors import Invalid
from holdfast.objects.store import check_key

Names = tuple[bytes, ...]
"""A path below the root, name by name. Bytes, because names must not depend on the locale."""

CONTROL = b".%holdfast"
"""The store's own directory, in the root: its layout, its locks, and files that are being written."""
SELF = b"%self"
"""The object whose key is the path of the directory that contains this file."""
MOVING = b"%moving"
"""Directory of objects that are being moved from ``a`` to ``a/%self``."""
CONTINUED = b"%"
"""Ends the name of a directory in which a long component continues."""

NAME_BYTES = 255
"""The longest file name on Linux filesystems."""

_PLAIN = re.compile(rb"[ -$&-~]{1,255}")
# Never split: an escape, or the bytes of one character.
_UNIT = re.compile(rb"%25|[\x00-\x7f]|[\xc0-\xff][\x80-\xbf]*")


def key_names(key: str) -> Names:
    """The path of a key."""
    encoded = key.encode()
    if len(encoded) <= NAME_BYTES and b"%" not in encoded:
        return tuple(encoded.split(b"/"))  # nearly every key: nothing to escape or to split
    return tuple(name for component in key.split("/") for name in component_names(component))


def component_names(component: str) -> Names:
    escaped = component.encode().replace(b"%", b"%25")
    return (escaped,) if len(escaped) <= NAME_BYTES else tuple(_split(escaped))


def names_component(names: Names) -> str | None:
    """The component that is stored under these names; None if there is none."""
    if len(names) == 1 and _PLAIN.fullmatch(names[0]):
        return names[0].decode("ascii")  # nearly every name: nothing to decode or to check
    joined = b"".join(name.removesuffix(CONTINUED) for name in names)
    try:
        component = joined.replace(b"%25", b"%").decode()
        check_key(component)
    except (UnicodeDecodeError, Invalid):
        return None
    return component if "/" not in component and component_names(component) == names else None


def _split(escaped: bytes) -> Iterator[bytes]:
    name = b""
    for unit in _UNIT.findall(escaped):
        if len(name) + len(unit) + len(CONTINUED) > NAME_BYTES:
            yield name + CONTINUED
            name = b""
        name += unit
    yield name
