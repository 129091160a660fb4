"""Along relations: hops from entities to entities, and shortest ways.

A hop turns a query about entities into one about those that they lead to, in the same SQL statement; conditions of the
first stay with it, and those that follow are about the second. A shortest way is looked for level by level, at one
pinned head, by the keys alone.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.base.aio import blocking
from holdfast.base.errors import Invalid
from holdfast.ontology.chain.times import Window
from holdfast.ontology.filters.operand import fill
from holdfast.ontology.filters.scope import Sql
from holdfast.ontology.filters.sql import compile_where
from holdfast.ontology.query.cache.prune import paths, split
from holdfast.ontology.query.engine import Moment
from holdfast.ontology.query.results import objects
from holdfast.ontology.query.statement import Ask, Origin, rows_of
from holdfast.ontology.types.expressions.ast import TRUE, Predicate
from holdfast.ontology.types.expressions.terms import Condition
from holdfast.ontology.types.model import Mixin
from holdfast.ontology.types.typeinfo import TypeInfo, type_info

if TYPE_CHECKING:
    from holdfast.ontology.query.query import Query

M = TypeVar("M", bound=Mixin)
Depth = int | tuple[int, int | None]
STEPS = 16
"""Of a way, unless more are asked for."""
MOST = 2**31 - 1
"""Steps that SQL counts."""


def hop(
    query: "Query[Any]", relation: type[Mixin], where: Condition | None, *, reverse: bool, depth: Depth
) -> "Query[Any]":
    via = _relation(relation)
    forward = _direction(query, via, reverse=reverse)
    least, most = _depth(depth)
    target = (via.ends or ())[1 if forward else 0]
    if most != 1 and target.type_id != query.info.type_id:
        raise Invalid(
            f"{via.name} leads from {query.info.name} to {target.name}: it can be followed once only",
            remedy="use depth with relations between entities of one type",
        )
    origin = Origin(query.ask, via, _about(relation, where), forward, least, most)
    ask = Ask(target, {}, when=query.ask.when, origin=origin)
    return replace(query, ask=ask, columns=())


async def shortest_path(
    query: "Query[M]", relation: type[Mixin], to: Condition, where: Condition | None, *, most: int, reverse: bool
) -> list[M] | None:
    via = _relation(relation)
    forward = _direction(query, via, reverse=reverse)
    if to.root is not query.info.python:
        raise Invalid(f"this condition is about {to.root.__name__}, not about {query.info.python.__name__}")
    ways = Ways(query.ask, via, _about(relation, where), to.predicate, forward, most)

    async def question(moment: Moment) -> list[M] | None:
        keys = await ways.shortest(moment)
        return None if keys is None else await _entities(query, keys, moment, await moment.window(query.ask.when))

    return await query.engine.ask(question)


@dataclass(frozen=True)
class Ways:
    """From the entities of a question along a relation to others of their type, through entities that exist."""

    ask: Ask
    relation: TypeInfo
    where: Predicate
    """Of the relation."""
    to: Predicate
    forward: bool
    most: int

    def __post_init__(self) -> None:
        if {end.type_id for end in self.relation.ends or ()} != {self.ask.shape.type_id}:
            name = self.relation.type_id.name
            raise Invalid(f"{name} does not relate entities of one type", remedy="use via for each hop")
        if type(self.most) is not int or self.most < 0:
            raise Invalid(f"{self.most!r} is not a number of steps", remedy="give a whole number from 0 on")

    async def shortest(self, moment: Moment) -> list[str] | None:
        """The keys of a shortest way; None if there is none."""
        window = await moment.window(self.ask.when)
        if window.history:
            raise Invalid("a way is looked for in one state, not in history", remedy="use as_of")
        starts = await _keys(self.ask, moment, window)
        # Where it begins may be limited, or reached from elsewhere; where it ends is another question.
        goals = set(await _keys(Ask(self.ask.shape, self.ask.ends, where=self.to), moment, window))
        return await self._search(moment, window, starts, goals) if starts and goals else None

    async def _search(self, moment: Moment, window: Window, starts: list[str], goals: set[str]) -> list[str] | None:
        """Breadth first: the first goal that is met, least key first, and the way to it."""
        came_from: dict[str, str | None] = dict.fromkeys(starts)
        level = sorted(starts)
        for step in range(self.most + 1):
            met = next((key for key in level if key in goals), None)
            if met is not None:
                return _way(came_from, met)
            if step == self.most or not level:
                return None
            following: list[str] = []
            for near, far in await self._edges(moment, window, level):
                if far not in came_from:
                    came_from[far] = near
                    following.append(far)
            level = sorted(following)
        return None

    async def _edges(self, moment: Moment, window: Window, keys: list[str]) -> list[tuple[str, str]]:
        """The edges that begin at these keys and lead to entities that exist, in a fixed order."""
        state = Window(0, window.upper, history=False)
        near, far = ("left_key", "right_key") if self.forward else ("right_key", "left_key")
        table = await moment.table(self.relation, state, self.where)
        there = await moment.table(self.ask.shape, state)
        condition = compile_where(split(self.where, self.relation).rest, {"own": table.source("r")})
        sql = fill(
            f"SELECT DISTINCT r.{near} AS near, r.{far} AS far FROM ({{}}) r "
            f"SEMI JOIN ({{}}) there ON there.entity_key = r.{far} "
            f"WHERE r.{near} IN ({{}}) AND {{}} ORDER BY far, near",
            table.only(condition.text, "r").live(),
            there.only("", "").live(),
            Sql("SELECT unnest(?::VARCHAR[])", (keys,)),
            condition,
        )
        found = await moment.engine.warm.table(sql)
        return list(zip(found.column("near").to_pylist(), found.column("far").to_pylist(), strict=True))


def _way(came_from: dict[str, str | None], key: str) -> list[str]:
    way = [key]
    while (before := came_from[way[-1]]) is not None:
        way.append(before)
    return way[::-1]


async def _keys(ask: Ask, moment: Moment, window: Window) -> list[str]:
    sql = (await rows_of(ask, moment, window)).select(["r.entity_key"])
    found = await moment.engine.warm.table(sql)
    return list(found.column("entity_key").to_pylist())


async def _entities(query: "Query[M]", way: list[str], moment: Moment, window: Window) -> list[M]:
    """The entities on a way."""
    table = await moment.table(query.ask.shape, Window(0, window.upper, history=False))
    sql = fill(
        "SELECT entity_key, commit_id, fields_json, _retracted FROM ({}) WHERE entity_key IN ({})",
        table.live(),
        Sql("SELECT unnest(?::VARCHAR[])", (way,)),
    )
    found = await query.engine.warm.table(sql)
    made = dict(zip(found.column("entity_key").to_pylist(), await blocking(objects, query.info, found), strict=True))
    return [made[key] for key in way]


def _relation(relation: type[Mixin]) -> TypeInfo:
    via = type_info(relation)
    if via.ends is None:
        raise Invalid(f"{via.name} is not a relation", remedy="name the relation to follow, not its end")
    return via


def _direction(query: "Query[Any]", via: TypeInfo, *, reverse: bool) -> bool:
    """Whether it is followed from left to right."""
    here = query.info.type_id
    fits = [end.type_id == here for end in via.ends or ()]
    if not any(fits):
        names = " and ".join(end.name for end in via.ends or ())
        raise Invalid(f"{via.name} relates {names}, not {here.name}", remedy="name a relation that begins here")
    if reverse and not fits[1]:
        raise Invalid(f"{via.name} does not lead to {here.name}", remedy="leave out reverse")
    return fits[0] and not reverse


def _depth(depth: Any) -> tuple[int, int | None]:
    pair = (depth, depth) if isinstance(depth, int) else depth
    if not isinstance(pair, tuple) or len(pair) != 2:  # the least and the most
        raise Invalid(f"{depth!r} is not a depth", remedy="give 2, or (1, 3), or (1, None)")
    check_depth(*pair)
    return pair


def check_depth(least: Any, most: Any) -> None:
    whole = type(least) is int and (most is None or type(most) is int)
    if not whole or least < 0 or (most is not None and not max(least, 1) <= most <= MOST):
        raise Invalid(f"from {least!r} to {most!r} is not a depth", remedy="give 2, or (1, 3), or (1, None)")
    if most is None and least > 1:
        raise Invalid("a walk without an end begins at depth 0 or 1", remedy="give (1, None), or a last depth")


def _about(relation: type[Mixin], where: Condition | None) -> Predicate:
    if where is None:
        return TRUE
    if where.root is not relation:
        raise Invalid(f"this condition is about {where.root.__name__}, not about {relation.__name__}")
    return of_the_relation(where.predicate, remedy="filter its ends with where() around via()")


def of_the_relation(where: Predicate, *, remedy: str) -> Predicate:
    """A condition on the relation of a hop; ``Invalid`` if it looks at the ends."""
    if any(path.end != "own" for path in paths(where)):
        raise Invalid("a hop is filtered by the relation's own fields", remedy=remedy)
    return where
