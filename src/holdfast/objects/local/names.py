"""Keys and file names of the local store: a pure mapping, one to one.

A key's components are the names on its path, so that people and tools find an object where its key says. Three things
do not fit into file names, and a ``%`` marks them:

    100%            100%25              a literal % is escaped, and so is, on a filesystem that folds case or
                                        normalises letters (``fold``), all but a few plain characters
    <400 bytes>     <254 bytes>%/<146>  a component too long for one name goes on inside a folder whose name ends in %
    a  beside  a/b  a/%self, a/b        an object whose key is a folder too stands inside it

Since every ``%`` of a key is escaped, a ``%`` without two hex digits after it never comes from a key: such names are
ours. A path is a key's only if that key maps to exactly this path; whatever else lies in the tree is no object.
"""

import re
from collections.abc import Iterator

from holdfast.base.errors import Invalid
from holdfast.objects.store import check_key

Names = tuple[bytes, ...]
"""A path below the root, name by name. Bytes, because names must not depend on the locale."""

CONTROL = b".%holdfast"
"""The store's own folder, in the root: its layout, locks, and files being written."""
SELF = b"%self"
"""The object whose key is the path of the folder that it stands in."""
MOVING = b"%moving"
"""Where objects stand on their way from ``a`` to ``a/%self``."""
CONTINUED = b"%"
"""Ends the name of a folder in which a long component goes on."""

NAME_BYTES = 255
"""What Linux filesystems take as one name."""

_PERCENT = re.compile(rb"%")
_NOT_PORTABLE = re.compile(rb"[^a-z0-9_=.-]|\.\Z")
_ESCAPED = re.compile(rb"%([0-9a-f]{2})")
_PLAIN = re.compile(rb"[ -$&-~]{1,255}")
# Never split: an escape, or the bytes of one character.
_UNIT = re.compile(rb"%[0-9a-f]{2}|[\x00-\x7f]|[\xc0-\xff][\x80-\xbf]*")


def key_names(key: str, *, fold: bool) -> Names:
    """The path of a key."""
    encoded = key.encode()
    if not fold and len(encoded) <= NAME_BYTES and b"%" not in encoded:
        return tuple(encoded.split(b"/"))  # nearly every key: nothing to escape or to split
    return tuple(name for component in key.split("/") for name in component_names(component, fold=fold))


def component_names(component: str, *, fold: bool) -> Names:
    escaped = (_NOT_PORTABLE if fold else _PERCENT).sub(_escape, component.encode())
    return (escaped,) if len(escaped) <= NAME_BYTES else tuple(_split(escaped))


def names_component(names: Names, *, fold: bool) -> str | None:
    """The component that is stored under these names; None if there is none."""
    if not fold and len(names) == 1 and _PLAIN.fullmatch(names[0]):
        return names[0].decode("ascii")  # nearly every name: nothing to undo or to check
    joined = b"".join(name.removesuffix(CONTINUED) for name in names)
    try:
        component = _ESCAPED.sub(_unescape, joined).decode()
        check_key(component)
    except (UnicodeDecodeError, Invalid):
        return None
    return component if "/" not in component and component_names(component, fold=fold) == names else None


def _split(escaped: bytes) -> Iterator[bytes]:
    name = b""
    for unit in _UNIT.findall(escaped):
        if len(name) + len(unit) + len(CONTINUED) > NAME_BYTES:
            yield name + CONTINUED
            name = b""
        name += unit
    yield name


def _escape(found: re.Match[bytes]) -> bytes:
    return b"%%%02x" % found[0][0]


def _unescape(found: re.Match[bytes]) -> bytes:
    return bytes.fromhex(found[1].decode())
