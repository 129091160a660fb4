"""The order of columns in a large data file: keys and typed columns of all row groups first, then ``fields_json``.

``fields_json`` is most of a file, and most questions read none of it. As Parquet is written it lies in every row group
between other columns, and to leave it out would take a request for each group. In two zones a question fetches of the
first one what it needs, by one range. A reader goes by the places in the footer and sees no difference. Within a zone
row groups keep their order, so that one row group is two ranges.

``fields_json`` is the zone behind: readers that divide a file among them, as Spark does, tell the middle of a row group
from the place of its first column and its size, and would look for it beyond the end of the file.
"""

from typing import Any

from holdfast.ontology.format.parquet.splice import MARK, TAIL, Footer, footer_bytes

FROM_BYTES = 4 << 20
"""Smaller files come whole, in one request, in whatever order."""
BEHIND = "fields_json"
_NEW = "a file that was just written"


def zoned(body: Any) -> bytes:
    """A Parquet file that lies in a buffer, as bytes, with its columns in two zones if it is large. Blocking."""
    view = memoryview(body)
    if len(view) < FROM_BYTES:
        return bytes(view)
    size = footer_bytes(bytes(view[-TAIL:]), _NEW)
    footer = Footer.parse(bytes(view[-size:]), _NEW)
    chunks = [chunk for group in footer.groups for chunk in group.chunks]
    if len(footer.groups) < 2 or all(chunk.column != BEHIND for chunk in chunks):
        return bytes(view)
    pieces: list[Any] = [MARK]
    places: dict[int, int] = {}
    at = len(MARK)
    for chunk in sorted(chunks, key=lambda each: each.column == BEHIND):  # which keeps the order otherwise
        places[chunk.start] = at
        pieces.append(view[chunk.start : chunk.end])
        at += chunk.end - chunk.start
    return b"".join([*pieces, footer.rearranged(places)])
