"""Parquet files put together from row groups of others, byte for byte: nothing is decoded, nothing is held.

A file is a mark, column chunks in any order, and a footer that says where each lies. So row groups of many files become
one file by copying their bytes and writing one footer with other places in it; and a few columns of one row group,
fetched by their ranges, become a small file that any reader takes. A column that is the same in all rows (the commit of
a data file) is replaced by a chunk made for the purpose, a few bytes for each row group.

``Footer`` is what a file says of itself; ``Assembly`` what is to be written: pieces, which are bytes at hand or ranges
of files elsewhere, and at last the footer. ``Corrupt`` for a footer that is none, or files of different columns.
"""

import json
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.base.errors import Corrupt
from holdfast.ontology.format.parquet import thrift
from holdfast.ontology.format.parquet.thrift import I64, LIST, STRUCT, Struct

MARK = b"PAR1"
TAIL = 8
"""Bytes at the end of a file: the footer's length, and the mark."""

_SCHEMA, _ROWS, _GROUPS, _PAIRS = 2, 3, 4, 5
_COLUMNS, _GROUP_BYTES, _GROUP_ROWS, _GROUP_AT, _GROUP_PACKED, _ORDINAL = 1, 2, 3, 5, 6, 7
_CHUNK_AT, _CHUNK_META = 2, 3
_CHUNK_OTHERS = (4, 5, 6, 7)
"""Where a chunk's page indexes lie; they are left behind."""
_PATH, _UNPACKED, _PACKED, _DATA_AT, _INDEX_AT, _WORDS_AT, _BLOOM_AT, _BLOOM_SIZE = 3, 6, 7, 9, 10, 11, 14, 15


@dataclass(frozen=True, slots=True)
class Chunk:
    """The values of one column in one row group."""

    struct: Struct

    @property
    def meta(self) -> Struct:
        found: Struct = self.struct[_CHUNK_META][1]
        return found

    @property
    def column(self) -> str:
        return ".".join(part.decode() for part in self.meta[_PATH][1][1])

    @property
    def start(self) -> int:
        """Where its first page lies: that of its dictionary, if it has one."""
        places = [self.meta[at][1] for at in (_WORDS_AT, _DATA_AT) if at in self.meta and self.meta[at][1] > 0]
        return int(min(places))

    @property
    def end(self) -> int:
        return self.start + int(self.meta[_PACKED][1])

    def moved(self, to: int) -> Struct:
        """The same chunk in another place of a file."""
        by = to - self.start
        meta = {at: value for at, value in self.meta.items() if at not in (_BLOOM_AT, _BLOOM_SIZE)}
        for at in (_DATA_AT, _INDEX_AT, _WORDS_AT):
            if at in meta and meta[at][1] > 0:
                meta[at] = (I64, meta[at][1] + by)
        kept = {at: value for at, value in self.struct.items() if at not in _CHUNK_OTHERS}
        # What stands here is a relic; a reader goes by the places in the metadata.
        return {**kept, _CHUNK_AT: (I64, 0), _CHUNK_META: (STRUCT, meta)}


@dataclass(frozen=True, slots=True)
class Group:
    struct: Struct
    rows: int
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True)
class Footer:
    """What stands at the end of a file."""

    struct: Struct

    @classmethod
    def parse(cls, tail: bytes, key: str) -> "Footer":
        """From the last bytes of a file, which hold it whole."""
        size = footer_bytes(tail, key)
        try:
            found = cls(thrift.read(tail[-size:-TAIL]))
            _ = found.groups
        except (Corrupt, KeyError, TypeError, ValueError) as error:
            raise Corrupt(f"{key}: its footer cannot be read ({error})") from error
        return found

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        return tuple(
            Group(group, group[_GROUP_ROWS][1], tuple(map(Chunk, group[_COLUMNS][1][1])))
            for group in self.struct[_GROUPS][1][1]
        )

    @property
    def rows(self) -> int:
        return int(self.struct[_ROWS][1])

    @property
    def pairs(self) -> dict[bytes, bytes]:
        """Its own metadata, as its writer gave it."""
        listed = self.struct.get(_PAIRS, (LIST, (STRUCT, [])))[1][1]
        return {pair[1][1]: pair[2][1] for pair in listed if 2 in pair}

    def keeping(self, groups: Sequence[int]) -> bytes:
        """The last bytes of a file that has only these row groups, at the places where they are in this one."""
        kept = [
            {**self.groups[number].struct, _COLUMNS: (LIST, (STRUCT, [each.moved(each.start) for each in chunks]))}
            for number, chunks in ((number, self.groups[number].chunks) for number in groups)
        ]
        for each in kept:
            each.pop(_ORDINAL, None)
        rows = sum(self.groups[number].rows for number in groups)
        body = thrift.write({**self.struct, _ROWS: (I64, rows), _GROUPS: (LIST, (STRUCT, kept))})
        return body + struct.pack("<i", len(body)) + MARK

    def rearranged(self, places: Mapping[int, int]) -> bytes:
        """The last bytes of a file that has the same chunks in other places, which are told by where they were."""
        moved = [
            {
                **group.struct,
                _COLUMNS: (LIST, (STRUCT, [each.moved(places[each.start]) for each in group.chunks])),
                _GROUP_AT: (I64, places[group.chunks[0].start]),
            }
            for group in self.groups
        ]
        body = thrift.write({**self.struct, _GROUPS: (LIST, (STRUCT, moved))})
        return body + struct.pack("<i", len(body)) + MARK

    @property
    def columns(self) -> list[bytes]:
        """Each column as the schema describes it."""
        return [thrift.write(each) for each in self.struct[_SCHEMA][1][1]]


