"""Pages: a long result in pieces that fit together.

A cursor names the commit that the first page saw, so that all pages are of one state whatever is committed meanwhile;
and the row that the page before ended with, by its identity alone: where rows are ordered by other fields, these are
looked up again. It also knows of which query it is, because another one would silently skip rows.

Erasing is all that changes what a commit says. Pages by key, and history by commit, go on after it; where rows are
ordered by fields, some may have moved, and the next page is ``Conflict``.
"""

import base64
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import pyarrow as pa

from holdfast.base.aio import blocking
from holdfast.base.errors import Conflict, Invalid
from holdfast.ontology.chain.history import When, Window
from holdfast.ontology.query.engine import Engine, Snapshot
from holdfast.ontology.query.results import objects
from holdfast.ontology.query.statement import MOST, Ask, Place, Rows, types_of
from holdfast.ontology.types.model import Mixin

if TYPE_CHECKING:
    from holdfast.ontology.query.query import Query

M = TypeVar("M", bound=Mixin)


@dataclass(frozen=True, slots=True)
class Page(Generic[M]):
    rows: list[M]
    cursor: str | None
    """Where the next page begins; None after the last."""
    commit_id: int
    """The commit that all pages are as of."""


class Piece(NamedTuple):
    """A page as the database has it."""

    found: pa.Table
    cursor: str | None
    window: Window


async def page_of(query: "Query[M]", size: int, after: str | None) -> Page[M]:
    piece = await piece_of(query.engine, query.ask, size, after, lambda rows: rows.stored)
    return Page(await blocking(objects, query.info, piece.found), piece.cursor, piece.window.upper)


async def piece_of(
    engine: Engine, ask: Ask, size: int, after: str | None, columns: Callable[[Rows], list[str]]
) -> Piece:
    """The next rows of a question. ``columns`` are those of the answer, identity and commit among them."""
    if type(size) is not int or size < 1:
        raise Invalid(f"{size!r} is not the size of a page", remedy="give a whole number from 1 on")
    if ask.limit is not None or ask.offset:
        raise Invalid("a query with a limit has no pages", remedy="leave out limit and offset")
    digest, history = _digest(ask), ask.when.mode == "history"
    size = min(size, MOST - 1)
    asked, begun = replace(ask, limit=size + 1), None
    if after is not None:
        begun = _opened(after, digest, len(ask.shape.keys), history=history)
        when = When(ask.when.mode, after=begun.after if history else None, last=begun.commit)
        asked = replace(asked, when=when, beyond=begun.place)

    async def question(snapshot: Snapshot) -> tuple[Window, int, pa.Table]:
        erased = 0 if snapshot.ledger.redacted is None else snapshot.ledger.redacted.commit_id
        if begun is not None and ask.order and begun.erased != erased:
            raise Conflict("rows were erased since the page before, so that others moved up", remedy="begin again")
        rows = await snapshot.rows(asked)
        return rows.window, erased, await engine.table(rows.select(columns(rows)))

    window, erased, found = await engine.ask(question, partial(types_of, asked))
    if begun is not None and ask.order and not found.num_rows:
        raise Conflict("the row that the page before ended with is not there", remedy="begin again")
    kept, cursor = found.slice(0, size), None
    if found.num_rows > size:
        last = {name: kept.column(name)[size - 1].as_py() for name in ("commit_id", *ask.shape.keys)}
        said = {"commit": window.upper, "of": digest, "erased": erased, "key": [last[name] for name in ask.shape.keys]}
        cursor = _closed({**said, **({"at": last["commit_id"], "after": window.lower} if history else {})})
    return Piece(kept, cursor, window)


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


def _closed(said: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(said, separators=(",", ":")).encode()).decode()


class _Begun(NamedTuple):
    """What a cursor says."""

    commit: int
    place: Place
    erased: int
    """The latest commit that erased payload."""
    after: int = 0
    """Of history: the commit that it begins after."""


def _opened(cursor: str, digest: str, parts: int, *, history: bool) -> _Begun:
    """``parts``: of how many the key is that it must name."""
    said = _said(cursor)
    if said["of"] != digest:
        raise Invalid("this cursor is of another query", remedy="ask with the same conditions and order for all pages")
    key = said.get("key")
    if not isinstance(key, list) or len(key) != parts or not all(map(_is_text, key)):
        raise _no_cursor()
    counts = [said.get(name, 0) for name in ("erased", "after", "at")]
    if not all(map(_is_count, counts)):
        raise _no_cursor()
    erased, after, at = counts
    return _Begun(said["commit"], (at, *key) if history else tuple(key), erased, after)


def _said(cursor: str) -> dict[str, Any]:
    try:
        said = json.loads(base64.urlsafe_b64decode(cursor.encode()))
        known = isinstance(said["of"], str) and _is_count(said["commit"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _no_cursor() from error
    if not known:
        raise _no_cursor()
    return said  # type: ignore[no-any-return]  # a document, as above


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MOST


def _is_text(value: Any) -> bool:
    """Without halves of surrogate pairs, which no key has."""
    return isinstance(value, str) and value.encode(errors="replace").decode() == value


def _no_cursor() -> Invalid:
    return Invalid("this is not a cursor of a page", remedy="give the cursor of the page before")
