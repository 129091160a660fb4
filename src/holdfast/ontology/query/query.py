"""Queries: how users ask for objects, and how they get the answer.

    await onto.query(Customer).where(Customer.tier == "Gold").order_by(Customer.age.desc()).limit(20).all()

A query is a value: methods that are not awaited return a new query. Nothing is read before a result is awaited. Each
result pins one head, for all types that it reads. Without ``order_by`` rows are ordered by key, in history by commit
first.

**Pages** divide a long result. A cursor has the commit that the first page has read, so all pages are of one state, and
the number of rows on the pages so far. It also has a digest of its query, because another query would skip rows. Only
erasing changes the rows of a commit: after it the next page raises ``Conflict``.
"""

import base64
import hashlib
import json
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeVar, overload

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.base.aio import blocking
from holdfast.base.errors import Conflict, Invalid
from holdfast.ontology.chain.history import Moment
from holdfast.ontology.filters.operand import Sql, fill
from holdfast.ontology.format.data.batch import Identity
from holdfast.ontology.query.aggregation import Grouped, figures_of, group_key
from holdfast.ontology.query.cache.prune import paths
from holdfast.ontology.query.columns import columns_of, in_schema, naming_misfits, schema_of
from holdfast.ontology.query.engine import Engine, Snapshot
from holdfast.ontology.query.explain import Explanation, explain
from holdfast.ontology.query.results import Linked, ends, meta, objects, one_of
from holdfast.ontology.query.statement import ENDS, MAX_LIMIT, Ask, Origin, Rows, types_of
from holdfast.ontology.types.errors import unknown
from holdfast.ontology.types.expressions.ast import TRUE, And, Comparison, FieldPath, Order, Predicate
from holdfast.ontology.types.expressions.terms import Condition, FieldExpr, Figure, Ordering
from holdfast.ontology.types.model import Entity, Mixin, Relation
from holdfast.ontology.types.typeinfo import TypeInfo, type_info
from holdfast.sql.duck import OutOfMemory

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl


M = TypeVar("M", bound=Mixin)


@dataclass(frozen=True, slots=True)
class Page(Generic[M]):
    rows: list[M]
    cursor: str | None
    """For the next page; None after the last page."""
    commit_id: int
    """The commit as of which all pages are."""


async def page_of(query: "Query[M]", size: int, after: str | None) -> Page[M]:
    engine, ask = query.engine, query.ask
    if type(size) is not int or size < 1:
        raise Invalid(f"{size!r} is not the size of a page", remedy="give a whole number from 1 on")
    if ask.limit is not None or ask.offset:
        raise Invalid("a query with a limit has no pages", remedy="leave out limit and offset")
    digest, size = _digest(ask), min(size, MAX_LIMIT - 1)
    start = None if after is None else _decoded(after, digest)
    asked = replace(ask, limit=size + 1)
    if start is not None:
        asked = replace(asked, offset=start.rows, when=replace(ask.when, last=start.commit, strict=False))

    async def question(snapshot: Snapshot) -> tuple[int, int, pa.Table]:
        erased = 0 if snapshot.ledger.redacted is None else snapshot.ledger.redacted.commit_id
        rows = await snapshot.rows(asked)
        upper = rows.window.upper
        if start is not None and (start.commit, start.erased) != (upper, erased):
            raise Conflict("rows were erased since the page before, or the store is another one", remedy="begin again")
        return upper, erased, await engine.table(rows.select(rows.stored))

    upper, erased, found = await engine.ask(question, partial(types_of, asked))
    cursor = None
    if found.num_rows > size:
        fields = _Cursor(upper, (0 if start is None else start.rows) + size, erased)._asdict()
        cursor = _encoded({**fields, "of": digest})
    return Page(await blocking(objects, query.info, found.slice(0, size)), cursor, upper)


