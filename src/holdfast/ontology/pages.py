"""Pages: a long result in pieces that fit together.

A cursor names the commit that the first page saw, so that all pages are of one state whatever is committed meanwhile;
and where the next page begins: after a key, or, in history and where rows are ordered otherwise, at a number of rows.
It also knows of which query it is, because another one would silently skip rows.
"""

import base64
import hashlib
import json
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import pyarrow as pa

from holdfast.base.aio import blocking
from holdfast.base.errors import Conflict, Invalid
from holdfast.ontology.engine import Moment
from holdfast.ontology.model import Mixin
from holdfast.ontology.results import objects
from holdfast.ontology.statement import MOST, Ask, rows_of, types_of
from holdfast.ontology.times import When, Window

if TYPE_CHECKING:
    from holdfast.ontology.query import Query

M = TypeVar("M", bound=Mixin)


@dataclass(frozen=True, slots=True)
class Page(Generic[M]):
    rows: list[M]
    cursor: str | None
    """Where the next page begins; None after the last."""
    commit_id: int
    """The commit that all pages are as of."""


async def page_of(query: "Query[M]", size: int, after: str | None) -> Page[M]:
    if type(size) is not int or size < 1:
        raise Invalid(f"{size!r} is not the size of a page", remedy="give a whole number from 1 on")
    ask = query.ask
    if ask.limit is not None or ask.offset:
        raise Invalid("a query with a limit has no pages", remedy="leave out limit and offset")
    digest = _digest(ask)
    by_key = not ask.order and ask.when.mode == "state"
    size = min(size, MOST - 1)
    asked = replace(ask, limit=size + 1)
    place = None
    if after is not None:
        place = _opened(after, digest, len(ask.shape.keys) if by_key else None)
        begin = {"beyond": place.key} if by_key else {"offset": place.skip}
        asked = replace(asked, when=When(ask.when.mode, after=place.after, last=place.commit), **begin)

    async def question(moment: Moment) -> tuple[Window, int, pa.Table]:
        erased = 0 if moment.ledger.redacted is None else moment.ledger.redacted.commit_id
        if place is not None and not by_key and place.erased != erased:
            raise Conflict("rows were erased since the page before, so that others moved up", remedy="begin again")
        rows = await rows_of(asked, moment)
        sql = rows.select(rows.stored)
        return rows.window, erased, await query.engine.warm.table(sql)

    window, erased, found = await query.engine.ask(question, partial(types_of, asked))
    kept = found.slice(0, size)
    cursor = None
    if found.num_rows > size:
        last = [kept.column(name)[size - 1].as_py() for name in ask.shape.keys]
        skip = size + (0 if place is None else place.skip)
        begins = {"key": last} if by_key else {"skip": skip, "after": window.lower, "erased": erased}
        cursor = _closed({"commit": window.upper, "of": digest, **begins})
    return Page(await blocking(objects, query.form, kept), cursor, window.upper)


def _digest(ask: Ask) -> str:
    """Of what decides which rows there are, and their order; the moment stands in the cursor itself."""
    origins: list[tuple[Any, ...]] = []
    origin = ask.origin
    while origin is not None:
        hop = (origin.relation.type_id, origin.where, origin.forward, origin.least, origin.most)
        first = origin.ask
        origins.append((hop, first.shape.type_id, first.where, first.order, first.limit, first.offset))
        origin = first.origin
    text = repr((ask.shape.type_id, ask.where, ask.order, ask.when.mode, origins))
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def _closed(place: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(place, separators=(",", ":")).encode()).decode()


class _Place(NamedTuple):
    """What a cursor says."""

    commit: int
    key: tuple[str, ...] = ()
    skip: int = 0
    after: int = 0
    erased: int = 0
    """The latest commit that erased payload: erasing is all that changes the state of a commit."""


def _opened(cursor: str, digest: str, keys: int | None) -> _Place:
    """``keys``: of how many parts the key is that it must name; None for a number of rows instead."""
    try:
        said = json.loads(base64.urlsafe_b64decode(cursor.encode()))
        of, commit = said["of"], said["commit"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _no_cursor() from error
    if of != digest:
        raise Invalid("this cursor is of another query", remedy="ask with the same conditions and order for all pages")
    if not _is_count(commit):
        raise _no_cursor()
    if keys is not None:
        key = said.get("key")
        if not isinstance(key, list) or len(key) != keys or not all(isinstance(part, str) for part in key):
            raise _no_cursor()
        return _Place(commit, tuple(key))
    counts = [said.get(name) for name in ("skip", "after", "erased")]
    if not all(map(_is_count, counts)):
        raise _no_cursor()
    return _Place(commit, (), *counts)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MOST


def _no_cursor() -> Invalid:
    return Invalid("this is not a cursor of a page", remedy="give the cursor of the page before")
