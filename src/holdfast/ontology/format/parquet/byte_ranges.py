"""Which bytes of a large file a question needs, and by which requests they come. Pure.

A Parquet file is chunks, each of one column in one row group, and a footer that says where they lie. Chunks that are
wanted and lie next to each other, or nearly so, are one range. Of ranges there are few: where more would be left, those
that lie closest together become one. And where that is most of what is not here yet, all of it comes: then nobody has
to ask for the rest.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

GAP_BYTES = 256 << 10
"""Bytes between two ranges that are fetched along, to save a request."""
RANGES = 4
"""Ranges of one file at most, before long ones are divided."""
SHARE = 0.6
"""From this share of the missing bytes on all of them are fetched."""
RANGE_BYTES = 8 << 20


class Extent(NamedTuple):
    """Bytes of a file from ``start`` to before ``end``."""

    start: int
    end: int


class Placed(NamedTuple):
    """A column's chunk in a row group. ``column`` is the name in the table, whatever is nested in it."""

    column: str
    extent: Extent


class Reading(str):
    """The path of a file as the parameter of a statement, with the columns that the statement reads of it."""

    __slots__ = ("columns",)
    columns: frozenset[str]

    @classmethod
    def of(cls, path: str, columns: Iterable[str]) -> "Reading":
        made = cls(path)
        made.columns = frozenset(columns)
        return made


def readings(params: Iterable[Any]) -> list[Reading]:
    """Those among the parameters of a statement."""
    return [each for each in params if isinstance(each, Reading)]


def chunks_of(footer: Any) -> list[list[Placed]]:
    """Of each row group, from a footer as pyarrow has it; a column without values may have none."""
    names = [each.name for each in footer.schema.to_arrow_schema() for _ in range(_chunks(each.type))]
    found: list[list[Placed]] = []
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        found.append([])
        for place, name in enumerate(names):
            column = group.column(place)
            # It is told as 0, or not at all, where there is no page of a sort.
            begin = min(filter(None, (column.data_page_offset, column.dictionary_page_offset)), default=0)
            if begin and column.total_compressed_size:
                found[-1].append(Placed(name, Extent(begin, begin + column.total_compressed_size)))
    return found


def _chunks(kind: Any) -> int:
    """How many a column of this Arrow type has; their paths do not tell, since a name may have dots in it."""
    return sum(_chunks(kind.field(number).type) for number in range(kind.num_fields)) or 1


def more_than_chunks(footer: Any) -> bool:
    """Whether a file has page indexes or Bloom filters, which lie beside its chunks, and which a reader may look at."""
    return any(
        column.has_column_index or column.has_offset_index or getattr(column, "bloom_filter_offset", None) is not None
        for group in map(footer.row_group, range(footer.num_row_groups))
        for column in map(group.column, range(group.num_columns))
    )


def together(extents: Iterable[Extent], gap: int = 0, most: int | None = None) -> list[Extent]:
    """In order, as one where no more than ``gap`` lies between them; the closest ones too where too many are left."""
    found: list[Extent] = []
    for each in sorted(extents):
        if found and each.start - found[-1].end <= gap:
            found[-1] = Extent(found[-1].start, max(found[-1].end, each.end))
        else:
            found.append(each)
    if most is None or len(found) <= most:
        return found
    gaps = sorted(after.start - before.end for before, after in pairwise(found))
    return together(found, gaps[len(found) - most - 1])


def missing(wanted: Sequence[Extent], here: Sequence[Extent]) -> list[Extent]:
    """What is wanted and not here, in order; ``here`` is in order, and no two of it touch."""
    found: list[Extent] = []
    for start, end in together(wanted):
        at = start
        for has in here:
            if at < has.start < end:
                found.append(Extent(at, has.start))
            if has.start < end and at < has.end:
                at = max(at, has.end)
        if at < end:
            found.append(Extent(at, end))
    return found


def requests(wanted: Sequence[Extent], here: Sequence[Extent], whole: Sequence[Extent]) -> list[Extent]:
    """What to fetch, so that all that is wanted is here; ``whole`` is all that could be wanted."""
    some = together(missing(wanted, here), GAP_BYTES, RANGES)
    rest = together(missing(whole, here), GAP_BYTES)
    if sum(end - start for start, end in some) >= SHARE * sum(end - start for start, end in rest):
        some = rest if some else []
    return divided(some)


def divided(extents: Iterable[Extent]) -> list[Extent]:
    """The same, in ranges that are not too long for one request."""
    return [
        Extent(low, min(low + RANGE_BYTES, end)) for start, end in extents for low in range(start, end, RANGE_BYTES)
    ]