def _digest(ask: Ask) -> str:
    """A digest of everything that decides the rows and their order, except the last moment, which is in the cursor."""
    origins: list[tuple[Any, ...]] = []
    origin = ask.origin
    while origin is not None:
        hop = (origin.relation.type_id, origin.where, origin.forward, origin.least, origin.most)
        first = origin.ask
        origins.append((hop, first.shape.type_id, first.where, first.order, first.limit, first.offset))
        origin = first.origin
    when = (ask.when.mode, ask.when.first, ask.when.after)
    text = repr((ask.shape.type_id, ask.where, ask.order, when, origins))
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def _encoded(fields: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(fields, separators=(",", ":")).encode()).decode()


class _Cursor(NamedTuple):
    commit: int
    rows: int
    """On the pages before."""
    erased: int
    """The latest commit that erased payload."""


def _decoded(cursor: str, digest: str) -> _Cursor:
    try:
        fields = json.loads(base64.urlsafe_b64decode(cursor.encode()))
        of, found = fields["of"], _Cursor(*(fields[name] for name in _Cursor._fields))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _no_cursor() from error
    if of != digest and isinstance(of, str):
        raise Invalid("this cursor is of another query", remedy="ask with the same conditions and order for all pages")
    if of != digest or not all(map(_is_count, found)):
        raise _no_cursor()
    return found


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MAX_LIMIT


def _no_cursor() -> Invalid:
    return Invalid("this is not a cursor of a page", remedy="give the cursor of the page before")


L = TypeVar("L", bound=Entity)
R = TypeVar("R", bound=Entity)
MAX_DEPTH = 2**31 - 1
"""The largest INTEGER of SQL."""


