"""The objects of the store: key, size and time of last change, as a listing gives them.

``spark.read.format("holdfast").option("table", "objects").option("prefix", "raw-blobs/v1/").load()``

A listing is serial by nature: a page says where the next one begins. So a prefix is cut into *spans* between its
folders, which tasks list side by side. Planning lists folders alone, page by page, and keeps at most so many cuts: when
there are more, every second one is forgotten.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import pyarrow as pa

from holdfast.objects.store import Entry, Store
from holdfast.pipeline.tables.given import Given
from holdfast.pipeline.tables.table import Conditions, Tables, Wanted

OBJECTS = pa.schema([("key", pa.string()), ("size", pa.int64()), ("modified_ns", pa.int64())])
MOST_CUTS = 1024
"""Per prefix; the memory of the planner does not grow with the store."""
TURNS = 8
"""Spans of a prefix for each task that runs at a time: they are not equally long."""


@dataclass(frozen=True, slots=True)
class Span:
    prefix: str
    after: str | None = None
    until: str | None = None
    """The first key that does not belong to it."""

    def holds(self, key: str) -> bool:
        return key.startswith(self.prefix) and (self.after or "") < key and (self.until is None or key < self.until)


def past(folder: str) -> str:
    """The first key that is in neither ``folder`` nor before it."""
    return folder[:-1] + "0"  # the character after the slash


async def divided(store: Store, span: Span, most: int = MOST_CUTS) -> list[Span]:
    """A span cut between the folders of its prefix; none if there is nothing. One LIST per thousand folders."""
    cuts: list[str] = []
    stride, since, there = 1, 0, False
    async for page in store.list(span.prefix, delimiter=True):
        there = there or bool(page.entries or page.folders)
        for cut in map(past, page.folders):
            if cut <= (span.after or "") or (span.until is not None and cut >= span.until):
                continue
            since += 1
            if since >= stride:
                cuts.append(cut)
                since = 0
            if len(cuts) > most:
                cuts, stride = cuts[1::2], stride * 2
    if not there:
        return []
    inner = cuts[:-1] if not since and span.until is None else cuts
    bounds: list[str | None] = [span.after, *inner, span.until]
    return [Span(span.prefix, after, until) for after, until in pairwise(bounds)]


async def entries(store: Store, span: Span) -> AsyncIterator[list[Entry]]:
    """What the span holds, page by page."""
    async for page in store.list(span.prefix, after=span.after):
        within = [each for each in page.entries if span.until is None or each.key < span.until]
        if within:
            yield within
        if len(within) < len(page.entries):
            return


@dataclass(frozen=True)
class ObjectsTable:
    prefixes: tuple[str | Span, ...] = ("",)
    """Prefixes, or parts of them."""
    name: str = "objects"
    schema: pa.Schema = OBJECTS

    async def plan(self, store: Store, wanted: Wanted) -> list[Span]:
        most = min(MOST_CUTS, max(1, wanted.partitions or 1) * TURNS)
        spans = [each if isinstance(each, Span) else _narrowed(each, wanted.conditions) for each in self.prefixes]
        return [part for span in spans if span is not None for part in await divided(store, span, most)]

    async def read(self, store: Store, part: Span, wanted: Wanted) -> AsyncIterator[pa.RecordBatch]:
        async for page in entries(store, part):
            yield _batch(page, wanted.columns)


def _narrowed(prefix: str, conditions: Conditions) -> Span | None:
    """The folder below ``prefix`` that conditions on the key ask for; None if nothing under ``prefix`` can fit."""
    for each in conditions.of("key"):
        if each.operator not in ("=", "startswith") or not isinstance(each.value, str):
            continue
        if each.value.startswith(prefix):
            prefix = each.value[: each.value.rfind("/") + 1]
        elif each.operator == "=" or not prefix.startswith(each.value):
            return None
    return Span(prefix)


def _batch(page: Sequence[Entry], columns: Sequence[str]) -> pa.RecordBatch:
    values = {
        "key": [entry.key for entry in page],
        "size": [entry.size for entry in page],
        "modified_ns": [entry.modified_ns for entry in page],
    }
    wanted = pa.schema([OBJECTS.field(name) for name in columns])
    return pa.RecordBatch.from_arrays([pa.array(values[field.name], field.type) for field in wanted], schema=wanted)


async def _make(store: Store, given: Given) -> ObjectsTable:
    return ObjectsTable((given.text("prefix") or "",))


TABLES: Tables = {"objects": (_make, ("prefix",))}