def footer_bytes(tail: bytes, key: str) -> int:
    """How many of a file's last bytes are footer, length and mark."""
    if len(tail) < TAIL or tail[-4:] != MARK:
        raise Corrupt(f"{key}: not a Parquet file")
    return int(struct.unpack("<i", tail[-TAIL:-4])[0]) + TAIL


def keeping(tail: bytes, groups: Sequence[int], rows: int, key: str) -> bytes:
    """What ``Footer.keeping`` gives, of a file without page indexes and Bloom filters, from the bytes of its footer.

    ``rows`` is how many these row groups have. Nothing is decoded, for who has read the footer otherwise.
    """
    body = tail[:-TAIL]
    try:
        places = {field: (start, end) for field, start, end in thrift.fields_until(body, _GROUPS)}
        (rows_from, rows_to), (groups_from, _) = places[_ROWS], places[_GROUPS]
        kind, count, at = thrift.items_at(body, groups_from)
        ends = [at]
        for _ in range(count):
            ends.append(thrift.struct_end(body, ends[-1]))
        kept = thrift.write_list(kind, [body[ends[number] : ends[number + 1]] for number in groups])
    except (IndexError, KeyError, RecursionError) as error:
        raise Corrupt(f"{key}: its footer cannot be read ({error!r})") from error
    changed = (body[:rows_from], thrift.write_value(I64, rows), body[rows_to:groups_from], kept, body[ends[-1] :])
    made = b"".join(changed)
    return made + struct.pack("<i", len(made)) + MARK


# --- what is to be written ---


@dataclass(frozen=True, slots=True)
class Range:
    """Bytes of a file somewhere else."""

    source: str
    start: int
    end: int

    def __len__(self) -> int:
        return self.end - self.start


Piece = bytes | Range


@dataclass
class Assembly:
    """A file that is being put together, from its first byte to its last."""

    template: Footer
    pieces: list[Piece] = field(default_factory=lambda: [MARK])
    size: int = len(MARK)
    rows: int = 0
    _groups: list[Struct] = field(default_factory=list)

    def add(self, source: str, footer: Footer, *, replace: Mapping[str, Callable[[int], "Made"]] | None = None) -> None:
        """All row groups of another file, with some columns replaced by others."""
        if footer.columns != self.template.columns:
            raise Corrupt(f"{source}: its columns are not those of the files before it")
        for group in footer.groups:
            self._add(source, group, replace or {})

    def _add(self, source: str, group: Group, replace: Mapping[str, Callable[[int], "Made"]]) -> None:
        chunks: list[Struct] = []
        first, packed, unpacked = self.size, 0, 0
        for chunk in group.chunks:
            made = replace[chunk.column](group.rows) if chunk.column in replace else None
            used = chunk if made is None else made.chunk
            chunks.append(used.moved(self.size))
            self._put(made.body if made is not None else Range(source, chunk.start, chunk.end))
            packed += int(used.meta[_PACKED][1])
            unpacked += int(used.meta[_UNPACKED][1])
        whole = {
            **group.struct,
            _COLUMNS: (LIST, (STRUCT, chunks)),
            _GROUP_BYTES: (I64, unpacked),
            _GROUP_AT: (I64, first),
            _GROUP_PACKED: (I64, packed),
        }
        whole.pop(_ORDINAL, None)
        self._groups.append(whole)
        self.rows += group.rows

    def _put(self, piece: Piece) -> None:
        """Neighbours in a file are one range."""
        self.size += len(piece)
        last = self.pieces[-1]
        if isinstance(piece, Range) and isinstance(last, Range) and (last.source, last.end) == piece_start(piece):
            self.pieces[-1] = Range(last.source, last.start, piece.end)
        else:
            self.pieces.append(piece)

    def finish(self, pairs: Mapping[bytes, bytes]) -> bytes:
        """The footer, which is the last piece; nothing can be added after it."""
        listed = [{1: (thrift.BINARY, name), 2: (thrift.BINARY, value)} for name, value in pairs.items()]
        whole = {
            **self.template.struct,
            _ROWS: (I64, self.rows),
            _GROUPS: (LIST, (STRUCT, self._groups)),
            _PAIRS: (LIST, (STRUCT, listed)),
        }
        if not listed:
            del whole[_PAIRS]
        body = thrift.write(whole)
        tail = body + struct.pack("<i", len(body)) + MARK
        self._put(tail)
        return tail