@dataclass(frozen=True, eq=False, repr=False)
class Query(Generic[M]):
    engine: Engine
    ask: Ask
    columns: tuple[str, ...] = ()

    @property
    def info(self) -> TypeInfo:
        return self.ask.shape

    def __repr__(self) -> str:
        return f"<Query of {self.info.name}>"

    # --- conditions and order ---

    def where(self, *conditions: Condition) -> "Query[M]":
        """Only rows for which all of the conditions hold."""
        found = [_predicate(condition, self.info.python) for condition in conditions]
        return self._asking(where=And((*_terms(self.ask.where), *found)))

    def order_by(self, *terms: "Ordering | FieldExpr[Any]") -> "Query[M]":
        return self._asking(order=tuple(_order(term, self.info.python) for term in terms))

    def limit(self, rows: int) -> "Query[M]":
        return self._asking(limit=_count(rows, "a limit"))

    def offset(self, rows: int) -> "Query[M]":
        return self._asking(offset=_count(rows, "an offset"))

    def select(self, *names: "str | FieldExpr[Any]") -> "Query[M]":
        """Choose the columns of tables and dictionaries. Without names all of them."""
        wanted = tuple(name if isinstance(name, str) else name._path.field for name in names)
        known = self.ask.shape.shown
        for name in wanted:
            if name not in known:
                raise unknown(self.info.name, name, known)
        return replace(self, columns=wanted)

    @overload
    def via(
        self: "Query[L]",
        relation: type[Relation[L, R]],
        where: Condition | None = None,
        *,
        reverse: Literal[False] = False,
        depth: int | tuple[int, int | None] = 1,
    ) -> "Query[R]": ...

    @overload
    def via(
        self: "Query[R]",
        relation: type[Relation[L, R]],
        where: Condition | None = None,
        *,
        reverse: bool = False,
        depth: int | tuple[int, int | None] = 1,
    ) -> "Query[L]": ...

    def via(
        self,
        relation: type[Relation[Any, Any]],
        where: Condition | None = None,
        *,
        reverse: bool = False,
        depth: int | tuple[int, int | None] = 1,
    ) -> "Query[Any]":
        """Query the entities at the other end of a relation. Conditions that follow are about those entities.

        ``where`` is about the relation. ``reverse`` follows it from right to left; it is implied where only that is
        possible. ``depth`` is how often it is followed: 2, or (1, 3), or (1, None) for any number of times.
        """
        via = _relation(relation)
        forward = _direction(self.info, via, reverse=reverse)
        least, most = _depth(depth)
        target = (via.ends or ())[1 if forward else 0]
        if most != 1 and target.type_id != self.info.type_id:
            raise Invalid(
                f"{via.name} leads from {self.info.name} to {target.name}: it can be followed once only",
                remedy="use depth with relations between entities of one type",
            )
        origin = Origin(self.ask, via, _about_relation(relation, where), forward, least, most)
        return replace(self, ask=Ask(target, {}, when=self.ask.when, origin=origin), columns=())

    # --- time ---

    def as_of(self, moment: Moment, *, strict: bool = False) -> "Query[M]":
        """The state after a commit or at a time; with history, the rows up to it.

        A moment after the head means the head, or is an error with ``strict``.
        """
        return self._asking(when=self.ask.when.until(moment, strict=strict))

    def with_history(self) -> "Query[M]":
        """Every row that was ever written; ``meta(obj).retracted`` marks retractions."""
        return self._asking(when=self.ask.when.as_history())

    def history_since(self, moment: Moment) -> "Query[M]":
        """Every row that was written after a commit, or after a time."""
        return self._asking(when=self.ask.when.as_history(after=moment))

    def between(self, first: Moment, last: Moment) -> "Query[M]":
        """Every row that the commits from ``first`` to ``last`` wrote, both included."""
        return self._asking(when=self.ask.when.spanning(first, last))

    # --- results ---

    async def all(self) -> list[M]:
        """Every object. If DuckDB has too little memory to sort them by key, they are sorted here."""
        try:
            found = await self.engine.answer(self.ask, lambda rows: rows.select(rows.stored))
            return await blocking(objects, self.info, found)
        except OutOfMemory:
            if self.ask.order or self.ask.limit is not None or self.ask.offset:
                raise
            unsorted = [one async for one in self._streamed(ordered=False)]
            history = self.ask.when.mode == "history"
            return sorted(unsorted, key=lambda one: (meta(one).commit_id if history else 0, meta(one).key))

    async def first(self) -> M | None:
        """The first object; None if there is none."""
        found = await self._asking(limit=min(self.ask.limit, 1) if self.ask.limit is not None else 1).all()
        return found[0] if found else None

    async def one(self) -> M:
        """The only object. ``NoResult`` if there is none, ``SeveralResults`` if there are several."""
        found = await self._asking(limit=min(self.ask.limit, 2) if self.ask.limit is not None else 2).all()
        return one_of(found, self.info.name)

    async def count(self) -> int:
        """How many rows there are."""

        def statement(rows: Rows) -> Sql:
            if rows.limited:
                return fill("SELECT count(*) AS n FROM ({})", rows.select(["1"], ordered=False))
            return rows.select(["count(*) AS n"], ordered=False)

        return int((await self.engine.answer(self.ask, statement)).column("n")[0].as_py())

    async def arrow(self) -> pa.Table:
        """One column per field, of the field's Arrow type; in history also ``commit_id`` and ``retracted``.

        ``Invalid`` for a number of another writer that its column cannot hold.
        """
        names = tuple(dict.fromkeys(self.columns)) or self.info.shown

        async def question(snapshot: Snapshot) -> pa.Table:
            return await self.engine.table(*as_table(await snapshot.rows(self.ask), names))

        with naming_misfits():
            return await self.engine.ask(question, partial(types_of, self.ask))

    async def pandas(self) -> "pd.DataFrame":
        return (await self.arrow()).to_pandas()  # type: ignore[no-any-return]  # pyarrow has no types

    async def polars(self) -> "pl.DataFrame":
        import polars as pl  # noqa: PLC0415  # an optional dependency

        return pl.DataFrame(await self.arrow())

    async def dicts(self) -> list[dict[str, Any]]:
        """The values of each object by the name of the field, and the keys of its ends."""
        wanted = self.columns
        return [{name: vars(one)[name] for name in wanted or vars(one)} for one in await self.all()]

    async def stream(self) -> AsyncIterator[M]:
        """Objects one by one, of which only a few thousand are in memory.

        A state comes in no order without ``order_by``, because sorting takes memory.
        """

        async for one in self._streamed(ordered=bool(self.ask.order) or self.ask.when.mode == "history"):
            yield one

    async def _streamed(self, *, ordered: bool) -> AsyncIterator[M]:
        async def question(snapshot: Snapshot) -> Sql:
            rows = await snapshot.rows(self.ask)
            return await self.engine.filled(rows.select(rows.stored, ordered=ordered or rows.limited))

        found = await self.engine.ask(question)
        async for batch in self.engine.batches(found):
            for one in await blocking(objects, self.info, batch):
                yield one

    async def linked(self) -> list[Linked[M]]:
        """Relations together with the entities at their ends."""
        if self.info.ends is None:
            raise Invalid(f"{self.info.name} is not a relation: it has no ends", remedy="await all()")
        found = await self.engine.answer(replace(self.ask, hydrate=True), lambda rows: rows.select(rows.stored))
        return await blocking(self._linked, found)

    def group_by(self, *terms: "FieldExpr[Any]") -> Grouped[M]:
        """Groups of rows with equal values: ``await q.group_by(Customer.tier).agg(n=count())``."""
        return Grouped(self, tuple(group_key(term, self.info.python) for term in terms))

    async def agg(self, **figures: Figure) -> dict[str, Any]:
        """Figures over all rows: ``await q.agg(n=count(), most=Customer.age.max())``."""
        (found,) = await figures_of(self, (), figures)
        return found

    async def page(self, size: int, after: str | None = None) -> Page[M]:
        """The rows after a cursor, and the next cursor. All pages are as of the head that the first page has read."""
        return await page_of(self, size, after)

    async def explain(self, *, profile: bool = False) -> Explanation:
        """Which files the query reads, with requests, bytes and DuckDB's plan. Print it."""
        return await explain(self.engine, self.ask, profile=profile)

    def _asking(self, **changes: Any) -> "Query[M]":
        return replace(self, ask=replace(self.ask, **changes))

    def _linked(self, found: pa.Table) -> list[Linked[M]]:
        relations = objects(self.info, found)
        sides = []
        for number, end in enumerate(ENDS):
            columns = (f"{end}_key", f"{end}_fields", f"{end}_commit")
            sides.append(ends((self.info.ends or ())[number], *(found.column(name).to_pylist() for name in columns)))
        return [Linked(*each) for each in zip(relations, *sides, strict=True)]


