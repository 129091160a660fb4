"""Thrift's compact protocol, as far as Parquet's footers need it: bytes to a tree and back. Pure.

A struct is a dictionary from field ids to ``(kind, value)``, in the order of its ids; what is not understood further up
is written again as it was read. A list is ``(kind of its items, items)``. So a footer can be changed in a few places
without knowing the rest of it, and whatever its writer has put there stays.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import Any

from holdfast.base.errors import Corrupt

Struct = dict[int, tuple[int, Any]]
Items = tuple[int, list[Any]]

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)
_WHOLE, _LISTS = {I16, I32, I64}, {LIST, SET}
_DEEPEST = 64
_LONG_LIST = 15
_SHORT_STEP = 15


def read(body: bytes) -> Struct:
    """The struct that the bytes begin with; ``Corrupt`` if there is none."""
    try:
        return _Reader(body).struct(0)
    except (IndexError, struct.error, RecursionError) as error:
        raise Corrupt(f"a footer that cannot be read ({error!r})") from error


def write(value: Struct) -> bytes:
    out = bytearray()
    _write_struct(out, value)
    return bytes(out)


def write_value(kind: int, content: Any) -> bytes:
    out = bytearray()
    _write_value(out, kind, content)
    return bytes(out)


def write_list(kind: int, items: Sequence[bytes]) -> bytes:
    """A list of items that are written already."""
    out = bytearray()
    _write_list_head(out, kind, len(items))
    return bytes(out) + b"".join(items)


def fields_until(body: bytes, last: int) -> Iterator[tuple[int, int, int]]:
    """The fields of the struct that the bytes begin with, up to one: their ids, and where values begin and end.

    Of the last one, which may be long, the end is not looked for: it is told as where it begins.
    """
    at = field = 0
    while head := body[at]:
        at += 1
        if head >> 4:
            field += head >> 4
        else:
            number, at = _number(body, at)
            field = _unzigzag(number)
        end = value_end(body, at, head & 15) if head & 15 > FALSE and field != last else at
        yield field, at, end
        if field == last:
            return
        at = end


def struct_end(body: bytes, at: int) -> int:
    """Where the struct that begins here ends. Nothing is made of it: this takes a quarter of what reading does."""
    while head := body[at]:
        at += 1
        if head < _SHORT_STEP + 1:  # its field id stands by itself
            at = _number(body, at)[1]
        kind = head & 15
        if kind > FALSE:  # those are all in the head
            at = value_end(body, at, kind)
    return at + 1


def value_end(body: bytes, at: int, kind: int) -> int:
    """Where a value of this kind ends; ``Corrupt`` for a kind that there is not."""
    if kind in _WHOLE:  # which most are
        while body[at] > 127:
            at += 1
        return at + 1
    if kind == BINARY:
        size, at = _number(body, at)
        return at + size
    if kind == STRUCT:
        return struct_end(body, at)
    if kind in _LISTS:
        inner, count, at = items_at(body, at)
        for _ in range(count):
            at = value_end(body, at, inner)
        return at
    if kind <= BYTE:
        return at + 1
    if kind == DOUBLE:
        return at + 8
    raise Corrupt(f"a footer with a field of kind {kind}")


def items_at(body: bytes, at: int) -> tuple[int, int, int]:
    """Of a list that begins here: the kind of its items, how many there are, and where the first one is."""
    head, at = body[at], at + 1
    count = head >> 4
    if count == _LONG_LIST:
        count, at = _number(body, at)
    return head & 15, count, at


def _number(body: bytes, at: int) -> tuple[int, int]:
    """A number without a sign, and where it ends."""
    found = body[at]
    at += 1
    if found < 128:
        return found, at
    found, shift = found & 127, 7
    while True:
        byte = body[at]
        at += 1
        found |= (byte & 127) << shift
        if byte < 128:
            return found, at
        shift += 7


class _Reader:
    def __init__(self, body: bytes) -> None:
        self._body = body
        self._at = 0

    def struct(self, depth: int) -> Struct:
        if depth > _DEEPEST:
            raise Corrupt("a footer that is nested too deeply")
        found: Struct = {}
        field = 0
        while (head := self._byte()) != 0:
            step, kind = head >> 4, head & 15
            field = field + step if step else _unzigzag(self._varint())
            found[field] = (kind, self._value(kind, depth, inside=False))
        return found

    def _value(self, kind: int, depth: int, *, inside: bool) -> Any:
        match kind:
            case 1 | 2:
                return self._byte() == TRUE if inside else kind == TRUE
            case 3:
                return self._byte()
            case 4 | 5 | 6:
                return _unzigzag(self._varint())
            case 7:
                return self._taken(8)
            case 8:
                return self._taken(self._varint())
            case 9 | 10:
                return self._items(depth)
            case 12:
                return self.struct(depth + 1)
        raise Corrupt(f"a footer with a field of kind {kind}")

    def _items(self, depth: int) -> Items:
        head = self._byte()
        count, kind = head >> 4, head & 15
        if count == _LONG_LIST:
            count = self._varint()
        if count > len(self._body):
            raise Corrupt("a footer with a list that is longer than itself")
        return kind, [self._value(kind, depth, inside=True) for _ in range(count)]

    def _byte(self) -> int:
        self._at += 1
        return self._body[self._at - 1]

    def _varint(self) -> int:
        found = shift = 0
        while True:
            byte = self._byte()
            found |= (byte & 127) << shift
            if byte < 128:
                return found
            shift += 7

    def _taken(self, count: int) -> bytes:
        begin, self._at = self._at, self._at + count
        if self._at > len(self._body):
            raise IndexError("it ends too soon")
        return self._body[begin : self._at]


def _write_struct(out: bytearray, value: Struct) -> None:
    before = 0
    for field in sorted(value):
        kind, content = value[field]
        if kind in (TRUE, FALSE):
            kind = TRUE if content else FALSE
        step = field - before
        if 0 < step <= _SHORT_STEP:
            out.append(step << 4 | kind)
        else:
            out.append(kind)
            _write_varint(out, _zigzag(field))
        before = field
        if kind not in (TRUE, FALSE):
            _write_value(out, kind, content)
    out.append(0)


def _write_value(out: bytearray, kind: int, content: Any) -> None:
    match kind:
        case 1 | 2:
            out.append(TRUE if content else FALSE)
        case 3:
            out.append(content)
        case 4 | 5 | 6:
            _write_varint(out, _zigzag(content))
        case 7:
            out += content
        case 8:
            _write_varint(out, len(content))
            out += content
        case 9 | 10:
            inner, items = content
            _write_list_head(out, inner, len(items))
            for item in items:
                _write_value(out, inner, item)
        case 12:
            _write_struct(out, content)


def _write_list_head(out: bytearray, kind: int, count: int) -> None:
    if count < _LONG_LIST:
        out.append(count << 4 | kind)
    else:
        out.append(_LONG_LIST << 4 | kind)
        _write_varint(out, count)


def _write_varint(out: bytearray, value: int) -> None:
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)


def _zigzag(value: int) -> int:
    return value << 1 if value >= 0 else (-value << 1) - 1


def _unzigzag(value: int) -> int:
    return value >> 1 if not value & 1 else -(value + 1 >> 1)
