"""Along relations: hops from entities to entities, and shortest ways.

A hop turns a query about entities into one about those that they lead to, in the same SQL statement; conditions of the
first stay with it, and those that follow are about the second. A shortest way is looked for level by level, at one
pinned head, by the keys alone.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.base.aio import blocking
from holdfast.base.errors import Invalid
from holdfast.ontology import shape as shapes
from holdfast.ontology.declaration import Declaration, declaration
from holdfast.ontology.engine import Moment
from holdfast.ontology.filters.ast import TRUE, Predicate
from holdfast.ontology.filters.exprs import Condition
from holdfast.ontology.filters.operand import fill
from holdfast.ontology.filters.scope import Sql
from holdfast.ontology.form import Form
from holdfast.ontology.model import Mixin
from holdfast.ontology.prune import paths
from holdfast.ontology.results import objects
from holdfast.ontology.statement import Ask, Origin, rows_of
from holdfast.ontology.times import Window

if TYPE_CHECKING:
    from holdfast.ontology.query import Query

M = TypeVar("M", bound=Mixin)
Depth = int | tuple[int, int | None]


def hop(
    query: "Query[Any]", relation: type[Mixin], where: Condition | None, *, reverse: bool, depth: Depth
) -> "Query[Any]":
    declared = _relation(relation)
    forward = _direction(query, declared, reverse=reverse)
    least, most = _depth(depth)
    target = (declared.ends or ())[1 if forward else 0]
    if most != 1 and target.type_id != query.form.type_id:
        raise Invalid(
            f"{declared.name} leads from {query.form.declared.name} to {target.name}: it can be followed once only",
            remedy="use depth with relations between entities of one type",
        )
    origin = Origin(query.ask, shapes.of_class(declared), _about(relation, where), forward, least, most)
    ask = Ask(shapes.of_class(target), {}, when=query.ask.when, origin=origin)
    return replace(query, form=Form(target.python), ask=ask, columns=())


async def shortest_path(
    query: "Query[M]", relation: type[Mixin], to: Condition, *, most: int, reverse: bool
) -> list[M] | None:
    declared = _relation(relation)
    forward = _direction(query, declared, reverse=reverse)
    if len({end.type_id for end in declared.ends or ()}) != 1:
        raise Invalid(f"{declared.name} does not relate entities of one type", remedy="use via for each hop")
    goal = query.where(to)

    async def question(moment: Moment) -> list[M] | None:
        window = await moment.window(query.ask.when)
        if window.history:
            raise Invalid("a way is looked for in one state, not in history", remedy="use as_of")
        starts = await _keys(query, query.ask, moment, window)
        goals = set(await _keys(query, replace(goal.ask, where=to.predicate), moment, window))
        way = await _search(_Edges(query, shapes.of_class(declared), moment, window, forward), starts, goals, most)
        return None if way is None else await _entities(query, way, moment, window)

    return await query.engine.ask(question)


class _Edges:
    def __init__(
        self, query: "Query[Any]", relation: shapes.Shape, moment: Moment, window: Window, forward: bool
    ) -> None:
        self._query, self._relation, self._moment = query, relation, moment
        self._state = Window(0, window.upper, history=False)
        self._near, self._far = ("left_key", "right_key") if forward else ("right_key", "left_key")

    async def of(self, keys: list[str]) -> list[tuple[str, str]]:
        """The edges that begin at these keys, in a fixed order."""
        table = await self._moment.table(self._relation, self._state)
        sql = fill(
            f"SELECT DISTINCT r.{self._near} AS near, r.{self._far} AS far FROM ({{}}) r "
            f"WHERE r.{self._near} IN ({{}}) ORDER BY far, near",
            table.only("", "r").live(),
            Sql("SELECT unnest(?::VARCHAR[])", (keys,)),
        )
        found = await self._query.engine.warm.table(sql)
        return list(zip(found.column("near").to_pylist(), found.column("far").to_pylist(), strict=True))


async def _search(edges: _Edges, starts: list[str], goals: set[str], most: int) -> list[str] | None:
    """Breadth first: the first goal that is met, least key first, and the way to it."""
    came_from: dict[str, str | None] = dict.fromkeys(starts)
    level = sorted(starts)
    for step in range(most + 1):
        met = next((key for key in level if key in goals), None)
        if met is not None:
            return _way(came_from, met)
        if step == most or not level:
            return None
        following: list[str] = []
        for near, far in await edges.of(level):
            if far not in came_from:
                came_from[far] = near
                following.append(far)
        level = sorted(following)
    return None


def _way(came_from: dict[str, str | None], key: str) -> list[str]:
    way = [key]
    while (before := came_from[way[-1]]) is not None:
        way.append(before)
    return way[::-1]


async def _keys(query: "Query[Any]", ask: Ask, moment: Moment, window: Window) -> list[str]:
    sql = (await rows_of(ask, moment, window)).select(["r.entity_key"])
    found = await query.engine.warm.table(sql)
    return list(found.column("entity_key").to_pylist())


async def _entities(query: "Query[M]", way: list[str], moment: Moment, window: Window) -> list[M]:
    """The entities on a way. One that does not exist (yet) cannot be shown, and is left out."""
    table = await moment.table(query.ask.shape, Window(0, window.upper, history=False))
    sql = fill(
        "SELECT entity_key, commit_id, fields_json, _retracted FROM ({}) WHERE entity_key IN ({})",
        table.live(),
        Sql("SELECT unnest(?::VARCHAR[])", (way,)),
    )
    found = await query.engine.warm.table(sql)
    made = dict(zip(found.column("entity_key").to_pylist(), await blocking(objects, query.form, found), strict=True))
    return [made[key] for key in way if key in made]


def _relation(relation: type[Mixin]) -> Declaration:
    declared = declaration(relation)
    if declared.ends is None:
        raise Invalid(f"{declared.name} is not a relation", remedy="name the relation to follow, not its end")
    return declared


def _direction(query: "Query[Any]", declared: Declaration, *, reverse: bool) -> bool:
    """Whether it is followed from left to right."""
    here = query.form.type_id
    fits = [end.type_id == here for end in declared.ends or ()]
    if not any(fits):
        names = " and ".join(end.name for end in declared.ends or ())
        raise Invalid(f"{declared.name} relates {names}, not {here.name}", remedy="name a relation that begins here")
    if reverse and not fits[1]:
        raise Invalid(f"{declared.name} does not lead to {here.name}", remedy="leave out reverse")
    return fits[0] and not reverse


def _depth(depth: Any) -> tuple[int, int | None]:
    least, most = (depth, depth) if isinstance(depth, int) else depth
    check_depth(least, most)
    return least, most


def check_depth(least: Any, most: Any) -> None:
    if not isinstance(least, int) or least < 0 or (most is not None and most < max(least, 1)):
        raise Invalid(f"from {least!r} to {most!r} is not a depth", remedy="give 2, or (1, 3), or (1, None)")
    if most is None and least > 1:
        raise Invalid("a walk without an end begins at depth 0 or 1", remedy="give (1, None), or a last depth")


def _about(relation: type[Mixin], where: Condition | None) -> Predicate:
    if where is None:
        return TRUE
    if where.root is not relation:
        raise Invalid(f"this condition is about {where.root.__name__}, not about {relation.__name__}")
    if any(path.end != "own" for path in paths(where.predicate)):
        raise Invalid(
            "a hop is filtered by the relation's own fields", remedy="filter its ends with where() around via()"
        )
    return where.predicate