def ask_about(info: TypeInfo) -> Ask:
    return Ask(info, dict(zip(ENDS, info.ends or (), strict=False)))


def ask_by_identity(info: TypeInfo, identity: Identity) -> Ask:
    """One object: ``identity`` has one text for each of the columns that identify a row of the type."""
    columns = zip(info.keys, identity, strict=True)
    terms = tuple(Comparison(FieldPath("own", name), "==", value, "text") for name, value in columns)
    return replace(ask_about(info), where=And(terms))


def _terms(predicate: Predicate) -> tuple[Predicate, ...]:
    return predicate.terms if isinstance(predicate, And) else (predicate,)


def _predicate(condition: Any, python: type) -> Predicate:
    if not isinstance(condition, Condition):
        raise Invalid(f"{condition!r} is not a condition", remedy='write a comparison, as in Customer.tier == "Gold"')
    _check_root(condition.root, python)
    return condition.predicate


def _order(term: Any, python: type) -> Order:
    ordering = term.asc() if isinstance(term, FieldExpr) else term
    if not isinstance(ordering, Ordering):
        raise Invalid(f"{term!r} is not an order", remedy="write Customer.age or Customer.age.desc()")
    _check_root(ordering.root, python)
    return ordering.order


def _check_root(root: type, python: type) -> None:
    if root is not python:
        raise Invalid(
            f"the query is about {python.__name__}, and this condition about {root.__name__}",
            remedy="use left(Relation) and right(Relation) for the fields at the ends of a relation",
        )