def piece_start(piece: Range) -> tuple[str, int]:
    return piece.source, piece.start


# --- columns that are the same in every row ---


@dataclass(frozen=True, slots=True)
class Made:
    """A chunk with the bytes of its pages."""

    chunk: Chunk
    body: bytes


def constant(name: str, value: int) -> Callable[[int], Made]:
    """A column of whole numbers that has one value, for row groups of any size."""
    known: dict[int, Made] = {}

    def of(rows: int) -> Made:
        if rows not in known:
            sink = pa.BufferOutputStream()
            table = pa.table({name: pa.repeat(pa.scalar(value, pa.int64()), rows)})
            pq.write_table(table, sink, row_group_size=max(rows, 1), compression="zstd", store_schema=False)
            body: bytes = sink.getvalue().to_pybytes()
            (group,) = Footer.parse(body, name).groups
            (chunk,) = group.chunks
            known[rows] = Made(chunk, body[chunk.start : chunk.end])
        return known[rows]

    return of


# --- parts of a file that lies elsewhere ---


def excerpt(footer: Footer, group: int, columns: Sequence[str] | None = None) -> tuple[list[Range], list[Chunk]]:
    """Which ranges of a file hold these columns of one row group, and their chunks."""
    chosen = [
        chunk for chunk in footer.groups[group].chunks if columns is None or chunk.column.partition(".")[0] in columns
    ]
    ranges: list[Range] = []
    for chunk in sorted(chosen, key=lambda each: each.start):
        if ranges and ranges[-1].end == chunk.start:
            ranges[-1] = Range("", ranges[-1].start, chunk.end)
        else:
            ranges.append(Range("", chunk.start, chunk.end))
    return ranges, chosen


def excerpted(footer: Footer, group: int, chunks: Iterable[Chunk], bodies: Sequence[tuple[Range, bytes]]) -> bytes:
    """A small file of these chunks, whose bytes were fetched."""
    kept = list(chunks)
    wanted = {chunk.column.partition(".")[0] for chunk in kept}
    out = bytearray(MARK)
    moved: list[Struct] = []
    for chunk in kept:
        inside = next((at, body) for at, body in bodies if at.start <= chunk.start and chunk.end <= at.end)
        moved.append(chunk.moved(len(out)))
        begin = chunk.start - inside[0].start
        out += inside[1][begin : begin + chunk.end - chunk.start]
    part = {**footer.groups[group].struct, _COLUMNS: (LIST, (STRUCT, moved))}
    whole = {
        **footer.struct,
        _SCHEMA: (LIST, (STRUCT, _schema_of(footer, wanted))),
        _ROWS: (I64, footer.groups[group].rows),
        _GROUPS: (LIST, (STRUCT, [part])),
    }
    whole.pop(7, None)  # orders of columns, one for each of all
    body = thrift.write(whole)
    return bytes(out) + body + struct.pack("<i", len(body)) + MARK


def _schema_of(footer: Footer, wanted: set[str]) -> list[Struct]:
    """The part of the schema that describes these columns: a list of nodes, each followed by its children."""
    nodes: list[Struct] = footer.struct[_SCHEMA][1][1]
    kept: list[Struct] = []
    at, count = 1, 0
    while at < len(nodes):
        until = _after(nodes, at)
        if nodes[at][4][1].decode() in wanted:
            kept += nodes[at:until]
            count += 1
        at = until
    return [{**nodes[0], 5: (thrift.I32, count)}, *kept]


def _after(nodes: Sequence[Struct], at: int) -> int:
    children = int(nodes[at][5][1]) if 5 in nodes[at] else 0
    at += 1
    for _ in range(children):
        at = _after(nodes, at)
    return at


def metadata_of(tail: bytes) -> Any:
    """A footer as pyarrow has it, from the last bytes of a file alone."""
    return pq.read_metadata(pa.BufferReader(MARK + tail))


def texts_of(pairs: Mapping[bytes, bytes], name: bytes) -> Any:
    """What a file says under a name, which is JSON."""
    return json.loads(pairs.get(name, b"[]"))
