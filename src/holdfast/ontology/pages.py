"""Pages: a long result in pieces that fit together.

A cursor names the commit that the first page saw, so that all pages are of one state whatever is committed meanwhile;
and where the next page begins: after a key, or, where rows are ordered otherwise, at a number of rows. It also knows of
which query it is, because another one would silently skip rows.
"""

import base64
import hashlib
import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import pyarrow as pa

from holdfast.base.aio import blocking
from holdfast.base.errors import Invalid
from holdfast.ontology.engine import Moment
from holdfast.ontology.model import Mixin
from holdfast.ontology.results import objects
from holdfast.ontology.statement import Ask, rows_of
from holdfast.ontology.times import When

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
    if size < 1:
        raise Invalid(f"{size!r} is not the size of a page", remedy="give a whole number from 1 on")
    ask = query.ask
    if ask.when.mode == "history":
        raise Invalid("pages are of a state, not of history", remedy="use stream() for history")
    if ask.limit is not None or ask.offset:
        raise Invalid("a query with a limit has no pages", remedy="leave out limit and offset")
    digest = _digest(ask)
    place = _opened(after, digest) if after is not None else {}
    by_key = not ask.order
    asked = replace(ask, limit=size + 1)
    if place:
        begin = {"beyond": tuple(place["key"])} if by_key else {"offset": int(place["skip"])}
        asked = replace(asked, when=When(last=int(place["commit"])), **begin)

    async def question(moment: Moment) -> tuple[int, pa.Table]:
        rows = await rows_of(asked, moment)
        sql = rows.select(rows.stored)
        return rows.window.upper, await query.engine.warm.table(sql)

    commit_id, found = await query.engine.ask(question)
    kept = found.slice(0, size)
    cursor = None
    if found.num_rows > size:
        last = [kept.column(name)[size - 1].as_py() for name in ask.shape.keys]
        skipped = int(place.get("skip", 0)) + size
        cursor = _closed({"commit": commit_id, "of": digest, **({"key": last} if by_key else {"skip": skipped})})
    return Page(await blocking(objects, query.form, kept), cursor, commit_id)


def _digest(ask: Ask) -> str:
    """Of what decides which rows there are, and their order; the moment stands in the cursor itself."""
    origins: list[tuple[Any, ...]] = []
    origin = ask.origin
    while origin is not None:
        origins.append(
            (origin.relation.type_id, origin.where, origin.forward, origin.least, origin.most, origin.ask.where)
        )
        origin = origin.ask.origin
    text = repr((ask.shape.type_id, ask.where, ask.order, origins))
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def _closed(place: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(place, separators=(",", ":")).encode()).decode()


def _opened(cursor: str, digest: str) -> dict[str, Any]:
    try:
        place = json.loads(base64.urlsafe_b64decode(cursor.encode()))
        fits = isinstance(place["commit"], int) and ("key" in place or "skip" in place)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Invalid("this is not a cursor of a page", remedy="give the cursor of the page before") from error
    if not fits or place.get("of") != digest:
        raise Invalid("this cursor is of another query", remedy="ask with the same conditions and order for all pages")
    return dict(place)