def _count(value: Any, what: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise Invalid(f"{value!r} is not {what}", remedy="give a whole number from 0 on")
    return value


# --- as tables ---


def as_table(rows: Rows, names: Sequence[str]) -> tuple[Sql, Callable[[pa.Table], pa.Table]]:
    """A statement for these columns of the rows in their order, and a function that makes a table of its result.

    A file of one commit is in the order of keys, and DuckDB keeps the order of a file. If there is only one, its order
    is checked afterwards, which takes a tenth of the time of sorting.
    """
    history = rows.window.history
    by_name = dict(columns_of(rows.table))
    shown = [*names, *(("commit_id", "retracted") if history else ())]
    columns = [by_name[name] for name in shown]
    schema = schema_of(rows.ask.shape, history=history)
    wanted = pa.schema([schema.field(name) for name in shown])
    key = rows.key_among(columns) if rows.in_one_file else None

    def made(found: pa.Table) -> pa.Table:
        return in_schema(found if key is None else _in_order_of(key, found), wanted)

    return rows.select(columns, ordered=key is None), made


def _in_order_of(key: str, found: pa.Table) -> pa.Table:
    texts = found.column(key)
    if len(texts) < 2 or pc.all(pc.less(texts.slice(0, len(texts) - 1), texts.slice(1)), skip_nulls=False).as_py():
        return found
    return found.take(pc.sort_indices(texts))


# --- along relations ---


def _relation(relation: type[Mixin]) -> TypeInfo:
    via = type_info(relation)
    if via.ends is None:
        raise Invalid(f"{via.name} is not a relation", remedy="name the relation to follow, not its end")
    return via


def _direction(info: TypeInfo, via: TypeInfo, *, reverse: bool) -> bool:
    """Whether the relation is followed from left to right."""
    here = info.type_id
    fits = [end.type_id == here for end in via.ends or ()]
    if not any(fits):
        names = " and ".join(end.name for end in via.ends or ())
        raise Invalid(f"{via.name} relates {names}, not {here.name}", remedy="name a relation that begins here")
    if reverse and not fits[1]:
        raise Invalid(f"{via.name} does not lead to {here.name}", remedy="leave out reverse")
    return fits[0] and not reverse


def _depth(depth: Any) -> tuple[int, int | None]:
    pair = (depth, depth) if isinstance(depth, int) else depth
    remedy = "give 2, or (1, 3), or (1, None)"
    if not isinstance(pair, tuple) or len(pair) != 2:  # the least and the most
        raise Invalid(f"{depth!r} is not a depth", remedy=remedy)
    least, most = pair
    whole = type(least) is int and (most is None or type(most) is int)
    if not whole or least < 0 or (most is not None and not max(least, 1) <= most <= MAX_DEPTH):
        raise Invalid(f"from {least!r} to {most!r} is not a depth", remedy=remedy)
    if most is None and least > 1:
        raise Invalid("a walk without an end begins at depth 0 or 1", remedy="give (1, None), or a last depth")
    return least, most


def _about_relation(relation: type[Mixin], where: Condition | None) -> Predicate:
    if where is None:
        return TRUE
    if where.root is not relation:
        raise Invalid(f"this condition is about {where.root.__name__}, not about {relation.__name__}")
    if any(path.end != "own" for path in paths(where.predicate)):
        raise Invalid(
            "a hop is filtered by the relation's own fields", remedy="filter its ends with where() around via()"
        )
    return where.predicate
